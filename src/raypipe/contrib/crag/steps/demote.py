"""Worth of an answer from the knowledge graph, before it may outrank the web (db3, section 2.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, INVALID, INVALID_QUESTION, Question, Reply
from raypipe.steps.rows import row_by_row
from raypipe.text.template import REPLY

RECENT = ("update", "at the moment", "week", "last", "yesterday", "previous", "late", "today")
NO_MATCH = "There is no match"
"""Words by which the graph says that a team had no game in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote:
    """Takes back what the reply `reply` says where it must not be the last word.

    A reply that calls the question invalid, or has that word in it, becomes an abstention, so that the web
    decides. One exception: where the graph's only sentence in `facts` is that there was no match, and the
    question has one of `recent` in it, the question is invalid, whatever was replied.
    """

    reply: str
    facts: str
    recent: tuple[str, ...] = RECENT  # parts of the question, not words: "late" is meant to find "latest"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.reply == self.facts:
            raise ValueError("reply and facts: expected two names, found one")

    def reads(self) -> frozenset[str]:
        return frozenset({"text", REPLY + self.reply, REPLY + self.facts})

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.reply})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")

    def open(self, kit: Kit) -> Ask:
        return row_by_row(self._one)

    def _one(self, question: Question) -> Question:
        said, facts = question.replies[self.reply], question.replies[self.facts]
        if self._no_match(question.text, facts):
            said = Reply(INVALID_QUESTION, INVALID)
        elif said.label == INVALID or (said.label == ANSWERED and "invalid" in said.text.lower()):
            said = Reply(IDK, ABSTAINED)
        return replace(question, replies={**question.replies, self.reply: said})

    def _no_match(self, text: str, facts: Reply) -> bool:
        sentences = facts.text.splitlines() if facts.label == ANSWERED else []
        if len(sentences) != 1 or NO_MATCH not in sentences[0]:
            return False
        return any(part in text.lower() for part in self.recent)
