"""The kinds of data, opened by name or by the path of one from outside: `mypkg.kinds:Choices`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from raypipe.core import plugins
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.plugins import is_path
from raypipe.core.records import PAPER, UNANSWERABLE, AnnotatorAnswer, paragraph
from raypipe.metrics import overlap
from raypipe.metrics.crag import DEFAULT_RULE, VALUES, Marks, Prediction, Rule, judge, mark, rule_id
from raypipe.metrics.kinds import DataKind, GoldForm, Measure, missing_part, rule_of, with_rule
from raypipe.text.replies import abstains


def open_kind(name: str, rule: Rule | None = None, judged: bool = False) -> DataKind:
    """The kind of this name. `rule`: of scoring, for a kind that has rules; None: its own. `judged`:
    whether a judge is to decide what the rule leaves open.

    Raises ConfError for no kind, and for a rule or a judge that the kind cannot use.
    """
    if is_path(name):
        found, _ = plugins.load(name, "a kind of data")
        kind: DataKind = found() if isinstance(found, type) else found
        if (lacking := missing_part(kind)) is not None:
            raise ConfError(f"{name}: expected a kind of data with {lacking}")
    elif name in KINDS:
        kind = KINDS[name]()
    else:
        raise ConfError(f"kind {name!r}: {did_you_mean(name, KINDS)}, or MODULE:NAME of one of your own")
    if rule is not None:
        ruled = with_rule(kind, rule)
        if ruled is None:
            raise ConfError(f"--rule {rule}: kind {name} scores by no rule. {_RULES}")
        kind = ruled
    if judged and rule_of(kind) is None:
        raise ConfError(f"--judge: kind {name} leaves no question open for a judge. {_RULES}")
    return kind


_RULES = "--kind crag scores answers by CRAG's rules, and a judge decides what they leave open"


def kind_id(name: str) -> str:
    """Names a kind in a report: of one from outside its path and its source."""
    if not is_path(name):
        return name
    return f"{name}@{plugins.load(name, 'a kind of data')[1].source[:8]}"


MEASURES = (
    Measure("f1", "words that the answer shares with the best truth (SQuAD)"),
    Measure("exact_match", "the answer equals a truth (SQuAD)"),
    Measure("contains", "a truth stands in the answer"),
)


def answer_values(row: Prediction) -> Mapping[str, float]:
    """The measures of an answer; none of a question that failed."""
    if row.prediction is None:
        return {}
    return {
        "f1": overlap.token_f1(row.prediction, row.truths),
        "exact_match": overlap.exact_match(row.prediction, row.truths),
        "contains": overlap.contains(row.prediction, row.truths),
    }


def verdict_values(outcome: str) -> Mapping[str, float]:
    """The measures of a verdict; none where it is open."""
    if (value := VALUES.get(outcome)) is None:
        return {}
    return {"score": value, "accuracy": float(value > 0), "hallucination": float(value < 0)}


@dataclass(frozen=True, slots=True)
class Qa:
    """Questions with one answer or several. Needs no judge."""

    measures: ClassVar[tuple[Measure, ...]] = MEASURES

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Returns whether a truth stands in the answer; None of a question that failed."""
        return values["contains"] > 0 if "contains" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        return answer_values(row)


@dataclass(frozen=True, slots=True)
class Crag:
    """Questions with a verdict each. A question that the rule leaves open has none until a judge decides."""

    rule: Rule = DEFAULT_RULE

    blocks: ClassVar[tuple[str, ...]] = ("measures", "verdicts")
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("score", "accuracy less hallucination (CRAG)", low=-1.0),
        *MEASURES,
        Measure("accuracy", "the verdict is right (CRAG)"),
        Measure("hallucination", "the verdict is wrong (CRAG)", less_is_better=True),
    )

    def values(self, row: Prediction) -> Mapping[str, float]:
        return {**verdict_values(judge(row, self.rule).outcome), **answer_values(row)}

    def right(self, values: Mapping[str, float]) -> bool | None:
        """As the verdict says; None without one."""
        return values["accuracy"] > 0 if "accuracy" in values else None

    def with_rule(self, rule: Rule) -> Crag:
        rule_id(rule)  # raises ConfError for no rule
        return Crag(rule)

    def marks(self, rows: Sequence[Prediction]) -> Marks:
        return mark(rows, self.rule)


@dataclass(frozen=True, slots=True)
class Qasper:
    """Questions that annotators answered from a paper. An abstention stands for "Unanswerable" and has no
    evidence. Paragraphs are compared with white space folded, figures and tables by their captions. A gold
    without annotators is not scored. Questions of one paper move together."""

    golds: ClassVar[GoldForm] = "annotators"
    group: ClassVar[str] = PAPER
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("answer_f1", "words that the answer shares with the best annotator (QASPER)"),
        Measure("evidence_f1", "paragraphs that the evidence shares with the best annotator"),
        Measure("text_evidence_f1", "the same without figures and tables"),
        Measure("answer_f1_extractive", "answer F1 where the best annotator quotes the paper"),
        Measure("answer_f1_abstractive", "where the best annotator answers in own words"),
        Measure("answer_f1_boolean", "where the best annotator says yes or no"),
        Measure("answer_f1_none", "where the best annotator says that there is no answer"),
    )

    def values(self, row: Prediction) -> Mapping[str, float]:
        if row.prediction is None or not row.annotators:
            return {}
        answer, evidence = row.prediction, row.evidence
        if abstains(answer) or overlap.exact_match(answer, (UNANSWERABLE,)):
            answer, evidence = UNANSWERABLE, ()
        f1, kind = overlap.answer_f1(answer, row.annotators)
        folded = [_folded(a) for a in row.annotators]
        text = [_folded(a) for a in overlap.without_floats(row.annotators)]
        return {
            "answer_f1": f1,
            "evidence_f1": overlap.evidence_f1(evidence, folded),
            "text_evidence_f1": overlap.evidence_f1(evidence, text),
            f"answer_f1_{kind}": f1,
        }


def _folded(said: AnnotatorAnswer) -> AnnotatorAnswer:
    """Evidence as the parsed paper has it."""
    return AnnotatorAnswer(said.answer, said.kind, tuple(paragraph(e) for e in said.evidence))


RIGHT_WITHIN = 10  # ranks: the page of results that nDCG@10 looks at


@dataclass(frozen=True, slots=True)
class Ranking:
    """Queries whose documents have grades: relevant from 1 on, and more so the higher. No answer counts."""

    golds: ClassVar[GoldForm] = "grades"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ndcg_cut_10", "gain of the first 10, discounted by rank (nDCG@10)"),
        Measure("map", "mean precision at each relevant document (MAP)"),
        Measure("map_cut_20", "the same, of the first 20 (MAP@20)"),
        Measure("map_cut_20_min", "the same over the relevant ones that fit into 20"),
        Measure("recip_rank", "1 / rank of the first relevant document (MRR)"),
        Measure("recall_5", "share of the relevant ones among the first 5"),
        Measure("recall_20", "among the first 20"),
        Measure("recall_100", "among the first 100"),
    )

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Returns whether a relevant document is among the first RIGHT_WITHIN; None: it is not scored."""
        return values["recip_rank"] >= 1 / RIGHT_WITHIN if "recip_rank" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        from raypipe.metrics import ranking  # trec_eval's library, which no other kind needs

        if row.ranked is None:
            return {}
        run = {d: float(len(row.ranked) - i) for i, d in enumerate(row.ranked)}
        return ranking.score({row.question: run}, {row.question: row.grades}).per_query[row.question]


KINDS: Mapping[str, Callable[[], DataKind]] = {
    "crag": Crag,
    "qa": Qa,
    "qasper": Qasper,
    "ranking": Ranking,
}
