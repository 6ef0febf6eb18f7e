"""The stages of a labelling recipe that are no language model: golds as replies, and a judge of words.

Only `labelling` puts them into a recipe, and no run of such a recipe can be promoted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, INVALID, SKIPPED_REPLY, Question, Reply
from raypipe.metrics.losses import GoldText
from raypipe.steps.generate import Generate
from raypipe.text.template import REPLY

TRUTHS, TRUTH, AGREES, MENTIONED = "truths", "truth", "agrees", "mentioned"
"""Replies of a labelling recipe: all truths as a JSON list, the first one, and the two judgements."""

Words: TypeAlias = Literal["words"]
WORDS: Words = "words"
"""The judge that is no model (`WordJudge`)."""

RIGHT, WRONG, YES, NO = "true", "false", "yes", "no"
"""Labels of the judgements, as the two prompts ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """Writes what the dataset says is right as two replies, for the judging stages alone.

    Their label is answered, invalid where the truth is that the premise is false, skipped where there is
    none."""

    golds: Mapping[str, tuple[str, ...]]  # question id -> truths

    version: ClassVar[int] = 1
    holds_golds: ClassVar[bool] = True

    def reads(self) -> frozenset[str]:
        return frozenset()

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + TRUTHS, REPLY + TRUTH})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")

    def open(self, kit: Kit) -> Ask:
        async def ask(questions: list[Question]) -> list[Question]:
            return [replace(q, replies={**q.replies, **self._replies(q.id)}) for q in questions]

        return ask

    def _replies(self, id: str) -> dict[str, Reply]:
        if not (truths := self.golds.get(id, ())):
            return {TRUTHS: SKIPPED_REPLY, TRUTH: SKIPPED_REPLY}
        label = INVALID if GoldText(truths).denies else ANSWERED
        return {
            TRUTHS: Reply(json.dumps(truths, ensure_ascii=False), label),
            TRUTH: Reply(truths[0], label),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WordJudge:
    """Judges without a model: an answer is right if it has the words of a truth, and a context says the truth
    if it has them, as SQuAD normalizes both. It cannot see that a paraphrase is right, and what the context
    says by chance counts: for trial runs, and for data whose truths are names and numbers."""

    step: Generate  # whose reply it judges

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return self.step.reads() | {REPLY + TRUTHS, REPLY + self.step.into}

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + AGREES, REPLY + MENTIONED})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")

    def open(self, kit: Kit) -> Ask:
        shown = self.step.shown(kit)

        async def ask(questions: list[Question]) -> list[Question]:
            contexts = await shown(questions)
            pairs = zip(questions, contexts, strict=True)
            return [replace(q, replies={**q.replies, **self._replies(q, c)}) for q, c in pairs]

        return ask

    def _replies(self, question: Question, context: str) -> dict[str, Reply]:
        said = question.replies[self.step.into]
        if said.label not in (ANSWERED, INVALID, ABSTAINED):
            return {AGREES: SKIPPED_REPLY, MENTIONED: SKIPPED_REPLY}
        gold = GoldText(tuple(json.loads(question.replies[TRUTHS].text)))
        if said.label == ANSWERED and gold.said(said.text):
            return {AGREES: Reply(RIGHT, RIGHT), MENTIONED: SKIPPED_REPLY}
        held = YES if gold.held(context) else NO
        agrees = SKIPPED_REPLY if said.label == ABSTAINED else Reply(WRONG, WRONG)
        return {AGREES: agrees, MENTIONED: Reply(held, held)}
