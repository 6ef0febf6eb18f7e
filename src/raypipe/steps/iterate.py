"""Multi-hop search: a language model judges whether the evidence is enough; if not, it writes a query.

The model decides the number of hops, so all hops are one step with a limit. As in Self-Ask (Press et al.
2023, arXiv 2210.03350), the model asks a follow-up question or states that none is needed. As in IRCoT
(Trivedi et al. 2023, arXiv 2212.10509), a search uses the model's last text, and prompts show passages of all
earlier searches. In contrast to both, a later step writes the answer, from the same evidence.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from raypipe.core.digests import ADDED
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Step
from raypipe.core.records import ANSWERED, FAULT, SKIPPED_REPLY, Fault, Hit, Question, Reply, parse_chunk_id
from raypipe.steps.bm25 import Bm25
from raypipe.steps.dense import Dense
from raypipe.steps.field_checks import require_positive, require_prompt
from raypipe.steps.fuse import Fuse
from raypipe.steps.hits import add_hits, grown
from raypipe.steps.prompts import ask_each, prompt_passages, prompt_values, read_reply, skipping, with_replies
from raypipe.text.context import pack
from raypipe.text.filters import parse
from raypipe.text.replies import read_next_query
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import REPLY, Prompt

OWN = frozenset({"context", "queries"})
"""Variables that a prompt of this step may use besides fields and replies: evidence, and earlier queries."""

Search: TypeAlias = Callable[[Sequence[tuple[Question, str]]], Awaitable[list[dict[str, float]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """Lets `model` judge the evidence, up to `rounds` times, and searches with each query that it writes.

    A round's prompt shows the first `passages` passages of `order`, and the `passages` best new passages of
    each earlier search, packed to `context_tokens`. The model writes "Enough", or "Search: " and a query
    (`text.replies.read_next_query`). A search uses BM25 (`words`), vectors (`embedder`), or both, fused by
    reciprocal ranks, and finds at most `top` passages. With `into: iterate`, passages found in round 1 get
    the score iterate-1, those found in round 2 iterate-2. `order` does not change: `fuse` ranks the new hits.

    The step adds two replies. The reply `into` holds the queries, one per line; without queries it is
    skipped. The text of the reply `stop` counts rounds, searches and tokens. Its label says why the rounds
    ended. `enough`: the model wrote "Enough". `rounds`: the last round is over. `tokens`: the next round
    could exceed the budget `tokens`. `repeated`: the query is the question or an earlier query. `fault`: the
    model's text is missing or unreadable; the reply `stop` then holds this fault.

    If the model is declared absent (loader: none), both replies are skipped. The budget `tokens` covers the
    messages and the model's texts of all rounds, without the marks of a chat template.
    """

    model: Model
    prompt: Prompt
    rounds: int  # most calls of the model, and most searches
    tokens: int  # budget of all rounds of one question
    context_tokens: int  # budget of the evidence in one round
    max_tokens: int  # tokens of the text of a round, as the model counts; thoughts have a further budget
    embedder: Model | None = None  # searches vectors; None: BM25 only
    words: str | None = None  # analyzer of a `tokenize` step; searches by Lucene's BM25; None: vectors only
    top: int = 10  # passages that one search finds
    passages: int = 5  # passages that a prompt shows, of `order` and of each search
    tokenizer: Model | None = None  # counts messages; None: the model's own
    where: str = field(default="", metadata=ADDED)  # condition on the fields of sources to search; "": none
    into: str = "iterate"
    stop: str = "stop"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_prompt(self.model, [self.prompt], OWN)
        require_positive(self, "rounds", "tokens", "context_tokens", "top", "passages")
        if self.where:
            parse(self.where)
        if self.embedder is None and self.words is None:
            raise ValueError("expected words, embedder or both to search with, found neither")
        if self.into == self.stop:
            raise ValueError("into and stop: expected two names, found one")
        if "context" not in self.prompt.variables:
            raise ValueError("prompt: expected one that uses context, found none")
        least = self.context_tokens + self.sampling().max_tokens
        if self.tokens < least:
            raise ValueError(f"tokens: expected at least {least} (context and reply), found {self.tokens}")
        if (room := self.model.max_model_len) < least:
            has = f"{self.model.name!r} has room for {room} tokens"
            raise ValueError(f"context_tokens: {has}, and a round may need {least}")

    def reads(self) -> frozenset[str]:
        searched = {"index.vector"} if self.embedder else set()
        if self.words is not None:
            searched.add(f"index.words_{self.words}")
        variables = frozenset(self.prompt.variables) - OWN
        return variables | searched | {"text", "citations", "order", "index.text", "index.hidden"}

    def writes(self) -> frozenset[str]:
        scores = {f"hits.{self._score(n)}" for n in range(1, self.rounds + 1)}
        return frozenset({"hits", REPLY + self.into, REPLY + self.stop, *scores})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model.absent:
            return Bound(0, reach, "never")
        calls = self.rounds * (1 if self.embedder is None else 2)  # a text, and the vector of its query
        return Bound(
            calls,
            grown(reach, self.rounds * self.top),
            "asking",
            tokens=min(self.model.max_model_len, self.tokens),
            reply_tokens=self.sampling().max_tokens,
            replies=self.rounds,
            all_tokens=self.tokens,
            dim=0 if self.embedder is None else self.embedder.dim,
        )

    def open(self, kit: Kit) -> Ask:
        if self.model.absent:
            return skipping(self.into, self.stop)
        search, index = self._searcher(kit), kit.index()
        generate, render = kit.generator(self.model), self.prompt.renderer()
        tokenize = kit.tokenizer(self.tokenizer or self.model)

        async def ask(questions: list[Question]) -> list[Question]:
            rows = [_Row(q, list(q.order[: self.passages])) for q in questions]
            for number in range(1, self.rounds + 1):
                going = [r for r in rows if not r.label]
                found = await prompt_passages(index, [c for r in going for c in r.shown])
                asked = []
                for row in going:
                    passages = [found[c].prompted for c in row.shown]
                    context = pack(passages, "docs", self.context_tokens, tokenize).text
                    chat = render(self._values(row, context))
                    needed = sum(len(tokenize(m.content)) for m in chat)
                    if row.tokens + needed + self.sampling().max_tokens > self.tokens:
                        row.label = "tokens"  # the chat and a reply could exceed the budget
                        continue
                    row.chat, row.tokens = chat, row.tokens + needed
                    asked.append(row)
                await self._round(generate, asked)
                searching = [r for r in asked if not r.label]
                hits = await search([(r.question, r.queries[-1]) for r in searching])
                for row, scores in zip(searching, hits, strict=True):
                    row.take(scores, self._score(number), self.passages)
            return [self._finished(r) for r in rows]

        return ask

    def _searcher(self, kit: Kit) -> Search:
        """Returns the function that searches. It takes (question, query) pairs, and returns for each pair the
        best chunk ids, mapped to their scores."""
        makers: list[Step] = []
        if self.embedder is not None:
            makers.append(Dense(model=self.embedder, top=self.top, where=self.where))
        if self.words is not None:
            makers.append(Bm25(words=self.words, top=self.top, where=self.where))
        weights = {name: 1.0 for name, given in (("dense", self.embedder), ("bm25", self.words)) if given}
        method: Literal["rrf", "weighted"] = "rrf" if len(weights) > 1 else "weighted"  # alone: its own score
        fuse = Fuse(weights=weights, method=method, missing="zero", top=self.top, into="found")
        opened = [step.open(kit) for step in (*makers, fuse)]

        async def search(asked: Sequence[tuple[Question, str]]) -> list[dict[str, float]]:
            rows = [Question(q.id, query, citations=q.citations, where=q.where) for q, query in asked]
            for ask in opened:
                rows = await ask(rows) if rows else []
            scores = [{h.chunk: h.scores["found"] for h in q.hits} for q in rows]
            return [{c: some[c] for c in q.order} for q, some in zip(rows, scores, strict=True)]

        return search

    def _values(self, row: _Row, context: str) -> dict[str, str]:
        asked = prompt_values(row.question, frozenset(self.prompt.variables) - OWN)
        return {"context": context, "queries": escape_markup("\n".join(row.queries)), **asked}

    async def _round(self, generate: Generator, rows: Sequence[_Row]) -> None:
        ids = [r.question.id for r in rows]
        said = await ask_each(generate, ids, [r.chat for r in rows], self.sampling()) if rows else []
        for row, reply in zip(rows, said, strict=True):
            row.rounds += 1
            row.tokens += 0 if isinstance(reply, Fault) else reply.generated_tokens
            row.read(reply, f"iterate:{self.into}")

    def _finished(self, row: _Row) -> Question:
        counts = {"rounds": row.rounds, "searches": row.searches, "tokens": row.tokens}
        stop = row.broken or Reply(json.dumps(counts), row.label or "rounds")
        queries = Reply("\n".join(row.queries), ANSWERED) if row.queries else SKIPPED_REPLY
        return with_replies(row.question, {self.into: queries, self.stop: stop})

    def _score(self, number: int) -> str:
        return f"{self.into}-{number}"

    def sampling(self) -> Sampling:
        return Sampling(max_tokens=self.max_tokens + self.model.thought_tokens)


@dataclass(slots=True)
class _Row:
    question: Question
    shown: list[str]  # chunk ids in prompt order
    queries: list[str] = field(default_factory=list)
    rounds: int = 0  # calls of the model so far
    searches: int = 0
    tokens: int = 0  # of messages and replies so far
    label: str = ""  # label of the reply `stop`: why the rounds ended; "": none did yet
    chat: Chat = ()  # chat of the current round
    broken: Reply | None = None  # faulty reply that ended the rounds

    def read(self, said: Generated | Fault, step: str) -> None:
        """Stores the query that the model's text `said` has. Ends the rounds if the text has no new query."""
        query = read_reply(said, step, read_next_query)
        if isinstance(query, Reply):
            self.label, self.broken = FAULT, query
            return
        before = {_folded(q) for q in (self.question.text, *self.queries)}
        if query is None or _folded(query) in before:
            self.label = "enough" if query is None else "repeated"
        else:
            self.queries.append(query)

    def take(self, found: Mapping[str, float], score: str, passages: int) -> None:
        """Adds the passages of a search to the question. `found` maps chunk ids to values of the score
        `score`, best first. Prompts will show the first `passages` new ones."""
        self.searches += 1
        hits = [Hit(c, *parse_chunk_id(c), {score: value}) for c, value in found.items()]
        self.question = add_hits(self.question, hits)
        self.shown += [c for c in found if c not in self.shown][:passages]


def _folded(query: str) -> str:
    return " ".join(query.lower().split()).rstrip("?.")
