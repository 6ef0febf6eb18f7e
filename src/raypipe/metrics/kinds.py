"""The contract of a data set's kind: what its golds are, what is measured with them, what a report shows.

A kind has `measures` and `values`. All else is optional, and this module answers for the kinds that do not
say it; nothing here, and nothing that calls it, asks which class a kind is. Knows predictions and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from raypipe.metrics.certainty import Interval, mean_interval, score_interval
from raypipe.metrics.crag import NO_MARKS, Marks, Prediction, Rule
from raypipe.metrics.losses import by_size

GoldForm: TypeAlias = Literal["answers", "grades", "annotators"]
"""Forms of a gold: answers, judged documents, or answers of annotators with their evidence."""

LEADS_FROM = 0.95
"""Share of the best-covered questions that a measure must score to lead a report."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of each scored question."""

    name: str  # in gates, files and tables: lower case, digits and _
    about: str  # half a sentence for people
    low: float = 0.0  # least value of a question
    high: float = 1.0  # largest value
    less_is_better: bool = False


class DataKind(Protocol):
    @property
    def measures(self) -> tuple[Measure, ...]:
        """Returns what is measured. The first leads comparisons, and a report where it scores the
        questions."""
        ...

    def values(self, row: Prediction) -> Mapping[str, float]:
        """Measure -> value of one question that has a gold. A measure that is left out is not scored."""
        ...


def gold_form(kind: DataKind) -> GoldForm:
    """The attribute `golds`: what a gold must have to be scored by. By default answers."""
    form: GoldForm = getattr(kind, "golds", "answers")
    return form


def rule_of(kind: DataKind) -> Rule | None:
    """The attribute `rule`: the rule that leaves questions to a judge. By default there is none."""
    return getattr(kind, "rule", None)


def with_rule(kind: DataKind, rule: Rule) -> DataKind | None:
    """Returns what the method `with_rule` says: the kind, scoring by another rule. By default no kind can."""
    make = getattr(kind, "with_rule", None)
    return None if make is None else make(rule)


def right_of(kind: DataKind, values: Mapping[str, float]) -> bool | None:
    """Returns what the method `right` says of the values of one question: whether its answer is right, None:
    that is not scored. By default an answer is right where the first measure is as large as it can be."""
    right = getattr(kind, "right", None)
    if right is not None:
        said: bool | None = right(values)
        return said
    first = kind.measures[0]
    return None if first.name not in values else values[first.name] >= first.high


def marks_of(kind: DataKind, rows: Sequence[Prediction]) -> Marks:
    """Returns what the method `marks` says: verdicts of a rule, and their score. By default no question has
    one."""
    marks = getattr(kind, "marks", None)
    return NO_MARKS if marks is None else marks(rows)


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    measure: str
    mean: float | None  # over the scored questions; None: there is none
    interval: Interval | None  # 95 % interval of the mean, for other questions of the same kind
    scored: int  # questions behind the mean
    of: int  # questions with a gold
    low: float  # range of the measure
    high: float


@dataclass(frozen=True, slots=True)
class MeasureSlice:
    """The leading measure of the questions that share one label."""

    label: str
    value: str
    mean: float | None
    interval: Interval | None
    scored: int
    of: int


@dataclass(frozen=True, slots=True)
class RunScores:
    kind: str  # its name; of one from outside its path and source
    lead: str  # the measure that a report begins with
    measures: tuple[MeasureSummary, ...] = ()  # in the order of the kind
    slices: tuple[MeasureSlice, ...] = ()  # of the leading measure
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # question -> measure -> value
    blocks: tuple[str, ...] = ()  # of the report

    def of(self, measure: str) -> MeasureSummary:
        """The summary of one measure. Raises KeyError for one that the kind does not have."""
        return {m.measure: m for m in self.measures}[measure]


NOT_SCORED = RunScores("", "", blocks=("verdicts",))


def score(kind: DataKind, name: str, rows: Sequence[Prediction]) -> RunScores:
    """The measures of the questions of a run that have a gold. `name`: of the kind, for reports."""
    values = {r.question: dict(kind.values(r)) for r in rows}
    found = ((m, [v[m.name] for v in values.values() if m.name in v]) for m in kind.measures)
    summaries = tuple(_summary(m, some, len(rows)) for m, some in found)
    most = max(s.scored for s in summaries)
    lead = next(s.measure for s in summaries if s.scored >= LEADS_FROM * most)
    measure = next(m for m in kind.measures if m.name == lead)
    slices = []
    for (label, value), members in by_size((r.labels, values[r.question]) for r in rows):
        scored = [v[lead] for v in members if lead in v]
        slices.append(MeasureSlice(label, value, *_mean(measure, scored), len(scored), len(members)))
    blocks = tuple(getattr(kind, "blocks", ("measures",)))  # of report/blocks
    return RunScores(name, lead, summaries, tuple(slices), values, blocks)


def summary_of(
    kind: DataKind, measure: str, values: Mapping[str, Mapping[str, float]], questions: Sequence[str]
) -> MeasureSummary:
    """Returns one measure over some questions of a run, of which `values` has those that are scored."""
    of = [values[q] for q in questions if q in values]
    found = next(m for m in kind.measures if m.name == measure)
    return _summary(found, [v[measure] for v in of if measure in v], len(of))


def _summary(measure: Measure, values: Sequence[float], of: int) -> MeasureSummary:
    mean, interval = _mean(measure, values)
    return MeasureSummary(measure.name, mean, interval, len(values), of, measure.low, measure.high)


def _mean(measure: Measure, values: Sequence[float]) -> tuple[float | None, Interval | None]:
    if not values:
        return None, None
    if (measure.low, measure.high) == (-1, 1) and set(values) <= {-1, 0, 1}:  # as CRAG's own score has it
        interval: Interval | None = score_interval(*(sum(v == x for v in values) for x in (1, 0, -1)))
    else:
        interval = mean_interval(values, (measure.low, measure.high))
    return sum(values) / len(values), interval


def missing_part(kind: Any) -> str | None:
    """Returns what an object lacks to be a kind; None for one that is."""
    measures = getattr(kind, "measures", None)
    if not isinstance(measures, tuple | list) or not measures:
        return "measures, one Measure or more"
    if strange := [m for m in measures if not isinstance(m, Measure)]:
        return f"measures of class Measure, not {strange[0]!r:.60}"
    if not callable(getattr(kind, "values", None)):
        return "values, a function of a Prediction"
    return None
