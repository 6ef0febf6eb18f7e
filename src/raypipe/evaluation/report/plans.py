"""Console output of plans, explanations of rows, and changes between runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.formatting import ann_plan, between, cost_line, cut, seconds

if TYPE_CHECKING:  # the plan, which `why` does not load
    from raypipe.runs.changes import Changes
    from raypipe.runs.cluster.placement import Placement
    from raypipe.runs.explain import Explanation
    from raypipe.runs.plan.assumed import AssumedPlan
    from raypipe.runs.plan.records import Plan, StepPlan
    from raypipe.runs.stage_records import Difference


def print_plan(console: Console, plan: Plan) -> None:
    """Prints changes since the last run, a line per step, and the total cost in a sentence."""
    print_changed(console, plan)
    rows = []
    for s in plan.steps:
        named = {_reason(why, s.half): n for why, n in s.reasons.items()}
        reasons = [f"{why} {_number(n)}" if len(s.reasons) > 1 else why for why, n in named.items()]
        likely = between(s.expected, "{:,}".format, "-")
        cells = _number(s.rows), f"{s.cached:,}", likely, _number(s.max_calls)
        rows.append((s.step, *cells, between(s.cost.seconds, seconds, " - "), ", ".join(reasons)))
    heads = ("step", "rows", "cached", "expected", "at most", "time", "because")
    show(console, heads, rows, text=len(heads) - 1)
    say(console, *map(ann_plan, plan.ann))
    if plan.twice:
        again = f"at most {plan.twice:,} chats are asked again, one by one"
        say(console, f"{again}: how often a reply flips in a batch")
    if plan.judge:
        say(console, f"judge {plan.judge.model}: at most {plan.judge.max_calls:,} calls")
    cost = plan.cost  # adds to the sum only if there is a price, a GPU or a token
    if cost and (cost.usd or any(part is None or any(part) for part in (cost.gpu_hours, cost.tokens))):
        say(console, cost_line(cost, plan.unpriced))
    say(console, plan_sum(plan), fold=True)


def print_plan_sum(console: Console, plan: Plan) -> None:
    """Prints changes since the last run, and the total cost in a sentence."""
    print_changed(console, plan)
    say(console, plan_sum(plan), fold=True)


def print_changed(console: Console, plan: Plan) -> None:
    """Prints the differences of the recipe from the store's last run."""
    if lines := [line for d in plan.changed for line in _difference(d)]:
        say(console, "changed since the last run:", style="bold")
    say(console, *(f"  {line}" for line in lines[:LINES_SHOWN]))
    if len(lines) > LINES_SHOWN:
        say(console, f"  and {len(lines) - LINES_SHOWN} more lines: --json has them")
    say(console, *plan.adopted, fold=True)


LINES_SHOWN = 6  # lines of changes


def plan_sum(plan: Plan) -> str:
    """Returns the likely cost of an eval in a sentence."""
    return "; ".join([_calls_of(plan.steps), _time(plan.steps), _growth(plan.steps)])


def _reason(why: str, half: str) -> str:
    """Returns a plan's reason in words. For `row`, the last finished run lacked this question or page."""
    new = "new question" if half == "question" else "new page"
    return {"row": new, "kept": "kept by --only-new"}.get(why, why)


def _number(n: float) -> str:
    return "not known" if math.isinf(n) else f"{n:,.0f}"


def _calls_of(steps: Sequence[StepPlan]) -> str:
    """Returns in words the expected calls of all steps, and the most that they can make."""
    most = sum(s.max_calls for s in steps)
    if all(s.exact or s.max_calls == 0 for s in steps):
        return f"{_number(most)} calls"
    bound = "with no known bound" if math.isinf(most) else f"at most {_number(most)}"
    likely = [s.expected for s in steps if s.expected is not None]
    if len(likely) < len(steps):
        unknown = ", ".join(s.step for s in steps if s.expected is None)
        return f"calls {bound}; no earlier run shows how many are likely for {unknown}"
    low, high = (sum(n[i] for n in likely) for i in (0, 1))
    return f"about {between((low, high), '{:,}'.format, '-')} calls, {bound}"


def _time(steps: Sequence[StepPlan]) -> str:
    """Returns in words the computing time, summed over all processes, or which steps were never measured."""
    known = [s.cost.seconds for s in steps if s.cost.seconds is not None]
    if not known and steps:
        return (
            "time not known: no eval of these steps has run on such a machine (--calibrate measures this one)"
        )
    if len(known) < len(steps):
        unknown = ", ".join(s.step for s in steps if s.cost.seconds is None)
        return f"time not known until an eval, or --calibrate, has measured {unknown}"
    total = [sum(took[i] for took in known) for i in (0, 1)]
    return f"{between(total, seconds, ' - ')} of computing, loading models not counted"


def _growth(steps: Sequence[StepPlan]) -> str:
    """Returns in words how much the eval adds to the store. Parsed texts, of unknown size, do not count."""
    least, most = (sum(s.cost.nbytes[i] for s in steps) for i in (0, 1))
    if most == 0 and not any(s.max_calls for s in steps):
        return "the store does not grow"
    low, high = f"{least / 1e6:,.1f}", f"{most / 1e6:,.1f}"
    more = f"about {high} MB" if low == high else f"{low} to {high} MB"
    if math.isinf(most):
        more = f"{low} MB or more"
    elif high == "0.0":
        more = "less than 0.1 MB"
    return f"the store grows by {more}, parsed texts not counted"


def print_placement(console: Console, cluster: str, about: str, pools: Sequence[Placement]) -> None:
    """Prints how many processes each pool of a plan has, on which device, and the memory that they need."""
    say(console, f"on {cluster} ({about}):", fold=True)
    for p in pools:
        held = f"{p.cpus:g} CPU" + (f" and {p.device}" if p.gpus else "")
        memory = f"; {p.arithmetic()}" if p.memory else ""
        note = f"; {p.note}" if p.note else ""
        say(console, f"  {p.name}: {p.actors} x {held}{memory}{note}")


def print_assumed(console: Console, plan: AssumedPlan) -> None:
    """Prints the cost of a corpus of an assumed size."""
    size, steps = plan.assumed, plan.steps
    html, chars = f"{size.html_bytes:,.0f} bytes of HTML", f"{size.text_chars:,.0f} characters"
    each = f"{html}, {chars}, {size.chunks or 0:g} chunks each"
    say(console, f"{size.pages:,.0f} pages of {each}, on {plan.cluster}")
    tasks, stored, asked = (sum(getattr(s, n) for s in steps) for n in ("tasks", "bytes", "requests"))
    rows = [(s.step, f"{s.rows:,.0f}", s.tasks, s.bytes, s.requests, s.hours) for s in steps]
    rows.append(("in all", "", tasks, stored, asked, plan.hours))
    three = lambda h: f"{h:,.0f}" if h >= 100 else f"{h:.3g}"  # noqa: E731, three significant digits
    shown = []
    for name, n, t, b, r, hours in rows:
        took = between(hours, three, " - ")
        shown.append((name, n, f"{t:,}", f"{b / 2**30:,.1f}", f"{r:,.0f}", took))
    show(console, ("step", "rows", "tasks", "store GiB", "requests", "hours"), shown)
    if plan.hours is None:
        lacking = ", ".join(s.step for s in steps if s.hours is None)
        say(console, f"no earlier run shows how long {lacking} takes on such machines")
    money = "money: not known without hours and `usd_per_hour` of all machines"
    if (usd := plan.usd) is not None:
        money = f"machines: {usd[0]:,.0f} to {usd[1]:,.0f} USD"
    say(console, money, fold=True)


STATES = {
    "reused": "answered before this run; nothing was computed for it",
    "computed": "answered by this run",
    "kept": "kept on purpose from an earlier run, whose recipe answered it",
    "fault": "failed",
    "missing": "not reached",
}


def print_explanation(console: Console, story: Explanation) -> None:
    """Prints how a question of a run was answered: evidence, replies, chats, changes, calls per step."""
    say(console, f"{story.question}: {STATES[story.state]}", style="bold", fold=True)
    say(console, *filter(None, [story.parts.get("text")]))
    if story.outcome:
        say(console, f"{story.answer}  [{story.outcome}]")
    if story.expected:
        say(console, f"expected: {story.expected}  [{story.verdict}]")
    say(console, *(f"{f.step}, {f.reason}: {f.detail}" for f in story.faults))
    # The basis of the answer: quotes, replies of steps, chats with language models.
    for e in story.evidence:
        console.print(Text(f"evidence: {e.quote}"), Text(f" {e.url or e.source}", "dim"), soft_wrap=True)
    for name, reply in story.replies.items():
        sure = "" if reply.confidence is None else f", confidence {reply.confidence:.2f}"
        say(console, f"reply {name}: {reply.label}{sure}: {reply.text}")
    for step in story.steps:
        for chat in step.chats:
            say(console, f"{step.step} asked its model:", style="bold")
            for message in chat.messages:
                text = message.content  # a long one loses its middle, since the question is at the end
                if (more := len(text) - MESSAGE_SHOWN) > 0:
                    half = MESSAGE_SHOWN // 2
                    middle = f"... {more:,} characters, which --json has ..."
                    text = f"{text[:half]}\n{middle}\n{text[-half:]}"
                text = text.rstrip().replace("\n", "\n    ")
                say(console, f"  {message.role}: {text}")
            say(console, f"  it replied: {'not cached any more' if chat.reply is None else chat.reply}")
    say(console, f"answer {story.key} = recipe {story.recipe} + row {story.row}")
    same = 0
    for name, value in story.parts.items():
        mark = "changed  " if name in story.changed else ""
        if not mark and (name == "text" or not value):  # the text stands above
            continue
        if name.startswith("citation") and not mark:
            same += 1
            continue
        say(console, f"  {mark}{name}: {value}")
    if same:
        unchanged = " that are unchanged" if story.changed else ""
        say(console, f"  and {same} citations{unchanged}", fold=True)
    if story.kept:
        say(console, f"all below is about run {story.kept}", fold=True)
    if story.previous:
        row = ", ".join(story.changed) or "the row is unchanged"
        say(console, f"against run {story.previous}: {row}", fold=True)
    _print_differences(console, story.differences)
    say(console, *story.adopted, fold=True)
    counted = ("requests", "cached", "computed")
    rows = []
    for s in story.steps:
        counts = ("not known" if getattr(s, k) is None else getattr(s, k) for k in counted)
        rows.append((s.step, *counts, _reason(s.reason, "question")))
    show(console, ("step", *counted, "because"), rows)


MESSAGE_SHOWN = 4000  # characters of a message on a terminal


def print_changes(console: Console, found: Changes) -> None:
    """Prints how a run's answers differ from an earlier run's; shows at most CHANGES_SHOWN of them."""
    counts = f"{found.common} questions in both runs, {found.new} new, {found.removed} gone"
    say(console, f"against run {found.before}: {counts}", style="bold", fold=True)
    other = sum(found.other_path.values())
    said = f"answers: {len(found.changed)} changed, {other} equal by another path"
    say(console, f"{said}, {found.same} unchanged", fold=True)
    _print_differences(console, found.differences)
    for c in found.changed[:CHANGES_SHOWN]:
        say(console, f"{c.question}  {c.query}", style="bold")
        because = ""
        if c.cause:
            first, *more = _difference(c.cause)
            named = f"{c.cause.stage}.{c.cause.field}"
            because = f", because {named} changed" if more else f", because {first}"
        say(console, f"  first changed step: {c.step}{because}")
        for when, given in (("before", c.before), ("after", c.after)):
            path = f"   {cut(given.path, PATH_SHOWN)}" if given.path else ""
            say(console, f"  {when:<6} {given.answer} [{given.outcome}]{path}")
    if (rest := len(found.changed) - CHANGES_SHOWN) > 0:
        say(console, f"... and {rest} more: changes.json has them all", fold=True)


CHANGES_SHOWN = 20  # changed answers shown on a terminal
PATH_SHOWN = 120  # characters shown of a step's output: a ranking has thousands


def _print_differences(console: Console, differences: Sequence[Difference]) -> None:
    """Prints the differences of a recipe, stage by stage."""
    say(console, *(f"  {line}" for d in differences for line in _difference(d)))


def _difference(d: Difference) -> list[str]:
    """Returns the lines that a difference has, or else one line with the values before and after."""
    if d.lines:
        return list(d.lines)
    before, after = cut(d.before, 60), cut(d.after, 60)
    return [f"{d.stage}.{d.field} was {before or 'not set'}, is {after or 'not set'}"]
