"""Listwise reranking: a language model reads several passages at once and says in which order they help.

The shape is RankGPT's (Sun et al. 2023, arXiv 2304.09542) with one window: numbered passages in, their
numbers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from raypipe.core.llm import Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Question, Reply
from raypipe.steps.model_replies import (
    CHARS_PER_TOKEN,
    ask_each,
    prompt_passages,
    prompt_values,
    read_reply,
    require_prompt,
    with_replies,
)
from raypipe.steps.rows import add_scores, skipping
from raypipe.text.replies import read_numbers
from raypipe.text.template import REPLY, Prompt

PASSAGES = "passages"
"""Variable that a prompt of this step may use on top of fields and replies: the passages, numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listwise:
    """Asks `model` in which order the first `candidates` passages of `order` help, and makes the `top` first
    of them the new `order`.

    The prompt shows each passage on a line behind its number, its first `passage_chars` characters. The
    reply names numbers, the best first (`text.replies.read_numbers`); passages that it does not name follow
    in the order that they had. The score `into` is 1 for the first passage, 1/2 for the second. The reply
    `into` has the numbers that were read.

    Where the reply cannot be read or does not come, the reply `into` is that fault and the order stays. Where
    the model is absent the question stays as it is.
    """

    model: Model
    prompt: Prompt
    top: int  # passages that stay in order; all, where there are fewer
    candidates: int = 10  # passages of order that the model reads
    passage_chars: int = 700
    max_tokens: int = 60  # of the reply: ten numbers take some 40
    into: str = "listwise"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_prompt(self.model, [self.prompt], {PASSAGES})
        if PASSAGES not in self.prompt.variables:
            raise ValueError(f"prompt: expected one that uses {PASSAGES}, found none")
        for name in ("top", "candidates", "passage_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, found {getattr(self, name)}")

    def reads(self) -> frozenset[str]:
        return self._variables() | {"hits", "order", "index.text", "index.hidden"}

    def writes(self) -> frozenset[str]:
        return frozenset({"order", f"hits.{self.into}", REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model.absent:
            return Bound(0, reach, "never")
        shown = min(reach.order, self.candidates)
        chars = shown * min(reach.passage_chars, self.passage_chars) + len(question.text)
        chars += len(self.prompt.system) + len(self.prompt.user)
        return Bound(
            min(shown, 1),
            replace(reach, order=min(self.top, reach.order)),
            "asking",
            tokens=self.model.max_model_len,
            reply_tokens=self.sampling().max_tokens,
            prompt_tokens=min(chars / CHARS_PER_TOKEN, self.model.max_model_len),
        )

    def open(self, kit: Kit) -> Ask:
        if self.model.absent:
            return skipping(self.into)
        index, generate, render = kit.index(), kit.generator(self.model), self.prompt.renderer()

        async def ask(questions: list[Question]) -> list[Question]:
            orders = [q.order[: self.candidates] for q in questions]
            found = await prompt_passages(index, [c for order in orders for c in order])
            asked = [i for i, order in enumerate(orders) if order]
            chats = [
                render(self._values(questions[i], [found[c].prompted for c in orders[i]])) for i in asked
            ]
            ids = [questions[i].id for i in asked]
            said = await ask_each(generate, ids, chats, self.sampling()) if chats else []
            replies = dict(zip(asked, said, strict=True))
            out = []
            for i, (q, order) in enumerate(zip(questions, orders, strict=True)):
                numbers: Reply | tuple[int, ...] = ()
                if i in replies:
                    read = partial(read_numbers, most=len(order))
                    numbers = read_reply(replies[i], f"listwise:{self.into}", read)
                out.append(self._ordered(q, order, numbers))
            return out

        return ask

    def _values(self, question: Question, passages: Sequence[str]) -> dict[str, str]:
        shown = (" ".join(p.split())[: self.passage_chars] for p in passages)
        lines = "\n".join(f"[{n}] {text}" for n, text in enumerate(shown, 1))
        return {PASSAGES: lines, **prompt_values(question, self._variables())}

    def _ordered(
        self, question: Question, order: Sequence[str], numbers: Reply | tuple[int, ...]
    ) -> Question:
        named = () if isinstance(numbers, Reply) else numbers
        first = list(dict.fromkeys([*(order[n - 1] for n in named), *order]))
        scores = {chunk: 1 / rank for rank, chunk in enumerate(first, 1)}
        reply = numbers if isinstance(numbers, Reply) else Reply(", ".join(map(str, named)), ANSWERED)
        ranked = replace(add_scores(question, self.into, scores), order=tuple(first[: self.top]))
        return with_replies(ranked, {self.into: reply})

    def _variables(self) -> frozenset[str]:
        return frozenset(self.prompt.variables) - {PASSAGES}

    def sampling(self) -> Sampling:
        """Returns what is sent with each chat."""
        return Sampling(max_tokens=self.max_tokens + self.model.thought_tokens)
