"""Compression: the passages of a ranking cut to the sentences that matter, within a budget of tokens.

What stays are spans of the sources, so whatever is quoted from them stands there to the character.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from raypipe.core.llm import Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Tokenize
from raypipe.core.records import ANSWERED, Hit, Question, Reply
from raypipe.steps.extract import choose, cosines_of, likely_candidates, require_fitted_with
from raypipe.steps.rows import add_hits, number_asker, require_prompt, skipping, with_replies
from raypipe.text import evidence
from raypipe.text.candidates import MAX_CHARS, Sentence, SourceText
from raypipe.text.context import Piece, joined, pack
from raypipe.text.evidence import Fitted
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import PLAIN, REPLY, Prompt, query_reads, query_renderer
from raypipe.text.words import require_splitter

SENTENCES = "sentences"
"""Variables that a prompt of this step may use on top of fields and replies: the candidates, numbered from
1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress:
    """Makes the sentences that matter the new `order`: as many of the best as `tokens` tokens hold.

    Candidates are the sentences of the first `passages` passages (`text.candidates`); of these the `scored`
    that share most words with the query. Either the ranker of `extract` orders them, by `embedder` and
    `fitted`; or the generator `model` names those that an answer needs, by number, the most important
    first. They are taken in that order as long as the whole fits; one that does not fit is passed over. Then
    those next to one another in their source are joined, and what came of the better passage stands first.

    Each is a hit whose span is a part of its source, with the score `into` (bigger is better); the hits that
    were there stay. The budget is that of a prompt with layout docs, as `tokenizer` counts it, and is never
    exceeded: `order` is empty where not even one sentence fits. The reply `into` counts what stayed.

    Where the generator's reply cannot be read or does not come, the reply `into` is that fault, and the
    sentences with most of the query's words stay. Where the model is absent the question stays as it is.
    """

    tokens: int  # of what stays
    tokenizer: Model  # counts them: a tokenizer, or a generator's own
    passages: int = 20  # of order, whose sentences are candidates
    sentences: int = 40  # of each passage at most, as `extract` reads them
    scored: int = 60  # of all of them
    embedder: Model | None = None
    fitted: Fitted | None = None  # of `extract`; None: its weights for any embedder
    model: Model | None = None  # a generator that chooses; None: the ranker does
    prompt: Prompt | None = None  # of the generator
    max_tokens: int = 100  # of its reply; numbers of 20 sentences take some 60
    query: str = PLAIN
    into: str = "compress"

    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        query_reads(self.query)
        for name in ("tokens", "passages", "sentences", "scored"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if (self.model is None) == (self.embedder is None):
            raise ValueError("expected embedder, or model and prompt, found both or neither")
        if (self.model is None) != (self.prompt is None):
            raise ValueError("expected model with prompt, found one alone")
        if self.fitted is not None:
            if self.embedder is None:
                raise ValueError("fitted: expected with embedder alone, found model")
            require_fitted_with(self.fitted, self.embedder)
        if self.model is not None and self.prompt is not None:
            require_prompt(self.model, [self.prompt], {SENTENCES})

    def reads(self) -> frozenset[str]:
        variables = frozenset(() if self.prompt is None else self.prompt.variables) - {SENTENCES}
        searched = {"hits", "order", "index.text", "index.hidden", "index.blocks"}
        return query_reads(self.query) | variables | searched

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}", "order", REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model is not None and self.model.absent:
            return Bound(0, reach, "never")
        passages = min(reach.order, self.passages)
        each = min(self.sentences, reach.passage_chars, reach.passage_sentences)
        most = min(passages * each, self.scored)
        # Passages that overlap, and the sentences that their ends cut, may become one.
        chars = passages * (reach.passage_chars + 2 * MAX_CHARS)
        behind = replace(reach, hits=reach.hits + most, order=most, passage_chars=chars)
        if self.model is None:
            return Bound(most + 1, behind, "never")  # the vector of each, and the query's
        tokens = self.model.max_model_len
        return Bound(min(most, 1), behind, "asking", tokens=tokens, reply_tokens=self.sampling().max_tokens)

    def open(self, kit: Kit) -> Ask:
        if self.model is not None and self.model.absent:
            return skipping(self.into)
        require_splitter()
        index, tokenize = kit.index(), kit.tokenizer(self.tokenizer)
        render, most = query_renderer(self.query), (self.passages, self.sentences, self.scored)
        chosen = self._by_ranker(kit) if self.model is None else self._by_generator(kit, self.model)

        async def ask(questions: list[Question]) -> list[Question]:
            queries = [render(q) for q in questions]
            found, pages = await likely_candidates(index, questions, queries, most)
            choices = await chosen(questions, queries, found)
            return [
                self._cut(q, some, *choice, pages, tokenize)
                for q, some, choice in zip(questions, found, choices, strict=True)
            ]

        return ask

    def _by_ranker(self, kit: Kit) -> Chooser:
        assert self.embedder is not None
        embed = kit.embedder(self.embedder)

        async def choices(
            questions: Sequence[Question], queries: Sequence[str], found: Sequence[Sequence[Sentence]]
        ) -> list[Choice]:
            rows = zip(queries, found, await cosines_of(embed, queries, found), strict=True)
            return [(choose(q, some, by, self.fitted).order if some else (), None) for q, some, by in rows]

        return choices

    def _by_generator(self, kit: Kit, model: Model) -> Chooser:
        assert self.prompt is not None
        step = f"compress:{self.into}"
        ask_numbers = number_asker(kit.generator(model), self.prompt, SENTENCES, self.sampling(), step)

        async def choices(
            questions: Sequence[Question], queries: Sequence[str], found: Sequence[Sequence[Sentence]]
        ) -> list[Choice]:
            shown = [[escape_markup(" ".join(s.text.split())) for s in some] for some in found]
            out: list[Choice] = []
            for i, numbers in enumerate(await ask_numbers(questions, shown)):
                if isinstance(numbers, Reply):
                    words = evidence.words_of(queries[i], found[i])
                    order = np.argsort(-(words.overlap + words.around), kind="stable")
                    out.append((tuple(order.tolist()), numbers))
                else:
                    out.append((tuple(n - 1 for n in numbers), None))
            return out

        return choices

    def _cut(
        self,
        question: Question,
        found: Sequence[Sentence],
        order: Sequence[int],
        fault: Reply | None,
        pages: Mapping[str, SourceText],
        tokenize: Tokenize,
    ) -> Question:
        """The question with the sentences that the budget holds as its ranking."""
        kept: list[int] = []
        pieces, used = list[Piece](), 0
        for i in order:
            more = joined([(found[k], float(-n)) for n, k in enumerate([*kept, i])], pages)
            laid = pack([escape_markup(p.text) for p in more], "docs", None, tokenize).text
            if (count := len(tokenize(laid))) <= self.tokens:
                kept, pieces, used = [*kept, i], more, count
        hits = [Hit(p.chunk, p.source, p.span, {self.into: p.score}) for p in pieces]
        counts = {"sentences": len(kept), "of": len(found), "tokens": used}
        reply = fault or Reply(json.dumps(counts), ANSWERED)
        ranked = replace(add_hits(question, hits), order=tuple(p.chunk for p in pieces))
        return with_replies(ranked, {self.into: reply})

    def sampling(self) -> Sampling:
        """Returns what is sent with each chat."""
        return Sampling(max_tokens=self.max_tokens + (0 if self.model is None else self.model.thought_tokens))


Choice: TypeAlias = tuple[tuple[int, ...], Reply | None]
"""Places of candidates to take, in order; and the fault of a generator, whose order this is not."""

Chooser: TypeAlias = Callable[
    [Sequence[Question], Sequence[str], Sequence[Sequence[Sentence]]], Awaitable[list[Choice]]
]
"""Questions, their queries and candidates -> a choice for each."""
