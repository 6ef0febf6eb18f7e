"""Kinds of data, such as `crag` and `qa`. A kind has a form of golds (correct answers), measures, and blocks
of its report. It is opened by its name, or as a plugin by its path: `mypkg.kinds:Choices`.

A kind must have `measures` and `values`. Everything else is optional: this module supplies the defaults, so
no caller tests the class of a kind. The module depends only on predictions and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from raypipe.core import plugins
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.plugins import is_path, own_code
from raypipe.core.records import PAPER, UNANSWERABLE, paragraph
from raypipe.metrics import overlap, verdict_rules
from raypipe.metrics.losses import by_size
from raypipe.metrics.own_values import checked_values, path_of
from raypipe.metrics.paired_tests import Interval, mean_interval, score_interval
from raypipe.metrics.verdict_rules import Marks, Prediction, Rule
from raypipe.text.replies import abstains

GoldForm: TypeAlias = Literal["answers", "grades", "annotators"]
"""Forms of a gold: answers, judged documents, or annotators' answers with their evidence."""

LEADS_FROM = 0.95
"""Least share of the most-scored measure's questions that a report's leading measure must score."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number computed for each scored question."""

    name: str  # in gates, files and tables: lower case, digits and _
    about: str  # half a sentence for people
    low: float = 0.0  # least possible value
    high: float = 1.0  # largest possible value
    less_is_better: bool = False


class DataKind(Protocol):
    @property
    def measures(self) -> tuple[Measure, ...]:
        """Measures of the kind. Comparisons use the first one by default. Reports begin with the first one
        that scores enough questions (`LEADS_FROM`)."""

    def values(self, row: Prediction) -> Mapping[str, float]:
        """Computes measure -> value for one question with a gold. Omitted measures are not scored."""


def gold_form(kind: DataKind) -> GoldForm:
    """Returns the form of gold that the kind scores by: its attribute `golds`, by default answers."""
    form: GoldForm = getattr(kind, "golds", "answers")
    return form


def group_of(kind: DataKind) -> str | None:
    """Returns the attribute `group`, by default None: a label whose equal values mark dependent questions."""
    return getattr(kind, "group", None)


def grouped(label: str | None, labels: Mapping[str, Mapping[str, str]]) -> list[str] | None:
    """Returns the group of each question: its value of `label`, else its own id. None if `label` is None."""
    return None if label is None else [named.get(label, q) for q, named in labels.items()]


def rule_of(kind: DataKind) -> Rule | None:
    """Returns the attribute `rule`, by default None: a scoring rule, which may leave questions to a judge."""
    return getattr(kind, "rule", None)


def right_of(kind: DataKind, values: Mapping[str, float], question: str) -> bool | None:
    """Returns whether the answer with these values is right; None: not scored. The kind's method `right`
    decides. Default: an answer is right if its first measure has the largest possible value."""
    if (right := getattr(kind, "right", None)) is not None:
        with own_code("kind", path_of(kind), f"question {question}", "True, False or None"):
            said: bool | None = right(values)
        return said
    first = kind.measures[0]
    return None if first.name not in values else values[first.name] >= first.high


def marks_of(kind: DataKind, rows: Sequence[Prediction]) -> Marks:
    """Returns the verdicts on these rows with their score, by the kind's method `marks`; by default none."""
    marks = getattr(kind, "marks", None)
    with own_code("kind", path_of(kind), f"{len(rows)} questions", "marks"):
        return verdict_rules.NO_MARKS if marks is None else marks(rows)


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    measure: str
    mean: float | None  # over the scored questions; None: no question is scored
    interval: Interval | None  # 95 % interval of the mean; None: nothing scored, or too few groups
    scored: int  # scored questions
    of: int  # questions with a gold
    low: float  # range of the measure
    high: float


@dataclass(frozen=True, slots=True)
class MeasureSlice:
    """Leading measure of the questions that share one label."""

    label: str
    value: str
    mean: float | None
    interval: Interval | None
    scored: int
    of: int


@dataclass(frozen=True, slots=True)
class RunScores:
    kind: str  # name of the kind, as in `kind_id`
    lead: str  # the measure that a report begins with
    measures: tuple[MeasureSummary, ...] = ()  # in the order of the kind
    slices: tuple[MeasureSlice, ...] = ()  # slices of the leading measure
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # question -> measure -> value
    blocks: tuple[str, ...] = ()  # blocks of the report

    def of(self, measure: str) -> MeasureSummary:
        """Returns the summary of one measure. Raises KeyError if the kind does not have it."""
        return {m.measure: m for m in self.measures}[measure]


def score(kind: DataKind, name: str, rows: Sequence[Prediction]) -> RunScores:
    """Computes the measures of these predictions, with means and slices. `name` is the kind's name in
    reports. Raises DataError as `checked_values` does."""
    values = checked_values(kind, name, rows)
    summaries = tuple(summary_of(kind, m.name, values, rows) for m in kind.measures)
    most = max(s.scored for s in summaries)
    lead = next(s.measure for s in summaries if s.scored >= LEADS_FROM * most)
    slices = []
    for (label, value), members in by_size((r.labels, r) for r in rows):
        if label != group_of(kind):  # no slice for each paper
            of = summary_of(kind, lead, values, members)
            slices.append(MeasureSlice(label, value, of.mean, of.interval, of.scored, of.of))
    blocks = tuple(getattr(kind, "blocks", ("measures",)))  # names in report/blocks
    return RunScores(name, lead, summaries, tuple(slices), values, blocks)


def summary_of(
    kind: DataKind, measure: str, values: Mapping[str, Mapping[str, float]], rows: Sequence[Prediction]
) -> MeasureSummary:
    """Summarizes one measure over these rows. `values` maps question ids to measures to values."""
    m = next(m for m in kind.measures if m.name == measure)
    labels = {r.question: r.labels for r in rows if measure in values[r.question]}
    scored, groups = [values[q][measure] for q in labels], grouped(group_of(kind), labels)
    mean = sum(scored) / len(scored) if scored else None
    interval: Interval | None = None
    if scored and groups is None and (m.low, m.high) == (-1, 1) and set(scored) <= {-1, 0, 1}:
        interval = score_interval(*(sum(v == x for v in scored) for x in (1, 0, -1)))  # as for CRAG
    elif scored:
        interval = mean_interval(scored, (m.low, m.high), groups)
    return MeasureSummary(measure, mean, interval, len(scored), len(rows), m.low, m.high)


def missing_part(kind: Any) -> str | None:
    """Describes the first part that an object lacks to be a kind; None if it is complete."""
    measures = getattr(kind, "measures", None)
    if not isinstance(measures, tuple | list) or not measures:
        return "measures, one Measure or more"
    if strange := [m for m in measures if not isinstance(m, Measure)]:
        return f"measures of class Measure, not {strange[0]!r:.60}"
    if not callable(getattr(kind, "values", None)):
        return "values, a function of a Prediction"
    return None


def open_kind(name: str, rule: Rule | None = None, judged: bool = False) -> DataKind:
    """Opens the kind of this name or path. `rule` is a scoring rule for a kind that has rules; None: its own.
    `judged` says whether a judge decides the questions that the rule leaves open.

    Raises ConfError for an unknown or incomplete kind, and for a rule or a judge that it cannot use.
    """
    if is_path(name):
        found, _ = plugins.load(name, "a kind of data")
        with own_code("kind", name, "its class", "a kind of data"):
            kind: DataKind = found() if isinstance(found, type) else found
        if (lacking := missing_part(kind)) is not None:
            raise ConfError(f"{name}: expected a kind of data with {lacking}")
    elif name in KINDS:
        kind = KINDS[name]()
    else:
        raise ConfError(f"kind {name!r}: {did_you_mean(name, KINDS)}, or MODULE:NAME of one of your own")
    if rule is not None:
        if (ruled := getattr(kind, "with_rule", None)) is None:
            raise ConfError(f"--rule {rule}: kind {name} scores by no rule. {_RULES}")
        kind = ruled(rule)
    if judged and rule_of(kind) is None:
        raise ConfError(f"--judge: kind {name} leaves no question open for a judge. {_RULES}")
    return kind


_RULES = "--kind crag scores answers by CRAG's rules, and a judge decides what they leave open"


def recorded_kind(name: str, rule: Rule | None = None) -> DataKind:
    """Opens a kind by its name in a report; a digest in the name is ignored. `rule` is as in `open_kind`."""
    return open_kind(name.partition("@")[0], rule)


def kind_id(name: str) -> str:
    """Returns a kind's name for reports. A plugin's name is its path with a digest of its source."""
    if not is_path(name):
        return name
    return f"{name}@{plugins.load(name, 'a kind of data')[1].source[:8]}"


MEASURES = (
    Measure("f1", "F1 of the words that the answer shares with the best truth (SQuAD)"),
    Measure("exact_match", "the answer equals a truth (SQuAD)"),
    Measure("contains", "the answer contains a truth"),
)


@dataclass(frozen=True, slots=True)
class Qa:
    """Questions with one or several accepted answers. Needs no judge."""

    measures: ClassVar[tuple[Measure, ...]] = MEASURES

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Returns whether the answer contains a truth; None for a question that failed."""
        return values["contains"] > 0 if "contains" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        if row.prediction is None:
            return {}
        return {
            "f1": overlap.token_f1(row.prediction, row.truths),
            "exact_match": overlap.exact_match(row.prediction, row.truths),
            "contains": overlap.contains(row.prediction, row.truths),
        }


@dataclass(frozen=True, slots=True)
class Crag:
    """Questions with one verdict each. An answer that the rule leaves open is unscored without a judge."""

    rule: Rule = verdict_rules.DEFAULT_RULE

    blocks: ClassVar[tuple[str, ...]] = ("measures", "verdicts")
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("score", "accuracy less hallucination (CRAG)", low=-1.0),
        *MEASURES,
        Measure("accuracy", "the verdict is right (CRAG)"),
        Measure("hallucination", "the verdict is wrong (CRAG)", less_is_better=True),
    )

    def values(self, row: Prediction) -> Mapping[str, float]:
        value = verdict_rules.VALUES.get(verdict_rules.judge(row, self.rule).outcome)
        of_answer = Qa().values(row)
        if value is None:
            return of_answer
        rates = {"accuracy": float(value > 0), "hallucination": float(value < 0)}
        return {"score": value, **rates, **of_answer}

    def with_rule(self, rule: Rule) -> Crag:
        verdict_rules.rule_id(rule)  # raises ConfError for an unknown rule
        return Crag(rule)

    def marks(self, rows: Sequence[Prediction]) -> Marks:
        return verdict_rules.mark(rows, self.rule)


def said_of_paper(answer: str, evidence: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Converts an answer about a paper, with its evidence, to the form of QASPER's evaluator. An answer that
    abstains or says "Unanswerable" becomes "Unanswerable" without evidence.

    >>> said_of_paper("I don't know", ["a"]), said_of_paper("Yes", ["a"])
    (('Unanswerable', ()), ('Yes', ['a']))
    """
    none = abstains(answer) or overlap.exact_match(answer, (UNANSWERABLE,))
    return (UNANSWERABLE, ()) if none else (answer, evidence)


@dataclass(frozen=True, slots=True)
class Qasper:
    """Questions that annotators answered from a paper. An abstention counts as "Unanswerable" without
    evidence. Paragraphs are compared with white space folded; figures and tables are compared by captions. A
    gold without annotators is not scored. The questions of one paper form a group of dependent questions."""

    golds: ClassVar[GoldForm] = "annotators"
    group: ClassVar[str] = PAPER
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("answer_f1", "F1 of the words that the answer shares with the best annotator (QASPER)"),
        Measure("evidence_f1", "F1 of the paragraphs that the evidence shares with the best annotator"),
        Measure("text_evidence_f1", "evidence F1 without figures and tables"),
        Measure("answer_f1_extractive", "answer F1 if the best annotator quotes the paper"),
        Measure("answer_f1_abstractive", "answer F1 if the best annotator answers in own words"),
        Measure("answer_f1_boolean", "answer F1 if the best annotator says yes or no"),
        Measure("answer_f1_none", "answer F1 if the best annotator says that there is no answer"),
    )

    def values(self, row: Prediction) -> Mapping[str, float]:
        if row.prediction is None or not row.annotators:
            return {}
        answer, evidence = said_of_paper(row.prediction, row.evidence)
        f1, kind = overlap.answer_f1(answer, row.annotators)
        folded, text = (  # evidence in the form of the parsed paper
            [replace(a, evidence=tuple(map(paragraph, a.evidence))) for a in said]
            for said in (row.annotators, overlap.without_floats(row.annotators))
        )
        return {
            "answer_f1": f1,
            "evidence_f1": overlap.evidence_f1(evidence, folded),
            "text_evidence_f1": overlap.evidence_f1(evidence, text),
            f"answer_f1_{kind}": f1,
        }


@dataclass(frozen=True, slots=True)
class Ranking:
    """Queries whose documents have relevance grades, relevant from 1 on. Answers are not scored."""

    golds: ClassVar[GoldForm] = "grades"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ndcg_cut_10", "gain of the first 10 documents, discounted by rank (nDCG@10)"),
        Measure("map", "mean of the precision at each relevant document (MAP)"),
        Measure("map_cut_20", "MAP of the first 20 documents (MAP@20)"),
        Measure("map_cut_20_min", "MAP@20 over at most 20 relevant documents"),
        Measure("recip_rank", "1 / rank of the first relevant document (MRR)"),
        Measure("recall_5", "share of the relevant documents among the first 5"),
        Measure("recall_20", "share of the relevant documents among the first 20"),
        Measure("recall_100", "share of the relevant documents among the first 100"),
    )

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Returns whether a relevant document is among the ten that nDCG@10 covers; None if not scored."""
        return values["recip_rank"] >= 1 / 10 if "recip_rank" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        from raypipe.metrics import ranking  # trec_eval's library, which no other kind needs

        if row.ranked is None:
            return {}
        run = {d: float(len(row.ranked) - i) for i, d in enumerate(row.ranked)}
        return ranking.score({row.question: run}, {row.question: row.grades}).per_query[row.question]


KINDS: Mapping[str, Callable[[], DataKind]] = {"crag": Crag, "qa": Qa, "qasper": Qasper, "ranking": Ranking}
