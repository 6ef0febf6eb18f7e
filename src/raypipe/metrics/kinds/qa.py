"""`qa`: questions with answers, anyone's. Exact match, token F1, and whether a truth stands in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from raypipe.metrics import squad
from raypipe.metrics.crag import Prediction
from raypipe.metrics.kinds.contract import Measure

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
        "f1": squad.token_f1(row.prediction, row.truths),
        "exact_match": squad.exact_match(row.prediction, row.truths),
        "contains": squad.contains(row.prediction, row.truths),
    }


@dataclass(frozen=True, slots=True)
class Qa:
    """Questions with one answer or several. Needs no judge."""

    measures: ClassVar[tuple[Measure, ...]] = MEASURES

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Whether a truth stands in the answer; None of a question that failed."""
        return values["contains"] > 0 if "contains" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        return answer_values(row)
