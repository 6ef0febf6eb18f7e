"""Files that QASPER's measures are made of: its JSON of papers, and predictions as JSON lines of
`question_id, predicted_answer, predicted_evidence`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raypipe.core.errors import DataError
from raypipe.core.records import AnnotatorAnswer
from raypipe.metrics.qasper import PaperPrediction, QasperScore, score, without_floats
from raypipe.metrics.textfile import TextLine, lines
from raypipe.readers import qasper
from raypipe.readers.rows import UnusableLine


def score_files(gold: Path, predictions: Path, text_evidence_only: bool = False) -> QasperScore:
    """Scores a file of predictions against a file of papers. `text_evidence_only`: figures and tables are
    taken out of the golds' evidence. Raises DataError for a file that is none."""
    if not (golds := dict(_golds(gold))):
        raise DataError(f"{gold}: expected papers with a question that has an answer, found none")
    if text_evidence_only:
        golds = {question: without_floats(said) for question, said in golds.items()}
    return score(golds, read_predictions(predictions))


def _golds(path: Path) -> Iterator[tuple[str, tuple[AnnotatorAnswer, ...]]]:
    for where, paper in qasper.papers(path):
        try:
            yield from ((id, said) for id, said in qasper.golds(paper) if said)
        except UnusableLine as e:
            raise DataError(f"{where}: expected questions as QASPER has them: {e.fault.detail}") from e


def read_predictions(path: Path) -> dict[str, PaperPrediction]:
    """Question id -> its prediction. Raises DataError with the line of one that is none."""
    found: dict[str, PaperPrediction] = {}
    for line in lines(path):
        if not line.text.strip():
            continue
        id, said = _prediction(line)
        if id in found:
            raise line.error("each question_id once", id)
        found[id] = said
    return found


def _prediction(line: TextLine) -> tuple[str, PaperPrediction]:
    record = line.object()
    for name in ("question_id", "predicted_answer"):
        if not isinstance(record.get(name), str):
            raise line.error(f"text as {name!r}", record.get(name))
    evidence = record.get("predicted_evidence")
    if not isinstance(evidence, list) or not all(isinstance(e, str) for e in evidence):
        raise line.error("a list of texts as 'predicted_evidence'", evidence)
    return record["question_id"], PaperPrediction(record["predicted_answer"], tuple(evidence))
