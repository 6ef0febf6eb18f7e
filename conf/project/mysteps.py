"""Abbreviations of your own, spelled out before the search."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ANSWERED, Question, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class SpellOut:
    """Replies with the question's text, in which each abbreviation is followed by what it stands for."""

    words: Mapping[str, str] = field(default_factory=dict)  # abbreviation, as it is written -> long form
    into: str = "spelled"  # the reply's name

    version: ClassVar[int] = 1  # raise it when the code changes what comes out

    def reads(self) -> frozenset[str]:
        return frozenset({"text"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"replies.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")  # no model call, the same ranking, no faults

    def open(self, kit: Kit) -> Ask:
        async def ask(questions: list[Question]) -> list[Question]:
            return [
                replace(q, replies={**q.replies, self.into: Reply(self.spelled(q.text), ANSWERED)})
                for q in questions
            ]

        return ask

    def spelled(self, text: str) -> str:
        """The text with the long forms in it."""
        for short, long in self.words.items():
            text = re.sub(rf"\b{re.escape(short)}\b", lambda found, long=long: f"{found[0]} ({long})", text)
        return text
