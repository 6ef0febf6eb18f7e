"""The contract of a data set's kind: what its golds are, what is measured with them, what a report shows.

A kind has `measures` and `values`. All else is optional, and this module answers for the kinds that do not
say it; nothing here, and nothing that calls it, asks which class a kind is. Knows predictions and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from raypipe.core.errors import DataError
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


def group_of(kind: DataKind) -> str | None:
    """The attribute `group`: the label of questions that move together, as those of one paper do. By default
    each question is by itself."""
    return getattr(kind, "group", None)


def grouped(label: str | None, labels: Mapping[str, Mapping[str, str]]) -> list[str] | None:
    """Returns the group of each question; None: each is by itself. One without the label is a group of its
    own. `labels`: question -> its labels."""
    return None if label is None else [named.get(label, q) for q, named in labels.items()]


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
    values = {r.question: _in_range(kind, name, r.question, kind.values(r)) for r in rows}
    group = group_of(kind)
    summaries = tuple(_summary(m, values, rows, group) for m in kind.measures)
    most = max(s.scored for s in summaries)
    lead = next(s.measure for s in summaries if s.scored >= LEADS_FROM * most)
    measure = next(m for m in kind.measures if m.name == lead)
    slices = []
    for (label, value), members in by_size((r.labels, r) for r in rows):
        if label != group:  # a paper is no slice
            of = _summary(measure, values, members, group)
            slices.append(MeasureSlice(label, value, of.mean, of.interval, of.scored, of.of))
    blocks = tuple(getattr(kind, "blocks", ("measures",)))  # of report/blocks
    return RunScores(name, lead, summaries, tuple(slices), values, blocks)


def summary_of(
    kind: DataKind, measure: str, values: Mapping[str, Mapping[str, float]], rows: Sequence[Prediction]
) -> MeasureSummary:
    """Returns one measure over some questions of a run, of which `values` has those that are scored."""
    found = next(m for m in kind.measures if m.name == measure)
    return _summary(found, values, [r for r in rows if r.question in values], group_of(kind))


def _in_range(kind: DataKind, name: str, question: str, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the values of a question. Raises DataError for one outside of its measure's range."""
    for m in kind.measures:
        if m.name in values and not m.low <= values[m.name] <= m.high:
            raise DataError(
                f"kind {name}, question {question}: expected {m.name} from {m.low:g} to {m.high:g}, found "
                f"{values[m.name]:g}. Give the Measure the low and high that its values have"
            )
    return dict(values)


def _summary(
    m: Measure, values: Mapping[str, Mapping[str, float]], rows: Sequence[Prediction], group: str | None
) -> MeasureSummary:
    labels = {r.question: r.labels for r in rows if m.name in values[r.question]}
    scored, groups = [values[q][m.name] for q in labels], grouped(group, labels)
    mean = sum(scored) / len(scored) if scored else None
    interval: Interval | None = None
    if scored and groups is None and (m.low, m.high) == (-1, 1) and set(scored) <= {-1, 0, 1}:
        interval = score_interval(*(sum(v == x for v in scored) for x in (1, 0, -1)))  # as CRAG's own has it
    elif scored:
        interval = mean_interval(scored, (m.low, m.high), groups)
    return MeasureSummary(m.name, mean, interval, len(scored), len(rows), m.low, m.high)


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
