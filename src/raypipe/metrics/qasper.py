"""QASPER's measures of answers and of their evidence, equal to its published evaluator.

Answer F1 is SQuAD's token F1 against the best annotator, and the question counts under that annotator's kind
of answer. Evidence F1 compares paragraphs as whole strings. Files are QASPER's JSON of papers, and
predictions as JSON lines of `question_id, predicted_answer, predicted_evidence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from raypipe.core.errors import DataError
from raypipe.core.records import FLOAT, AnnotatorAnswer, AnswerKind
from raypipe.metrics import squad
from raypipe.metrics.textfile import filled

KINDS: Final[tuple[AnswerKind, ...]] = get_args(AnswerKind)


def answer_f1(answer: str, annotators: Sequence[AnnotatorAnswer]) -> tuple[float, AnswerKind]:
    """The F1 against the best annotator, and that one's kind of answer; of equals the first.

    >>> said = (AnnotatorAnswer("Yes", "boolean"), AnnotatorAnswer("it does", "abstractive"))
    >>> answer_f1("Yes, because x", said)
    (0.5, 'boolean')
    """
    found = [(squad.token_f1(answer, [a.answer]), a.kind) for a in annotators]
    return max(found, key=lambda pair: pair[0])


def evidence_f1(predicted: Sequence[str], annotators: Sequence[AnnotatorAnswer]) -> float:
    """The best F1 of the predicted paragraphs against an annotator's.

    >>> evidence_f1(["a", "b"], [AnnotatorAnswer("", "none", ("b", "c", "d"))])
    0.4
    """
    truths = [a.evidence for a in annotators]
    return max(  # repeated ones count
        squad.f1(len(set(predicted) & set(t)), len(predicted), len(t)) if predicted or t else 1.0
        for t in truths
    )


def without_floats(annotators: Iterable[AnnotatorAnswer]) -> tuple[AnnotatorAnswer, ...]:
    """The annotators without figures and tables in their evidence."""
    return tuple(
        AnnotatorAnswer(a.answer, a.kind, tuple(e for e in a.evidence if FLOAT not in e)) for a in annotators
    )


@dataclass(frozen=True, slots=True)
class QasperScore:
    """The means of the published evaluator. A question without a prediction counts 0, and in no kind."""

    answer_f1: float
    by_kind: Mapping[str, float]  # kind -> answer F1 of the questions whose best annotator is of it; none: 0
    evidence_f1: float
    missing: int  # questions without a prediction
    questions: int


@dataclass(frozen=True, slots=True)
class PaperPrediction:
    """A line of a file of predictions."""

    answer: str
    evidence: tuple[str, ...]


def score(
    golds: Mapping[str, Sequence[AnnotatorAnswer]], predictions: Mapping[str, PaperPrediction]
) -> QasperScore:
    """Question id -> annotators, at least one; question id -> prediction."""
    answers: list[float] = []
    evidence: list[float] = []
    by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for question, annotators in golds.items():
        found = predictions.get(question)
        if found is None:
            answers.append(0.0)
            evidence.append(0.0)
            continue
        value, kind = answer_f1(found.answer, annotators)
        answers.append(value)
        by_kind[kind].append(value)
        evidence.append(evidence_f1(found.evidence, annotators))
    missing = sum(question not in predictions for question in golds)
    means = {kind: _mean(values) for kind, values in by_kind.items()}
    return QasperScore(_mean(answers), means, _mean(evidence), missing, len(golds))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def score_files(gold: Path, predictions: Path, text_evidence_only: bool = False) -> QasperScore:
    """Scores a file of predictions against a file of papers. `text_evidence_only`: figures and tables are
    taken out of the golds' evidence. Raises DataError for a file that is none."""
    from raypipe.readers import qasper  # and with it pyarrow, which no other score needs
    from raypipe.readers.rows import UnusableLine

    golds: dict[str, tuple[AnnotatorAnswer, ...]] = {}
    for where, paper in qasper.papers(gold):
        try:
            golds |= {id: said for id, said in qasper.golds(paper) if said}
        except UnusableLine as e:
            raise DataError(f"{where}: expected questions as QASPER has them: {e.fault.detail}") from e
    if not golds:
        raise DataError(f"{gold}: expected papers with a question that has an answer, found none")
    if text_evidence_only:
        golds = {question: without_floats(said) for question, said in golds.items()}
    return score(golds, read_predictions(predictions))


def read_predictions(path: Path) -> dict[str, PaperPrediction]:
    """Question id -> its prediction. Raises DataError with the line of one that is none."""
    found: dict[str, PaperPrediction] = {}
    for line in filled(path):
        record = line.object()
        for name in ("question_id", "predicted_answer"):
            if not isinstance(record.get(name), str):
                raise line.error(f"text as {name!r}", record.get(name))
        id, evidence = record["question_id"], record.get("predicted_evidence")
        if not isinstance(evidence, list) or not all(isinstance(e, str) for e in evidence):
            raise line.error("a list of texts as 'predicted_evidence'", evidence)
        if id in found:
            raise line.error("each question_id once", id)
        found[id] = PaperPrediction(record["predicted_answer"], tuple(evidence))
    return found
