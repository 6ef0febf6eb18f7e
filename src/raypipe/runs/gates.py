"""Gates: conditions that a finished run must meet before it answers live questions.

A gate on a measure, such as `score>=0.1`, must hold at the unfavourable end of the confidence interval, so
luck with few questions does not pass it. For a gate with `==` or on a count, the number itself decides.
Relative gates compare a run with another run: `better`, `not-worse`, `not-worse:0.01`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from raypipe.core import config
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.metrics.paired_tests import FEWEST_GROUPS, MARGIN, Interval, rate_interval, score_interval
from raypipe.metrics.verdict_rules import CragScore
from raypipe.runs.record import Run

MIN_SCORED = 0.95
"""Least share of a run's questions that must be scored for a gate on a measure. A score over 1 of 4 questions
tells nothing about the other three."""

NAMED = 10  # unscored questions that a message lists, at most
COUNTED = ("questions", "citations", "distinct_pages", "empty_pages", "chunks", "without_truth")
"""Counts of a run that a gate may bound, like its measures and the numbers of its score."""


class GateFailed(RaypipeError):
    """Failure of a run to pass a gate; the run is not released."""

    exit_code = 7


def _failed(gate: str, why: str) -> GateFailed:
    return GateFailed(f"gate {gate}: {why}. live stays as it is")


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound on one number of a run: `score>=0.1`."""

    text: str
    metric: str
    comparison: str  # >=, <=, >, < or ==
    bound: float

    def holds(self, value: float) -> bool:
        return _COMPARE[self.comparison](value, self.bound)


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_GATE = re.compile(r"\A\s*([a-z_][a-z0-9_]*)\s*(>=|<=|==|>|<)\s*(-?(?:[0-9]*\.)?[0-9]+)\s*")


def gate(text: str) -> Gate:
    """Parses a gate. Raises ConfError if the text is not one."""
    if not (match := _GATE.fullmatch(text)):
        expected = f"better, not-worse, or METRIC, one of {' '.join(_COMPARE)}, and a number: score>=0.1"
        raise ConfError(f"gate {text!r}: expected {expected}")
    return Gate(text, match[1], match[2], float(match[3]))


def check(
    record: Run, gates: Sequence[Gate], min_scored: float = MIN_SCORED, unscored: Sequence[str] = ()
) -> None:
    """Raises GateFailed for the first gate that a run fails, and ConfError for an unknown metric.

    A gate fails if the run's number is missing or breaks the bound. A gate on a measure needs more: at least
    `min_scored` (0..1) of the questions are scored, they come in enough groups for a 95 % interval, and,
    except for `==`, the unfavourable end of the interval meets the bound. A run with answers kept from
    earlier runs fails every gate. `unscored` are ids of questions without a score, which messages name."""
    run = f"run {record.run}"
    if gates and record.kept:
        answers = f"{sum(record.kept.values())} of {record.questions} answers of {run}"
        why = f"{answers} were kept from earlier runs, so its numbers are not those of its recipe"
        raise _failed(gates[0].text, f"{why}. Run the eval without --only-new")
    means = {m.measure: m.mean for m in record.measures}
    counts = {name: getattr(record, name) for name in COUNTED}
    numbers = {**means, **counts, **(asdict(record.score) if record.score else {})}
    for g in gates:
        if g.metric not in numbers:
            known = config.did_you_mean(g.metric, numbers)
            raise ConfError(f"gate {g.text!r}: {run}, kind {record.kind} has no such metric; {known}")
        found = numbers[g.metric]
        if found is None:
            raise GateFailed(f"gate {g.text}: {run} has no {g.metric}: nothing was scored")
        measured = g.metric in means or g.metric in SHARES
        interval, mean, scored, total = _measured(g, record) if measured else (None, 0.0, 0, 0)
        if scored < min_scored * total:
            share = math.floor(100 * scored / total) / 100
            how = " (`raypipe eval ... --judge MODEL`)" if g.metric in SHARES else ""
            needed = math.ceil(min_scored * total) - scored
            raise _failed(
                g.text,
                f"{scored} of {total} questions of {run} are scored, expected at least {min_scored:.0%}: "
                f"{needed} more{_named(unscored)}. Score the others{how}, or allow it with --min-scored "
                f"{share:g}",
            )
        if not g.holds(float(found)):
            raise _failed(g.text, f"{run} has {g.metric} {found:g}{seen_by_a_fit(record.seen)}")
        if measured and interval is None:
            few = f"the questions of {run} come in too few groups for an interval"
            raise _failed(g.text, f"{few}, expected at least {FEWEST_GROUPS}")
        # The end of the interval that must meet the bound; None for `==`, which no interval can prove.
        end = interval and {">": interval[0], "<": interval[1]}.get(g.comparison[0])
        if interval and end is not None and not g.holds(end):
            raise _failed(
                g.text,
                f"{run} has {g.metric} {mean:g} over {scored} questions, 95 % interval {interval[0]:.3f} to "
                f"{interval[1]:.3f}, and the bound has to hold for all of it{_named(unscored)}"
                f"{seen_by_a_fit(record.seen)}",
            )


def _measured(gate: Gate, record: Run) -> tuple[Interval | None, float, int, int]:
    """Returns a measure's interval (None: too few groups), value, and numbers of scored and all questions."""
    if (m := record.measure(gate.metric)) is not None:
        return m.interval, m.mean or 0.0, m.scored, m.of
    assert record.score is not None
    score = record.score
    right, missing, wrong = score.n_correct, score.n_miss, score.n_hallucination
    if gate.metric == "score":
        interval = score_interval(right, missing, wrong)
    else:
        interval = rate_interval(getattr(score, _HITS[gate.metric]), right + missing + wrong)
    return interval, getattr(score, gate.metric), *scored_of(score)


def seen_by_a_fit(questions: int) -> str:
    """Returns a warning that a fit or adapter has seen `questions` of the run's questions; "" for 0."""
    by = "a fit or an adapter of its recipe"
    return (
        f"; {questions} of its questions were seen by {by}, so its scores are too good" if questions else ""
    )


def _named(unscored: Sequence[str]) -> str:
    """Formats the number of unscored questions and the first NAMED ids, for a message."""
    more = ", ..." * (len(unscored) > NAMED)
    listed = f"{', '.join(unscored[:NAMED])}{more}"
    return f"; not scored: {len(unscored)} ({listed})" if unscored else ""


def scored_of(score: CragScore) -> tuple[int, int]:
    """Returns the numbers of scored questions and of all questions."""
    return score.total - score.n_unscored, score.total


_HITS = {
    "accuracy": "n_correct",
    "hallucination": "n_hallucination",
    "missing": "n_miss",
    "exact_accuracy": "n_correct_exact",
}
SHARES = frozenset({"score", *_HITS})
"""Numbers of a run that are computed from its scored questions."""


_RELATIVE = re.compile(r"\A\s*(better|not-worse)(?::((?:[0-9]*\.)?[0-9]+))?\s*")


@dataclass(frozen=True, slots=True)
class RelativeGate:
    """A bound on the difference of two runs over the same questions."""

    text: str
    better: bool  # False: the gate allows a run that is at most `margin` worse
    margin: float


def relative_gate(text: str) -> RelativeGate | None:
    """Parses a relative gate; returns None if the text is not one. Raises ConfError if the margin is 0, or if
    `better` has a margin.

    >>> relative_gate("not-worse:0.01")
    RelativeGate(text='not-worse:0.01', better=False, margin=0.01)
    >>> relative_gate("score>=0.1")
    """
    if (match := _RELATIVE.fullmatch(text)) is None:
        return None
    margin = MARGIN if match[2] is None else float(match[2])
    if not margin or (match[2] is not None and match[1] == "better"):
        raise ConfError(f"gate {text!r}: expected better, not-worse, or not-worse:M with M above 0")
    return RelativeGate(text.strip(), match[1] == "better", margin)
