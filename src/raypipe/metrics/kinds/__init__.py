"""Kinds of data by name: crag, qa, qasper, ranking, or the path of one from outside."""

from raypipe.metrics.kinds.contract import (
    NOT_SCORED,
    DataKind,
    GoldForm,
    Measure,
    MeasureSummary,
    RunScores,
    gold_form,
    marks_of,
    right_of,
    rule_of,
    score,
    summary_of,
)
from raypipe.metrics.kinds.named import KINDS, kind_id, open_kind

__all__ = [
    "KINDS",
    "NOT_SCORED",
    "DataKind",
    "GoldForm",
    "Measure",
    "MeasureSummary",
    "RunScores",
    "gold_form",
    "kind_id",
    "marks_of",
    "open_kind",
    "right_of",
    "rule_of",
    "score",
    "summary_of",
]
