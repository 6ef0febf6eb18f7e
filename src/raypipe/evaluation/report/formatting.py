"""Formats of numbers, costs and ranges for people, and the choice of slices to show. Pure functions.

An unknown value is never shown as 0. Without a price, for example, a cost is "no price".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from raypipe.core.progress import clock
from raypipe.runs.run_parts import CostReport, Estimate, LabelLine

if TYPE_CHECKING:  # numpy and Arrow, which scores of a file do not need
    from raypipe.core.index import AnnRecall
    from raypipe.metrics.calibration import CalibrationReport
    from raypipe.runs.pipeline.recipe_tables import AnnState
    from raypipe.runs.record import Run

MOST = 12  # values of a shown label: CRAG's labels have at most 8; run.json has all labels


def fit_lines(record: Run) -> list[str]:
    """Returns lines on how many questions a fit has seen, and a line with the mean on unseen questions."""
    lines = [
        f"seen: {f.seen} of {f.of} questions were among the {f.n} that {f.step} was fitted on "
        f"({f.split}): their scores are too good"
        for f in record.fits
        if f.seen
    ]
    if (rest := record.unseen) is not None and rest.scored:
        within = f", 95 % {ends(rest.interval)}" if rest.interval else ""
        mean = f"{rest.measure} {measured(rest.mean)}"
        lines.append(f"not seen: {mean} on the other {rest.scored}{within}")
    return lines


def ann_line(found: AnnRecall) -> str:
    """Formats the recall of an approximate search against the exact one."""
    kind = found.index.rpartition("_")[0]
    return f"approximate: {recall_text(found)} ({kind}, {found.probes} probes, refine {found.refine})"


def recall_text(found: AnnRecall) -> str:
    return (
        f"recall of the exact best {found.top} on {found.questions} questions: mean "
        f"{found.mean:.3f}, 5 % at or below {found.fifth:.3f}, worst {found.worst:.3f}"
    )


def ann_plan(state: AnnState) -> str:
    """Returns the state of an approximate index: not built, incomplete, not measured, or its recall."""
    of = f"{state.stage}: {state.kind} over {state.rows:,} vectors"
    if not state.index:
        return f"{of} is not built: the eval builds it once they are there, and measures its recall"
    if state.unindexed:
        return f"{of} lacks {state.unindexed:,} that came later: the eval builds it again"
    if state.recall is None:
        return f"{of} was not measured with these settings: the eval measures it"
    return f"{of}: {recall_text(state.recall)}"


def calibration_line(name: str, c: CalibrationReport) -> str:
    """Formats the calibration of probabilities."""
    return (
        f"{name} of {c.n} answers: ECE {c.ece:.3f} [{c.ece_interval[0]:.3f}, {c.ece_interval[1]:.3f}], "
        f"{c.ece_if_perfect:.3f} if it were exact; Brier {c.brier:.3f}; area under risk and coverage "
        f"{c.risk_area:.3f} [{c.risk_area_interval[0]:.3f}, {c.risk_area_interval[1]:.3f}]"
    )


def listed(counts: Mapping[str, object]) -> str:
    """Formats names with their counts.

    >>> listed({"parse": 3, "rank": 1})
    'parse 3, rank 1'
    """
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def headline(record: Run) -> str:
    """Formats a run's result in one line: answers by verdict, or a ranking's leading measure."""
    said = ", ".join(f"{n} {name}" for name, n in record.answers.items() if n)
    return said or f"{lead_text(record)}, {record.questions} questions ranked"


def lead_text(record: Run) -> str:
    """Formats the leading measure with its interval; if it has no mean, the score by the rule."""
    lead, said = record.measure(record.lead), signed if record.lead == "score" else measured
    if lead is None or lead.mean is None:
        score = record.score.score if record.score else None
        return "nothing was scored" if score is None else f"{signed(score)}, rule {record.rule}"
    interval = f", 95 % interval {ends(lead.interval, said)}" if lead.interval else ""
    of = f" on {lead.scored} of {lead.of}" if lead.scored < lead.of else ""
    rule = f", rule {record.rule}" if record.rule and record.lead == "score" else ""
    name = "" if record.lead == "score" else f"{record.lead} "
    return f"{name}{said(lead.mean)}{of}{interval}{rule}"


def label_text(found: LabelLine) -> str:
    """Formats the effect of people's labels on the verdicts."""
    return (
        f"people outrank judges: {found.used} of the {found.labels} labels of {found.file} are of "
        f"answers of this run, {found.changed} verdicts are people's"
    )


class Labelled(Protocol):
    """A slice: the questions that share one value of a label."""

    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=Labelled)


def told_apart(slices: Sequence[L]) -> tuple[list[L], dict[str, int]]:
    """Chooses the slices to show. Also returns the omitted labels with their numbers of values. Omits a label
    with one value, which adds nothing to the total, and one with over MOST values, which hides the others."""
    sizes = Counter(s.label for s in slices)
    shown = {label for label, values in sizes.items() if 1 < values <= MOST}
    return [s for s in slices if s.label in shown], {k: n for k, n in sizes.items() if k not in shown}


def or_unscored(form: Callable[[float], str]) -> Callable[[float | None], str]:
    """Extends `form`, a format of numbers, to None, which becomes "not scored"."""
    return lambda value: "not scored" if value is None else form(value)


signed, measured = or_unscored("{:+.3f}".format), or_unscored("{:.3f}".format)
"""Formats of a score in -1..1 with its sign, and of the mean of a measure."""
share = or_unscored(lambda value: f"{100 * value:.1f} %")
"""Format of a share in 0..1, as a percentage."""


def ends(interval: Sequence[float] | None, said: Callable[[float], str] = measured, unknown: str = "") -> str:
    """Formats an interval by its two ends. Returns `unknown` if the interval is None."""
    return unknown if interval is None else f"{said(interval[0])} to {said(interval[1])}"


def cut(text: str, most: int, end: str = "\u2026") -> str:
    """Shortens a text of over `most` characters to at most `most`, with `end` included. Cuts at a word's end
    if that loses at most a third.

    >>> cut("The pump has a warranty", 18), cut("x" * 9, 4)
    ('The pump has a\u2026', 'xxx\u2026')
    """
    if len(text) <= most:
        return text
    kept = text[: most - len(end)]
    words = kept.rpartition(" ")[0].rstrip() if not text[len(kept)].isspace() else kept.rstrip()
    return (words if 3 * len(words) > 2 * len(kept) else kept) + end


def seconds(value: float) -> str:
    """Formats a duration.

    >>> seconds(7.25), seconds(75), seconds(3725)
    ('7.2 s', '1:15 min', '1:02:05 h')
    """
    if value < 60:
        return f"{value:.1f} s"
    return f"{clock(value)} {'h' if round(value) >= 3600 else 'min'}"


UNKNOWN = "not known"


def ranged(found: Sequence[float] | None) -> str:
    """Formats a range of whole numbers.

    >>> ranged([10, 2500]), ranged([7, 7]), ranged(None)
    ('10 to 2,500', '7', 'not known')
    """
    return between(found, "{:,.0f}".format)


def hours(found: Sequence[float] | None) -> str:
    """Formats a range of hours as durations."""
    return between(found, lambda n: seconds(3600 * n))


def usd(found: Sequence[float] | float | None) -> str:
    """Formats an amount of US dollars, or a range.

    >>> usd(0.5), usd([1, 12.345]), usd(0.00012), usd(None)
    ('0.50', '1.00 to 12.35', '0.00012', 'no price')
    """
    if found is None:
        return "no price"
    both = [found, found] if isinstance(found, int | float) else found
    return between(both, lambda n: f"{n:,.2f}" if n >= 0.01 or n == 0 else f"{n:.2g}")


def between(found: Sequence[Any] | None, said: Callable[[Any], str], to: str = " to ") -> str:
    """Formats a range by formatting each end with `said`. Two equal texts become one. None gives UNKNOWN."""
    if found is None or None in found:
        return UNKNOWN
    low, high = map(said, found)
    return low if low == high else f"{low}{to}{high}"


def cost_line(cost: Estimate, unpriced: Sequence[str]) -> str:
    """Formats a plan's expected cost in a line. `unpriced` are the models without a price."""
    parts = [f"hours on the clock {hours(cost.hours)}"]
    for name, found, said in (("GPU-hours", cost.gpu_hours, _gpu), ("tokens", cost.tokens, ranged)):
        if found is None or any(found):
            parts.append(f"{name} {said(found)}")
    money = UNKNOWN if cost.usd is None else usd(cost.usd)
    lacking = f" (no price: {', '.join(unpriced)})" if unpriced else ""
    return f"cost: {', '.join(parts)}; US dollars {money}{lacking}"


def _gpu(found: Sequence[float] | None) -> str:
    return between(found, "{:.3g}".format)


def cost_rows(cost: CostReport) -> list[tuple[str, str, str]]:
    """Returns the rows of the cost table: name, estimate, actual."""
    e, a = cost.estimate, cost.actual
    most = "" if e.max_calls is None else f", at most {e.max_calls:,}"
    rows = [("calls", f"{ranged(e.calls)}{most}", f"{a.calls:,}")]
    if a.tokens or (e.tokens or [0, 1])[1]:
        rows.append(("tokens", ranged(e.tokens), f"{a.tokens:,}"))
    rows.append(("time of computing", hours(e.hours), seconds(3600 * a.hours)))
    if a.gpu_hours or (e.gpu_hours or [0, 0])[1]:
        rows.append(("GPU-hours", _gpu(e.gpu_hours), f"{a.gpu_hours:.3g}"))
    if a.usd is not None:
        rows.append(("US dollars", UNKNOWN if e.usd is None else usd(e.usd), usd(a.usd)))
        if cost.unpriced:
            rows.append(("no price", ", ".join(cost.unpriced), ""))
    return rows
