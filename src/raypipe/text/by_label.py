"""A value by label: a field of a step that may differ with an earlier reply, such as prompt and adapter.

Knows questions and their replies; knows no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raypipe.core.records import Question
from raypipe.text.template import REPLY

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByLabel(Generic[T]):
    """One value for all questions, or one for each label of an earlier reply."""

    default: T  # `else`: for labels that the table does not name
    by: str = ""  # name of the reply; "": the default is for all
    table: Mapping[str, T] = field(default_factory=dict)

    def reads(self) -> frozenset[str]:
        return frozenset({REPLY + self.by}) if self.by else frozenset()

    def of(self, question: Question) -> T:
        return self.table.get(question.replies[self.by].label, self.default) if self.by else self.default

    def values(self) -> tuple[T, ...]:
        return (*self.table.values(), self.default)
