"""Plans, explanations of rows and changes on a console. Knows what the commands print as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.wording import ann_plan, between, cost_line, cut, seconds


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Prints what an eval is likely to take, then each step's expected calls, their bound, and the reason."""
    steps = plan["steps"]
    say(console, "; ".join([_said(steps), _time(steps), _growth(plan)]))
    tokens = any(s["estimate"]["tokens"][1] != 0 for s in steps)
    heads = ["step", "rows", "cached", "expected", "at most", "from", "time", "tokens", "because"]
    rows = []
    for s in steps:
        named = {_reason(why, s["half"]): n for why, n in s["reasons"].items()}
        reasons = [f"{why} {_number(n)}" if len(s["reasons"]) > 1 else why for why, n in named.items()]
        cells = [s["step"], _number(s["rows"]), f"{s['cached']:,}", _counts(_likely(s))]
        cells += [_number(s["max_calls"]), _source(s), _range(s["estimate"]["seconds"])]
        rows.append([*cells, _counts(s["estimate"]["tokens"]), ", ".join(reasons)])
    if not tokens:
        for row in (heads, *rows):
            row.pop(-2)
    show(console, heads, rows)
    say(console, *map(ann_plan, plan.get("ann", ())))
    if judge := plan.get("judge"):
        say(console, f"judge {judge['model']}: at most {judge['max_calls']:,} calls")
    cost = plan.get("cost")  # without a price, a GPU and a token it says no more than the first line
    if cost and (cost["usd"] or any(cost[k] is None or any(cost[k]) for k in ("gpu_hours", "tokens"))):
        say(console, cost_line(plan["cost"], plan["unpriced"]))


def _reason(why: str, half: str) -> str:
    """A reason for people: `row` is a question, or a page, that the last finished run did not have."""
    return why if why != "row" else "new question" if half == "question" else "new page"


def _sure(step: Mapping[str, Any]) -> bool:
    """Returns whether the bound of a step is the number of calls that it will make."""
    return bool(step["exact"] or step["max_calls"] == 0)


def _number(n: int | None) -> str:
    return "not known" if n is None else f"{n:,}"


def _total(numbers: Sequence[float | None]) -> Any:
    """The sum; None where one of them is not known."""
    known = [n for n in numbers if n is not None]
    return sum(known) if len(known) == len(numbers) else None


def _likely(step: Mapping[str, Any]) -> Sequence[int | None]:
    """The fewest and the most calls that a step is expected to make; None: not known."""
    if _sure(step):
        return [step["max_calls"]] * 2
    return step["estimate"]["calls"] or [None, None]


def _said(steps: Sequence[Mapping[str, Any]]) -> str:
    """Calls of all steps: those expected, then the bound."""
    most = _total([s["max_calls"] for s in steps])
    low, high = (_total([_likely(s)[i] for s in steps]) for i in (0, 1))
    if all(_sure(s) for s in steps):
        return f"{_number(most)} calls"
    bound = f"at most {_number(most)}" if most is not None else "with no known bound"
    if low is None or high is None:
        unknown = ", ".join(s["step"] for s in steps if _likely(s)[1] is None)
        return f"calls {bound}; no run says how many are likely for {unknown}"
    return f"about {_counts([low, high])} calls, {bound}"


def _source(step: Mapping[str, Any]) -> str:
    """Returns what the expected calls rest on."""
    if _sure(step):
        return "exact"
    if step["estimate"]["calls"] is None:
        return ""
    runs = step["estimate"]["runs"]
    return f"{runs} run{'s' if runs > 1 else ''}" if runs else "a sample"


def _time(steps: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of all processes together, or what would make them known."""
    unknown = [s["step"] for s in steps if s["estimate"]["seconds"] is None]
    if len(unknown) == len(steps):
        no = "no eval of these steps has run on such a machine (--calibrate measures this one)"
        return f"time not known: {no}"
    if unknown:
        return f"time not known until an eval, or --calibrate, has measured {', '.join(unknown)}"
    low, high = (sum(s["estimate"]["seconds"][i] for s in steps) for i in (0, 1))
    return f"{_range([low, high])} of computing, loading models not counted"


def _growth(plan: Mapping[str, Any]) -> str:
    """Returns what the eval adds to the store. Parsed texts are not in the estimate: their sizes are not
    known."""
    least, most = (_total([s["estimate"]["bytes"][i] for s in plan["steps"]]) for i in (0, 1))
    if most == 0 and not any(s["max_calls"] for s in plan["steps"]):
        return "the store does not grow"
    low, high = f"{least / 1e6:,.1f}", "" if most is None else f"{most / 1e6:,.1f}"
    if not high:
        more = f"{low} MB or more"
    elif high == "0.0":
        more = "less than 0.1 MB"
    else:
        more = f"about {high} MB" if low == high else f"{low} to {high} MB"
    return f"the store grows by {more}, parsed texts not counted"


def print_placement(console: Console, plan: Mapping[str, Any]) -> None:
    """Prints where each pool of a plan runs, and the memory it takes there."""
    if all(s["max_calls"] == 0 for s in plan["steps"]):
        return  # no pool has work
    placement = plan["placement"]
    say(console, f"on {placement['cluster']} ({placement['about']}):", fold=True)
    for p in placement["pools"]:
        held = f"{p['cpus']:g} CPU" + (f" and {p['device']}" if p["gpus"] else "")
        memory = f"; {p['arithmetic']}" if p["memory"] else ""
        note = f"; {p['note']}" if p["note"] else ""
        say(console, f"  {p['name']}: {p['actors']} x {held}{memory}{note}")


def print_assumed(console: Console, plan: Mapping[str, Any]) -> None:
    """Prints what a corpus of some size would take."""
    size, steps = plan["assumed"], plan["steps"]
    html, chars = f"{size['html_bytes']:,.0f} bytes of HTML", f"{size['text_chars']:,.0f} characters"
    each = f"{html}, {chars}, {size['chunks']:g} chunks each"
    say(console, f"{size['pages']:,.0f} pages of {each}, on {plan['cluster']}")
    summed = ("tasks", "bytes", "requests")
    total = {"step": "in all", "hours": plan["hours"], **{n: sum(s[n] for s in steps) for n in summed}}
    rows = []
    for s in (*steps, total):
        cells = (f"{s['tasks']:,}", f"{s['bytes'] / 2**30:,.1f}", f"{s['requests']:,.0f}", _span(s["hours"]))
        rows.append((s["step"], f"{s['rows']:,.0f}" if "rows" in s else "", *cells))
    show(console, ("step", "rows", "tasks", "store GiB", "requests", "hours"), rows)
    if plan["hours"] is None:
        lacking = ", ".join(s["step"] for s in steps if s["hours"] is None)
        say(console, f"no run says how long {lacking} takes on such machines")
    money = "money: not known without hours and `usd_per_hour` of all machines"
    if (usd := plan["usd"]) is not None:
        money = f"machines: {usd[0]:,.0f} to {usd[1]:,.0f} USD"
    say(console, money, fold=True)


def _span(hours: Sequence[float] | None) -> str:
    """A range of hours, with three digits that say something."""
    return between(hours, lambda h: f"{h:,.0f}" if h >= 100 else f"{h:.3g}", " - ")


STATES = {
    "reused": "answered before this run; nothing was computed for it",
    "computed": "answered by this run",
    "fault": "failed",
    "missing": "not reached",
}


def print_explanation(console: Console, story: Mapping[str, Any]) -> None:
    """Prints a row of a run (`explain.Explanation`)."""
    say(console, f"{story['question']}: {STATES[story['state']]}", style="bold", fold=True)
    say(console, *filter(None, [story["parts"].get("text")]))
    if story["outcome"]:
        say(console, f"{story['answer']}  [{story['outcome']}]")
    say(console, *(f"{f['step']}, {f['reason']}: {f['detail']}" for f in story["faults"]))
    _print_evidence(console, story)
    say(console, f"answer {story['key']} = recipe {story['recipe']} + row {story['row']}")
    same = 0
    for name, value in story["parts"].items():
        mark = "changed  " if name in story["changed"] else ""
        if not mark and (name == "text" or not value):  # the text stands above
            continue
        if name.startswith("citation") and not mark:
            same += 1
            continue
        say(console, f"  {mark}{name}: {value}")
    if same:
        unchanged = " that are unchanged" if story["changed"] else ""
        say(console, f"  and {same} citations{unchanged}", fold=True)
    if story["previous"]:
        row = ", ".join(story["changed"]) or "the row is unchanged"
        say(console, f"against run {story['previous']}: {row}", fold=True)
    _print_differences(console, story["differences"])
    counted = ("requests", "cached", "computed")
    rows = []
    for s in story["steps"]:
        counts = ("not known" if s[k] is None else s[k] for k in counted)
        rows.append((s["step"], *counts, _reason(s["reason"], "question")))
    show(console, ("step", *counted, "because"), rows)


def _print_evidence(console: Console, story: Mapping[str, Any]) -> None:
    """Prints what an answer rests on: quotes, replies of steps, chats with language models."""
    for e in story["evidence"]:
        console.print(
            Text(f"evidence: {e['quote']}"), Text(f" {e['url'] or e['source']}", "dim"), soft_wrap=True
        )
    for name, reply in story["replies"].items():
        sure = "" if reply["confidence"] is None else f", confidence {reply['confidence']:.2f}"
        say(console, f"reply {name}: {reply['label']}{sure}: {reply['text']}")
    for step in story["steps"]:
        for chat in step["chats"]:
            say(console, f"{step['step']} asked its model:", style="bold")
            for message in chat["messages"]:
                text = message["content"]  # a long one without its middle: the question stands last
                if (more := len(text) - MESSAGE_SHOWN) > 0:
                    half = MESSAGE_SHOWN // 2
                    middle = f"... {more:,} characters, which --json has ..."
                    text = f"{text[:half]}\n{middle}\n{text[-half:]}"
                text = text.rstrip().replace("\n", "\n    ")
                say(console, f"  {message['role']}: {text}")
            say(console, f"  it replied: {'not cached any more' if chat['reply'] is None else chat['reply']}")


MESSAGE_SHOWN = 4000  # characters of a message on a terminal


def print_changes(console: Console, found: Mapping[str, Any]) -> None:
    """Prints what a run changed (`runs.changes.Changes`)."""
    counts = f"{found['common']} questions in both runs, {found['new']} new, {found['removed']} gone"
    say(console, f"against run {found['before']}: {counts}", style="bold", fold=True)
    other = sum(found["other_path"].values())
    said = f"answers: {len(found['changed'])} changed, {other} the same by another path"
    say(console, f"{said}, {found['same']} the same throughout", fold=True)
    _print_differences(console, found["differences"])
    for c in found["changed"][:CHANGES_SHOWN]:
        say(console, f"{c['question']}  {c['query']}", style="bold")
        because = ""
        if c["cause"]:
            first, *more = _difference(c["cause"])
            named = f"{c['cause']['stage']}.{c['cause']['field']}"
            because = f", because {named} changed" if more else f", because {first}"
        say(console, f"  parts at {c['step']}{because}")
        for when in ("before", "after"):
            said = c[when]
            path = f"   {cut(said['path'], PATH_SHOWN)}" if said["path"] else ""
            say(console, f"  {when:<6} {said['answer']} [{said['outcome']}]{path}")
    if (rest := len(found["changed"]) - CHANGES_SHOWN) > 0:
        say(console, f"... and {rest} more: changes.json has them all", fold=True)


CHANGES_SHOWN = 20  # on a terminal
PATH_SHOWN = 120  # characters of what a step put out, there: a ranking has thousands


def _print_differences(console: Console, differences: Sequence[Mapping[str, Any]]) -> None:
    """Prints what differs in a recipe, stage by stage."""
    say(console, *(f"  {line}" for d in differences for line in _difference(d)))


def _difference(d: Mapping[str, Any]) -> list[str]:
    """The lines of a difference; where it has none (a version, a source file, a stage), before and after."""
    if d["lines"]:
        return list(d["lines"])
    before, after = cut(d["before"], 60), cut(d["after"], 60)
    return [f"{d['stage']}.{d['field']} was {before or 'not there'}, is {after or 'gone'}"]


def _counts(found: Sequence[int | None] | None) -> str:
    return between(found, "{:,}".format, "-")


def _range(found: Sequence[float] | None) -> str:
    return between(found, seconds, " - ")
