"""Examples for a prompt: other questions with their calls or answers, the nearest ones or some by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Tokenize
from raypipe.core.records import ANSWERED, SKIPPED_REPLY, Question, Reply, digest
from raypipe.core.references import ExampleFile, ShownExample
from raypipe.readers.example_pool import PoolRef
from raypipe.text.template import REPLY, renderer, uses

SHOWN = "Question: {{ question }}\nAnswer: {{ answer }}"
"""An example of a pool as a prompt shows it."""

FIELDS = frozenset({"question", "answer", "explanation"})
BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Writes `top` examples into the reply `into`, from a bank of calls or from a pool of training rows.

    nearest: by cosine, the nearest last, since a model follows best what it read last. random: drawn by
    `seed` and the question's text, in the order in which they were drawn.

    Examples about a document that the question cites are never shown: they would tell the answer. A question
    that cites none, and searches a whole store, is shown examples of any document. Of a bank's equal
    questions, and of a pool's equal questions about one document, one alone is. With `tokens` the examples
    that were chosen last go until the others fit. Where none is left, the reply is skipped.
    """

    bank: ExampleFile | None = None
    pool: PoolRef | None = None
    choose: Literal["nearest", "random"] = "nearest"
    embedder: Model | None = None  # of `nearest`
    seed: int = 0  # of `random`
    top: int = 8
    tokens: int | None = None  # that the examples may take together; None: any
    tokenizer: Model | None = None  # counts `tokens`
    shown: str = SHOWN  # a row of a pool: question, answer, explanation
    into: str = "examples"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if (self.bank is None) == (self.pool is None):
            raise ValueError("expected one of bank and pool")
        if self.top < 1:
            raise ValueError(f"top: expected at least 1, found {self.top}")
        if (self.choose == "nearest") != (self.embedder is not None):
            raise ValueError("embedder: expected with choose: nearest and only there")
        if self.choose == "nearest" and self.seed:
            raise ValueError("seed: expected with choose: random alone")
        if (self.tokens is None) != (self.tokenizer is None):
            raise ValueError("tokens and tokenizer: expected both or neither")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens: expected at least 1, found {self.tokens}")
        if strange := sorted(uses(self.shown) - FIELDS):
            raise ValueError(f"shown: it uses {strange[0]!r}; expected {', '.join(sorted(FIELDS))}")
        if self.bank is not None and self.shown != SHOWN:
            raise ValueError("shown: expected with pool alone")

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "citations"})

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.embedder is None:
            return Bound(0, reach, "never")
        examples = self.bank.count() if self.bank else self.pool.size if self.pool else 0
        return Bound(examples + 1, reach, "never", likely=1, shared=examples)  # vectors

    def open(self, kit: Kit) -> Ask:
        found = list(self.bank.shown()) if self.bank else []
        if not self.bank and self.pool:
            show, names = renderer(self.shown), uses(self.shown)
            for r in kit.data(self.pool):
                asked, text = r.question.lower(), show({name: getattr(r, name) for name in names})
                found.append(
                    ShownExample(asked, text, f"{r.document}\n{' '.join(asked.split())}", r.document)
                )
        tokenize = None if self.tokenizer is None else kit.tokenizer(self.tokenizer)
        embed = None if self.embedder is None else kit.embedder(self.embedder)

        async def ask(questions: list[Question]) -> list[Question]:
            if embed is None:
                orders = [self._drawn(q, found) for q in questions]
            else:
                known = await embed([e.compared for e in found], "passage")  # (examples, dim) float32, unit
                asked = await embed([q.text.lower() for q in questions], "passage")
                scores = (asked @ known.T).tolist()
                orders = [sorted(range(len(s)), key=lambda i, s=s: (-s[i], i)) for s in scores]  # type: ignore[misc]
            return [self._said(q, found, o, tokenize) for q, o in zip(questions, orders, strict=True)]

        return ask

    def _drawn(self, question: Question, found: Sequence[ShownExample]) -> list[int]:
        """All examples in an order that this seed and this question give."""
        order = list(range(len(found)))
        random.Random(int(digest("examples", str(self.seed), question.text), 16)).shuffle(order)
        return order

    def _said(
        self,
        question: Question,
        found: Sequence[ShownExample],
        order: Sequence[int],
        tokenize: Tokenize | None,
    ) -> Question:
        """`order`: all examples, those to be shown first."""
        own = {c.url for c in question.citations or ()}
        best: dict[str, str] = {}  # group -> its first example
        for e in (found[i] for i in order):
            if len(best) == self.top:
                break
            if not e.document or e.document not in own:
                best.setdefault(e.group, e.text)
        chosen = list(best.values())
        if tokenize is not None and self.tokens is not None:
            while chosen and len(tokenize(BETWEEN.join(chosen))) > self.tokens:
                chosen.pop()
        text = BETWEEN.join(chosen if self.choose == "random" else reversed(chosen))
        said = Reply(text, ANSWERED) if chosen else SKIPPED_REPLY
        return replace(question, replies={**question.replies, self.into: said})
