"""Compression: cuts the passages of a ranking to the most relevant sentences, within a token budget.

The kept sentences are spans of sources, so a quote from a sentence matches the source exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np

from raypipe.core.llm import Sampling
from raypipe.core.protocols import Ask, Bound, Embed, Kit, Model, Reach, Tokenize
from raypipe.core.records import ANSWERED, Hit, Question, Reply
from raypipe.steps.extract import choose, cosines_of, likely_candidates, require_fitted_with
from raypipe.steps.field_checks import require_positive, require_prompt
from raypipe.steps.hits import add_hits
from raypipe.steps.prompts import Numbers, number_asker, skipping, with_replies
from raypipe.text import evidence
from raypipe.text.candidates import MAX_CHARS, Sentence, SourceText
from raypipe.text.context import Piece, joined, pack
from raypipe.text.evidence import Fitted
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import PLAIN, REPLY, Prompt, query_reads, query_renderer
from raypipe.text.words import require_splitter

Candidates: TypeAlias = Sequence[Sequence[Sentence]]
"""Candidate sentences of each question."""
Choice: TypeAlias = tuple[tuple[int, ...], Reply | None]
"""Positions of the candidates to take, best first, and the reply with the generator's fault, or None."""
SENTENCES = "sentences"
"""Variable that a prompt of this step may use besides fields and replies: the sentences, numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress:
    """Replaces `order`, the question's ranking, by the most relevant sentences that fit `tokens` tokens.

    Candidates are the sentences and table rows of the first `passages` passages (`text.candidates`), reduced
    to the `scored` ones that share most words with the query. With an `embedder`, the ranker of the step
    `extract` orders the candidates. With a generator `model`, the model names the numbers of the sentences
    that an answer needs, the most important first; all others are dropped. Sentences are taken in this order;
    a sentence that does not fit is left out. Neighbours in a source are joined to one piece, which is a new
    hit with the score `into`. The new order has the pieces in the order of their passages. Old hits remain.

    The budget is never exceeded. `tokenizer` counts the pieces as a prompt with the layout `docs` shows them.
    `order` is empty if no sentence fits or the model names none. The reply `into` counts sentences and
    tokens. If the model's text is missing or unreadable, this reply holds the fault, and the sentences that
    share most words with the query are taken first. If the model is declared absent (loader: none), `order`
    remains and the reply is skipped.
    """

    tokens: int  # budget of the kept sentences
    tokenizer: Model  # counts `tokens`: a tokenizer, or a generator's own
    passages: int = 20  # first passages of `order`, whose sentences are candidates
    sentences: int = 40  # most sentences of one passage, read as `extract` reads them
    scored: int = 60  # candidates to rank: those that share most words with the query
    embedder: Model | None = None  # embedder of the ranker; None: a generator chooses
    fitted: Fitted | None = None  # fitted for `extract`; None: weights that suit any embedder
    model: Model | None = None  # generator that chooses; None: the ranker chooses
    prompt: Prompt | None = None  # prompt of the generator; None with an embedder
    max_tokens: int = 100  # tokens of the generator's reply; the numbers of 20 sentences take about 60
    query: str = PLAIN
    into: str = "compress"

    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        query_reads(self.query)
        require_positive(self, "tokens", "passages", "sentences", "scored")
        if (self.model is None) == (self.embedder is None):
            raise ValueError("expected embedder, or model and prompt, found both or neither")
        if (self.model is None) != (self.prompt is None):
            raise ValueError("model and prompt: expected both or neither, found one")
        if self.fitted is not None:
            if self.embedder is None:
                raise ValueError("fitted: expected only with embedder, found model")
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
        # Overlapping passages, and the sentences at their cut ends, may be joined into one passage.
        chars = passages * (reach.passage_chars + 2 * MAX_CHARS)
        behind = replace(reach, hits=reach.hits + most, order=most, passage_chars=chars)
        if self.model is None:
            return Bound(most + 1, behind, "never")  # vectors of the sentences and the query
        tokens = self.model.max_model_len
        return Bound(min(most, 1), behind, "asking", tokens=tokens, reply_tokens=self.sampling().max_tokens)

    def open(self, kit: Kit) -> Ask:
        if self.model is not None and self.model.absent:
            return skipping(self.into)
        require_splitter()
        index, tokenize = kit.index(), kit.tokenizer(self.tokenizer)
        render, most = query_renderer(self.query), (self.passages, self.sentences, self.scored)
        if self.embedder is not None:
            chosen = partial(self._by_ranker, kit.embedder(self.embedder))
        else:
            assert self.model and self.prompt
            step, generate = f"compress:{self.into}", kit.generator(self.model)
            asker = number_asker(generate, self.prompt, SENTENCES, self.sampling(), step)
            chosen = partial(self._by_generator, asker)

        async def ask(questions: list[Question]) -> list[Question]:
            queries = [render(q) for q in questions]
            found, pages = await likely_candidates(index, questions, queries, most)
            choices = await chosen(questions, queries, found)
            return [
                self._cut(q, some, *choice, pages, tokenize)
                for q, some, choice in zip(questions, found, choices, strict=True)
            ]

        return ask

    async def _by_ranker(
        self, embed: Embed, questions: Sequence[Question], queries: Sequence[str], found: Candidates
    ) -> list[Choice]:
        rows = zip(queries, found, await cosines_of(embed, queries, found), strict=True)
        return [(choose(q, some, by, self.fitted).order if some else (), None) for q, some, by in rows]

    async def _by_generator(
        self, ask: Numbers, questions: Sequence[Question], queries: Sequence[str], found: Candidates
    ) -> list[Choice]:
        shown = [[escape_markup(" ".join(s.text.split())) for s in some] for some in found]
        choices: list[Choice] = []
        for query, some, numbers in zip(queries, found, await ask(questions, shown), strict=True):
            if isinstance(numbers, Reply):
                words = evidence.words_of(query, some)
                order = np.argsort(-(words.overlap + words.around), kind="stable")
                choices.append((tuple(order.tolist()), numbers))
            else:
                choices.append((tuple(n - 1 for n in numbers), None))
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
        """Replaces the ranking by the sentences that fit the budget. They are tried in `order`, which has
        positions in `found`. `fault` becomes the reply `into` if it is not None."""
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
        return Sampling(max_tokens=self.max_tokens + (0 if self.model is None else self.model.thought_tokens))
