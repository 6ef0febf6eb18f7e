"""Steps of a labelling recipe without a language model: golds as replies, and a judge that compares words.

Only `labelling` puts these steps into a recipe, and no run of such a recipe can be promoted.
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
"""Reply names: all truths as a JSON list, first truth, judgement of the answer, judgement of the context."""

Words: TypeAlias = Literal["words"]
WORDS: Words = "words"
"""Name of the judge without a model (`WordJudge`)."""

RIGHT, WRONG, YES, NO = "true", "false", "yes", "no"
"""Labels of the two judgements: of the answer true or false, of the context yes or no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """Step that writes the true answers of a question as two replies, which only judging stages read.

    Both replies have the label answered. The label is invalid if the truth says that the premise is false,
    and skipped if the question has no truth."""

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
    """Step that judges without a model, by words normalized as in SQuAD.

    An answer is right if it contains the words of a truth. A context has the truth if it contains them. So
    right paraphrases count as wrong, and contexts may match by chance. Use it for trial runs, or if truths
    are names and numbers."""

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
