"""Examples for a prompt: the questions of a bank that are nearest to this one, with their calls.

Knows models through the kit, examples through `kg.language.example_bank`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Question, Reply
from raypipe.kg.language.example_bank import ExampleBank, masked, shown_example
from raypipe.text.template import REPLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Writes the `top` nearest examples by cosine into the reply `into`, the nearest last, since a model
    follows best what it read last. Of a group of equal questions the nearest alone is shown."""

    bank: ExampleBank
    embedder: Model
    top: int = 8
    into: str = "examples"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top: expected at least 1, found {self.top}")

    def reads(self) -> frozenset[str]:
        return frozenset({"text"})

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        examples = len(self.bank.flat)  # vectors of them and of the question
        return Bound(examples + 1, reach, "never", likely=1, shared=examples)

    def open(self, kit: Kit) -> Ask:
        embed = kit.embedder(self.embedder)
        examples = [masked(q) for _, q in self.bank.flat]

        async def ask(questions: list[Question]) -> list[Question]:
            known = await embed(examples, "passage")  # (examples, dim) float32, unit rows
            asked = await embed([q.text.lower() for q in questions], "passage")
            scores = (asked @ known.T).tolist()
            return [self._said(q, s) for q, s in zip(questions, scores, strict=True)]

        return ask

    def _said(self, question: Question, scores: list[float]) -> Question:
        best: dict[int, int] = {}  # group -> its nearest example, best first
        for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
            best.setdefault(id(self.bank.flat[i][0]), i)
        chosen = list(best.values())[: self.top]
        text = "\n\n".join(shown_example(*self.bank.flat[i]) for i in reversed(chosen))
        return replace(question, replies={**question.replies, self.into: Reply(text, ANSWERED)})
