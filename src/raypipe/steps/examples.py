"""Few-shot examples for a prompt: other questions with their calls or answers, the nearest or random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Tokenize
from raypipe.core.records import ANSWERED, SKIPPED_REPLY, Question, Reply, digest
from raypipe.core.references import ExampleFile, ShownExample
from raypipe.readers.example_pool import PoolRef
from raypipe.steps.field_checks import require_positive
from raypipe.text.template import REPLY, renderer, uses

SHOWN = "Question: {{ question }}\nAnswer: {{ answer }}"
"""Template of one example from a pool."""

FIELDS = frozenset({"question", "answer", "explanation"})
BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Writes at most `top` examples into the reply `into`, from a bank or a pool.

    A bank holds questions with their calls to a server; a pool holds training questions with their answers.
    `choose: nearest` ranks examples by the cosine with the question and writes the nearest last, since a
    model follows best the text that it read last. `choose: random` draws by `seed` and the question's text,
    and keeps the drawn order.

    Examples about a document that the question cites are never shown, since they would reveal the answer.
    Equal questions of a bank give only one example; those of a pool do if they are about the same document.
    If the examples exceed `tokens` tokens, the last chosen are dropped. If no example remains, the reply is
    skipped.
    """

    bank: ExampleFile | None = None  # examples with calls; exactly one of bank and pool is set
    pool: PoolRef | None = None  # examples from training rows
    choose: Literal["nearest", "random"] = "nearest"
    embedder: Model | None = None  # only for choose: nearest
    seed: int = 0  # only for choose: random
    top: int = 8  # most examples
    tokens: int | None = None  # budget of all examples together; None: no limit
    tokenizer: Model | None = None  # counts `tokens`
    shown: str = SHOWN  # template of a pool's row; may use question, answer, explanation
    into: str = "examples"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if (self.bank is None) == (self.pool is None):
            raise ValueError("expected one of bank and pool")
        require_positive(self, "top", "tokens")
        if (self.choose == "nearest") != (self.embedder is not None):
            raise ValueError("embedder: expected with choose: nearest, and only with it")
        if self.choose == "nearest" and self.seed:
            raise ValueError("seed: expected only with choose: random")
        if (self.tokens is None) != (self.tokenizer is None):
            raise ValueError("tokens and tokenizer: expected both or neither")
        if strange := sorted(uses(self.shown) - FIELDS):
            raise ValueError(f"shown: it uses {strange[0]!r}; expected {', '.join(sorted(FIELDS))}")
        if self.bank is not None and self.shown != SHOWN:
            raise ValueError("shown: expected only with pool")

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "citations"})

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.embedder is None:
            return Bound(0, reach, "never")
        examples = self.bank.count() if self.bank else self.pool.size if self.pool else 0
        return Bound(examples + 1, reach, "never", likely=1, shared=examples)  # calls of the embedder

    def open(self, kit: Kit) -> Ask:
        found = list(self.bank.shown()) if self.bank else []
        show, names = renderer(self.shown), uses(self.shown)
        for r in kit.data(self.pool) if self.pool else ():
            asked, text = r.question.lower(), show({name: getattr(r, name) for name in names})
            group = f"{r.document}\n{' '.join(asked.split())}"
            found.append(ShownExample(asked, text, group, r.document))
        tokenize = None if self.tokenizer is None else kit.tokenizer(self.tokenizer)
        embed = None if self.embedder is None else kit.embedder(self.embedder)

        async def ask(questions: list[Question]) -> list[Question]:
            if embed is None:
                orders = [self._drawn(q, found) for q in questions]
            else:
                known = await embed([e.compared for e in found], "passage")  # (examples, dim) float32, unit
                asked = await embed([q.text.lower() for q in questions], "passage")
                orders = np.argsort(-(asked @ known.T), axis=1, kind="stable").tolist()
            return [self._with_reply(q, found, o, tokenize) for q, o in zip(questions, orders, strict=True)]

        return ask

    def _drawn(self, question: Question, found: Sequence[ShownExample]) -> list[int]:
        """Returns the positions of all examples, shuffled by the seed and the question's text."""
        order = list(range(len(found)))
        random.Random(int(digest("examples", str(self.seed), question.text), 16)).shuffle(order)
        return order

    def _with_reply(
        self,
        question: Question,
        found: Sequence[ShownExample],
        order: Sequence[int],
        tokenize: Tokenize | None,
    ) -> Question:
        """Adds the reply `into`, with one example of each of the first `top` groups (equal questions).
        `order` has the positions of all examples, best first. Skips examples about cited documents. Drops the
        last ones above `tokens`."""
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
