"""Withdrawal of answers from the knowledge graph that must not outrank the web (db3, section 2.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, INVALID, INVALID_QUESTION, Question, Reply
from raypipe.steps.hits import row_by_row
from raypipe.text.template import REPLY

RECENT = ("update", "at the moment", "week", "last", "yesterday", "previous", "late", "today")
NO_MATCH = "There is no match"
"""Words by which the graph reports that a team had no game at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote:
    """Withdraws the reply `reply` if the web should decide instead.

    A reply that calls the question invalid, or contains that word, becomes an abstention. One exception: if
    the only sentence in `facts` reports that there was no match, and the question contains one of `recent`,
    the reply becomes invalid, whatever it was.
    """

    reply: str
    facts: str
    recent: tuple[str, ...] = RECENT  # parts of the question, not whole words: "late" also finds "latest"

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
        reply, facts = question.replies[self.reply], question.replies[self.facts]
        if self._no_match(question.text, facts):
            reply = Reply(INVALID_QUESTION, INVALID)
        elif reply.label == INVALID or (reply.label == ANSWERED and "invalid" in reply.text.lower()):
            reply = Reply(IDK, ABSTAINED)
        return replace(question, replies={**question.replies, self.reply: reply})

    def _no_match(self, text: str, facts: Reply) -> bool:
        sentences = facts.text.splitlines() if facts.label == ANSWERED else []
        if len(sentences) != 1 or NO_MATCH not in sentences[0]:
            return False
        return any(part in text.lower() for part in self.recent)
