"""Measures of answers as texts: SQuAD's for words, and QASPER's for answers and their evidence.

Texts are normalized before they are compared, as in SQuAD's evaluator (Rajpurkar et al. 2016); QASPER and
Natural Questions do the same. Normalizing lowers case, removes ASCII punctuation and `a`, `an`, `the`, and
squeezes white space. One thing differs from SQuAD: a Markdown link counts as its text, because text and
address would otherwise become one word. If there are several truths, the best counts.

QASPER's answer F1 is the highest F1 against an annotator's answer, and counts for the kind of that answer.
Evidence F1 compares paragraphs as whole strings. Apart from links, both equal QASPER's evaluator. Golds are
QASPER's JSON of papers; predictions are JSON lines of `question_id, predicted_answer, predicted_evidence`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, get_args

from raypipe.core.errors import DataError
from raypipe.core.records import FLOAT, AnnotatorAnswer, AnswerKind
from raypipe.core.textfile import filled

_PUNCTUATION = string.punctuation.encode()
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> str:
    """Normalizes a text for comparison.

    >>> normalized("The  F1-score, a (U.S.)!")
    'f1score us'
    >>> normalized("See [RFC 8878](https://example.org/rfc8878).")
    'see rfc 8878'
    """
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    # On bytes, which takes a tenth of the time for a page. No byte of a non-ASCII letter is punctuation.
    plain = text.lower().encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", plain.decode("utf-8", "surrogatepass")).split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """Returns 1 if the answer equals a truth, else 0.

    >>> exact_match("The Eiffel Tower.", ["eiffel tower"])
    1.0
    """
    said = normalized(answer)
    return float(any(said == normalized(t) for t in truths))


def token_f1(answer: str, truths: Sequence[str]) -> float:
    """Computes the best F1 of the words that the answer shares with a truth, 0..1. A repeated word counts as
    often as both texts have it. Without a common word F1 is 0, even if both have no words.

    >>> token_f1("yes, because x", ["No", "Yes"])
    0.5
    """
    said, found = normalized(answer).split(), [normalized(t).split() for t in truths]
    return max((f1((Counter(said) & Counter(t)).total(), len(said), len(t)) for t in found), default=0.0)


def f1(common: int, said: int, truth: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / said, common / truth
    return 2 * precision * recall / (precision + recall)


def contains(answer: str, truths: Sequence[str]) -> float:
    """Returns 1 if the words of a truth are in the answer, one after the other; else 0. An exact match
    counts, even of texts without words.

    >>> contains("It flies for 31 minutes.", ["31 minutes"]), contains("31 long minutes", ["31 minutes"])
    (1.0, 0.0)
    """
    said = f" {normalized(answer)} "
    found = [normalized(t) for t in truths]
    return float(any(said == f" {t} " or (t and f" {t} " in said) for t in found))


KINDS: Final[tuple[AnswerKind, ...]] = get_args(AnswerKind)


def answer_f1(answer: str, annotators: Sequence[AnnotatorAnswer]) -> tuple[float, AnswerKind]:
    """Computes the highest F1 against an annotator's answer. Also returns the kind of that answer.

    >>> said = (AnnotatorAnswer("Yes", "boolean"), AnnotatorAnswer("it does", "abstractive"))
    >>> answer_f1("Yes, because x", said)
    (0.5, 'boolean')
    """
    found = [(token_f1(answer, [a.answer]), a.kind) for a in annotators]
    return max(found, key=lambda pair: pair[0])


def evidence_f1(predicted: Sequence[str], annotators: Sequence[AnnotatorAnswer]) -> float:
    """Computes the highest F1 of the predicted paragraphs against an annotator's. It is 1 if both have none.

    >>> evidence_f1(["a", "b"], [AnnotatorAnswer("", "none", ("b", "c", "d"))])
    0.4
    """
    truths = [a.evidence for a in annotators]
    return max(  # the lengths count a repeated paragraph again, the intersection does not
        f1(len(set(predicted) & set(t)), len(predicted), len(t)) if predicted or t else 1.0 for t in truths
    )


def without_floats(annotators: Iterable[AnnotatorAnswer]) -> tuple[AnnotatorAnswer, ...]:
    """Removes figures and tables from the annotators' evidence."""
    return tuple(
        AnnotatorAnswer(a.answer, a.kind, tuple(e for e in a.evidence if FLOAT not in e)) for a in annotators
    )


@dataclass(frozen=True, slots=True)
class QasperScore:
    """Means as in QASPER's evaluator. A question without a prediction counts 0, but is not in `by_kind`."""

    answer_f1: float
    by_kind: Mapping[str, float]  # kind of the best annotator's answer -> answer F1; 0 without questions
    evidence_f1: float
    missing: int  # questions without a prediction
    questions: int


PaperPrediction: TypeAlias = tuple[str, tuple[str, ...]]
"""Answer and evidence in a line of a file of predictions."""


def score(
    golds: Mapping[str, Sequence[AnnotatorAnswer]], predictions: Mapping[str, PaperPrediction]
) -> QasperScore:
    """Scores predictions by question id; ignores unknown ids. `golds` has the annotators of each question."""
    answers, evidence = list[float](), list[float]()
    by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for question in (q for q in golds if q in predictions):
        answer, paragraphs = predictions[question]
        value, kind = answer_f1(answer, golds[question])
        answers.append(value)
        by_kind[kind].append(value)
        evidence.append(evidence_f1(paragraphs, golds[question]))
    missing = [0.0] * (len(golds) - len(answers))
    means = {kind: _mean(values) for kind, values in by_kind.items()}
    overall = _mean([*answers, *missing]), _mean([*evidence, *missing])
    return QasperScore(overall[0], means, overall[1], len(missing), len(golds))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def score_files(gold: Path, predictions: Path, text_evidence_only: bool = False) -> QasperScore:
    """Scores a file of predictions against a file of papers. `text_evidence_only` removes figures and tables
    from the golds' evidence. Raises DataError for files of another form, and if no question has an answer."""
    from raypipe.readers import qasper  # this imports pyarrow, which no other score needs
    from raypipe.readers.rows import UnusableLine

    golds: dict[str, tuple[AnnotatorAnswer, ...]] = {}
    for where, _, paper in qasper.papers(gold):
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
    """Reads predictions by question id. Raises DataError for a malformed line or a repeated question."""
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
        found[id] = record["predicted_answer"], tuple(evidence)
    return found
