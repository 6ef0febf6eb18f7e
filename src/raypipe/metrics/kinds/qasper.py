"""`qasper`: questions about papers. Answer F1, also by kind of answer, and F1 of evidence by paragraphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from raypipe.core.records import UNANSWERABLE, AnnotatorAnswer, paragraph
from raypipe.metrics import qasper, squad
from raypipe.metrics.crag import Prediction
from raypipe.metrics.kinds.contract import GoldForm, Measure
from raypipe.text.replies import abstains


@dataclass(frozen=True, slots=True)
class Qasper:
    """Questions that annotators answered from a paper. An abstention stands for "Unanswerable" and has no
    evidence. Paragraphs are compared with white space folded, figures and tables by their captions. A gold
    without annotators is not scored."""

    golds: ClassVar[GoldForm] = "annotators"
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
        if abstains(answer) or squad.exact_match(answer, (UNANSWERABLE,)):
            answer, evidence = UNANSWERABLE, ()
        f1, kind = qasper.answer_f1(answer, row.annotators)
        folded = [_folded(a) for a in row.annotators]
        text = [_folded(a) for a in qasper.without_floats(row.annotators)]
        return {
            "answer_f1": f1,
            "evidence_f1": qasper.evidence_f1(evidence, folded),
            "text_evidence_f1": qasper.evidence_f1(evidence, text),
            f"answer_f1_{kind}": f1,
        }


def _folded(said: AnnotatorAnswer) -> AnnotatorAnswer:
    """Evidence as the parsed paper has it."""
    return AnnotatorAnswer(said.answer, said.kind, tuple(paragraph(e) for e in said.evidence))
