"""Steps that do each question by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raypipe.core.protocols import Ask
from raypipe.core.records import SKIPPED_REPLY, Question


def row_by_row(one: Callable[[Question], Question]) -> Ask:
    async def ask(questions: list[Question]) -> list[Question]:
        return [one(q) for q in questions]

    return ask


def skipping(*names: str) -> Ask:
    skipped = dict.fromkeys(names, SKIPPED_REPLY)
    return row_by_row(lambda q: replace(q, replies={**q.replies, **skipped}))
