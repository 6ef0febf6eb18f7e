"""Plans, explanations of rows and changes on a console. Knows what the commands print as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report.console import grid
from raypipe.report.money import cost_line
from raypipe.report.wording import ann_plan, seconds


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """What an eval is likely to take, then what each step asks: expected calls, their bound, the reason."""
    steps = plan["steps"]
    console.print(Text("; ".join([_said(steps), _time(steps), _growth(plan)])), soft_wrap=True)
    tokens = any(s["estimate"]["tokens"][1] != 0 for s in steps)
    columns = ["at most", "from", "time", *(["tokens"] if tokens else []), "because"]
    shown = grid("step", "rows", "cached", "expected", *columns)
    for s in steps:
        several = len(s["reasons"]) > 1
        named = {_reason(why, s["half"]): n for why, n in s["reasons"].items()}
        reasons = ", ".join(f"{why} {_number(n)}" if several else why for why, n in named.items())
        cells = [_number(s["rows"]), f"{s['cached']:,}", _expected(s), _number(s["max_calls"]), _source(s)]
        cells += [_range(s["estimate"]["seconds"]), *([_counts(s["estimate"]["tokens"])] if tokens else [])]
        shown.add_row(Text(s["step"]), *cells, Text(reasons))
    console.print(shown)
    for a in plan.get("ann", ()):
        console.print(Text(ann_plan(a)), soft_wrap=True)
    if judge := plan.get("judge"):
        console.print(Text(f"judge {judge['model']}: at most {judge['max_calls']:,} calls"), soft_wrap=True)
    if plan.get("cost"):
        console.print(Text(cost_line(plan["cost"], plan["unpriced"])), soft_wrap=True)


def _reason(why: str, half: str) -> str:
    """A reason for people: `row` is a question, or a page, that the last finished run did not have."""
    return why if why != "row" else "new question" if half == "question" else "new page"


def _sure(step: Mapping[str, Any]) -> bool:
    """Whether the bound of a step is the number of calls that it will make."""
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


def _expected(step: Mapping[str, Any]) -> str:
    return _counts(_likely(step))


def _source(step: Mapping[str, Any]) -> str:
    """What the expected calls rest on."""
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
        return (
            "time not known: no eval of these steps has run on such a machine (--calibrate measures this one)"
        )
    if unknown:
        return f"time not known until an eval, or --calibrate, has measured {', '.join(unknown)}"
    low, high = (sum(s["estimate"]["seconds"][i] for s in steps) for i in (0, 1))
    return f"{_range([low, high])} of computing, loading models not counted"


def _growth(plan: Mapping[str, Any]) -> str:
    """What the eval adds to the store. Parsed texts are not in the estimate: their sizes are not known."""
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
    """Where each pool of a plan runs, the memory it takes there, and the expected bottleneck."""
    placement = plan["placement"]
    console.print(Text(f"on {placement['cluster']} ({placement['about']}):"))
    for p in placement["pools"]:
        held = f"{p['cpus']:g} CPU" + (f" and {p['device']}" if p["gpus"] else "")
        memory = f"; {p['arithmetic']}" if p["memory"] else ""
        note = f"; {p['note']}" if p["note"] else ""
        console.print(Text(f"  {p['name']}: {p['actors']} x {held}{memory}{note}"), soft_wrap=True)
    slowest = placement["bottleneck"]
    if slowest is None:
        missing = any(s["max_calls"] != 0 for s in plan["steps"])
        console.print(Text(f"bottleneck: {'not known until an eval has run here' if missing else 'none'}"))
        return
    where, took = slowest["pool"], seconds(slowest["seconds"])
    said = f"{slowest['stage']} in {where}, at most {took}, {slowest['share']:.0%} of the clock"
    console.print(Text(f"bottleneck: {said}"), soft_wrap=True)


def print_assumed(console: Console, plan: Mapping[str, Any]) -> None:
    """What a corpus of some size would take."""
    size = plan["assumed"]
    each = (
        f"{size['html_bytes']:,.0f} bytes of HTML, {size['text_chars']:,.0f} characters, {size['chunks']:g}"
    )
    console.print(
        Text(f"{size['pages']:,.0f} pages of {each} chunks each, on {plan['cluster']}"), soft_wrap=True
    )
    shown = grid("step", "rows", "tasks", "store GiB", "requests", "hours")
    for s in plan["steps"]:
        cells = [
            f"{s['rows']:,.0f}",
            f"{s['tasks']:,}",
            f"{s['bytes'] / 2**30:,.1f}",
            f"{s['requests']:,.0f}",
        ]
        shown.add_row(Text(s["step"]), *cells, _span(s["hours"]))
    whole = [sum(s[name] for s in plan["steps"]) for name in ("tasks", "bytes", "requests")]
    totals = ["", f"{whole[0]:,}", f"{whole[1] / 2**30:,.1f}", f"{whole[2]:,.0f}", _span(plan["hours"])]
    shown.add_row(Text("in all"), *totals)
    console.print(shown)
    if plan["hours"] is None:
        lacking = ", ".join(s["step"] for s in plan["steps"] if s["hours"] is None)
        console.print(Text(f"no run says how long {lacking} takes on such machines"), soft_wrap=True)
    if (usd := plan["usd"]) is not None:
        console.print(Text(f"machines: {usd[0]:,.0f} to {usd[1]:,.0f} USD"))
    else:
        console.print(Text("money: not known without hours and `usd_per_hour` of all machines"))


def _span(hours: Sequence[float] | None) -> str:
    """A range of hours, with three digits that say something."""
    if hours is None:
        return "not known"
    low, high = (f"{h:,.0f}" if h >= 100 else f"{h:.3g}" for h in hours)
    return low if low == high else f"{low} - {high}"


STATES = {
    "reused": "answered before this run; nothing was computed for it",
    "computed": "answered by this run",
    "fault": "failed",
    "missing": "not reached",
}


def print_explanation(console: Console, story: Mapping[str, Any]) -> None:
    """One row of a run (`explain.Explanation`)."""
    console.print(Text(f"{story['question']}: {STATES[story['state']]}", "bold"))
    if query := story["parts"].get("text"):
        console.print(Text(query), soft_wrap=True)
    if story["outcome"]:
        console.print(Text(f"{story['answer']}  [{story['outcome']}]"), soft_wrap=True)
    _print_evidence(console, story)
    console.print(
        Text(f"answer {story['key']} = recipe {story['recipe']} + row {story['row']}"), soft_wrap=True
    )
    same = 0
    for name, value in story["parts"].items():
        mark = "changed  " if name in story["changed"] else ""
        if name == "text" and not mark:  # it stands above
            continue
        if name.startswith("citation") and not mark:
            same += 1
            continue
        console.print(Text(f"  {mark}{name}: {value}"), soft_wrap=True)
    if same:
        console.print(Text(f"  and {same} citations{' that are unchanged' if story['changed'] else ''}"))
    if story["previous"]:
        row = ", ".join(story["changed"]) or "the row is unchanged"
        console.print(Text(f"against run {story['previous']}: {row}"))
    _print_differences(console, story["differences"])
    shown = grid("step", "requests", "cached", "computed", "because")
    for s in story["steps"]:
        counts = ("not known" if s[k] is None else str(s[k]) for k in ("requests", "cached", "computed"))
        shown.add_row(Text(s["step"]), *counts, Text(_reason(s["reason"], "question")))
    console.print(shown)


def _print_evidence(console: Console, story: Mapping[str, Any]) -> None:
    """What an answer rests on: quotes, replies of steps, chats with language models."""
    for e in story["evidence"]:
        console.print(
            Text(f"evidence: {e['quote']}"), Text(f" {e['url'] or e['source']}", "dim"), soft_wrap=True
        )
    for name, reply in story["replies"].items():
        sure = "" if reply["confidence"] is None else f", confidence {reply['confidence']:.2f}"
        console.print(Text(f"reply {name}: {reply['label']}{sure}: {reply['text']}"), soft_wrap=True)
    for step in story["steps"]:
        for chat in step["chats"]:
            console.print(Text(f"{step['step']} asked its model:", "bold"), soft_wrap=True)
            for message in chat["messages"]:
                content = _middle_cut(message["content"]).rstrip().replace("\n", "\n    ")
                console.print(Text(f"  {message['role']}: {content}"), soft_wrap=True)
            reply = "not cached any more" if chat["reply"] is None else chat["reply"]
            console.print(Text(f"  it replied: {reply}"), soft_wrap=True)


def _middle_cut(text: str) -> str:
    """A long message without its middle: instructions stand first, and the question last."""
    if len(text) <= MESSAGE_SHOWN:
        return text
    half, more = MESSAGE_SHOWN // 2, len(text) - MESSAGE_SHOWN
    return f"{text[:half]}\n... {more:,} characters, which --json has ...\n{text[-half:]}"


MESSAGE_SHOWN = 4000  # characters of a message on a terminal


def print_changes(console: Console, found: Mapping[str, Any]) -> None:
    """What a run changed (`runs.changes.Changes`)."""
    counts = f"{found['common']} questions in both runs, {found['new']} new, {found['removed']} gone"
    console.print(Text(f"against run {found['before']}: {counts}", "bold"))
    other = sum(found["other_path"].values())
    said = f"{len(found['changed'])} answers changed, {other} are the same by another path"
    console.print(Text(f"{said}, {found['same']} are the same throughout"))
    _print_differences(console, found["differences"])
    for c in found["changed"][:CHANGES_SHOWN]:
        console.print(Text(f"{c['question']}  {c['query']}", "bold"), soft_wrap=True)
        because = ""
        if c["cause"]:
            first, *more = _difference(c["cause"])
            named = f"{c['cause']['stage']}.{c['cause']['field']}"
            because = f", because {named} changed" if more else f", because {first}"
        console.print(Text(f"  parts at {c['step']}{because}"), soft_wrap=True)
        for when in ("before", "after"):
            said = c[when]
            path = f"   {said['path']}" if said["path"] else ""
            console.print(Text(f"  {when:<6} {said['answer']} [{said['outcome']}]{path}"), soft_wrap=True)
    if len(found["changed"]) > CHANGES_SHOWN:
        console.print(
            Text(f"... and {len(found['changed']) - CHANGES_SHOWN} more: changes.json has them all")
        )


CHANGES_SHOWN = 20  # on a terminal


def _print_differences(console: Console, differences: Sequence[Mapping[str, Any]]) -> None:
    """What differs in a recipe, stage by stage."""
    for line in (line for d in differences for line in _difference(d)):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _difference(d: Mapping[str, Any]) -> list[str]:
    """The lines of a difference; where it has none (a version, a source file, a stage), before and after."""
    if d["lines"]:
        return list(d["lines"])
    before, after = (x if len(x) <= 60 else x[:59] + "\u2026" for x in (d["before"], d["after"]))
    return [f"{d['stage']}.{d['field']} was {before or 'not there'}, is {after or 'gone'}"]


def _counts(estimate: Sequence[int | None]) -> str:
    low, high = estimate
    if high is None:
        return "not known"
    return f"{high:,}" if low == high else f"{low:,}-{high:,}"


def _range(estimate: list[float] | None) -> str:
    if estimate is None:
        return "not known"
    low, high = (seconds(x) for x in estimate)
    return low if low == high else f"{low} - {high}"
