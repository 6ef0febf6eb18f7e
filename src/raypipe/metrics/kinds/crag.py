"""`crag`: CRAG's score by a rule, and the measures of `qa` for what the rule leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from raypipe.metrics.crag import DEFAULT_RULE, VALUES, Marks, Prediction, Rule, judge, mark, rule_id
from raypipe.metrics.kinds.contract import Measure
from raypipe.metrics.kinds.qa import MEASURES, answer_values


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
        value = VALUES.get(judge(row, self.rule).outcome)
        if value is None:
            return answer_values(row)
        verdict = {"accuracy": float(value > 0), "hallucination": float(value < 0)}
        return {"score": value, **answer_values(row), **verdict}

    def right(self, values: Mapping[str, float]) -> bool | None:
        """As the verdict says; None without one."""
        return values["accuracy"] > 0 if "accuracy" in values else None

    def with_rule(self, rule: Rule) -> Crag:
        rule_id(rule)  # raises ConfError for no rule
        return Crag(rule)

    def marks(self, rows: Sequence[Prediction]) -> Marks:
        return mark(rows, self.rule)
