"""Rerankers: a model that reads query and text together scores passages, or snippets of pages; or a language
model reads several passages at once and says in which order they help. Knows both only through the kit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.llm import Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Citation, Question, Reply
from raypipe.steps.rows import (
    CHARS_PER_TOKEN,
    add_scores,
    best_first,
    number_asker,
    prompt_passages,
    require_prompt,
    skipping,
    with_replies,
)
from raypipe.text.template import PLAIN, REPLY, Prompt, query_reads, query_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """Scores the first `candidates` passages of `order` and makes the `top` best of them the new `order`.

    All pairs of a batch are one call, so that the engine can fill its batches across questions.
    """

    model: Model
    top: int  # passages that stay in order; all, where there are fewer
    candidates: int | None = None  # passages of order that are scored; None: all
    shortcut: bool = False  # at most `top` candidates: keep their order, score none (db3)
    lower: bool = False  # the model reads passages in lower case
    query: str = PLAIN
    into: str = "rerank"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.top < 1:
            raise ValueError(f"top: expected at least 1 passage, found {self.top}")
        if self.candidates is not None and self.candidates < self.top:
            raise ValueError(f"candidates: expected at least top ({self.top}), found {self.candidates}")

    def reads(self) -> frozenset[str]:
        return query_reads(self.query) | {"hits", "order", "index.text"}

    def writes(self) -> frozenset[str]:
        return frozenset({"order", f"hits.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        scored = min(reach.order, self.candidates or reach.order)
        calls = 0 if self.shortcut and scored <= self.top else scored
        return Bound(calls, replace(reach, order=min(self.top, reach.order)), "never")

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        score, index = kit.reranker(self.model), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            chosen = [q.order[: self.candidates] for q in questions]
            scored = [() if self.shortcut and len(c) <= self.top else c for c in chosen]
            distinct = list(dict.fromkeys(c for chunks in scored for c in chunks))
            found = await index.texts(distinct)
            texts = dict(zip(distinct, map(str.lower, found) if self.lower else found, strict=True))
            queries = [render(q) for q in questions]
            pairs = [(query, texts[c]) for query, chunks in zip(queries, scored, strict=True) for c in chunks]
            scores = iter((await score(pairs)).tolist())
            out = []
            for q, order, chunks in zip(questions, chosen, scored, strict=True):
                by = {chunk: next(scores) for chunk in chunks}
                q = add_scores(q, self.into, by) if by else q
                out.append(replace(q, order=best_first(by, self.top) if by else order))
            return out

        return ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """Narrows a question's citations to the `pages` pages whose snippets a reranker finds best; without one,
    to the first `pages` pages.

    A citation that loses keeps its snippet, so what only the snippet says can still be found (db3, Task 3:
    50 pages to 5). A page that is cited twice counts once, by its best snippet, and stays in all its
    citations. Pages without a snippet come after those with one, in rank order. A question with at most
    `pages` pages, or without citations of its own, stays as it is and costs nothing.
    """

    pages: int  # distinct pages that stay
    model: Model | None = None  # a reranker; None: search results are read in their order
    lower: bool = False  # the model reads snippets in lower case
    query: str = PLAIN

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.pages < 1:
            raise ValueError(f"pages: expected at least 1 page, found {self.pages}")

    def reads(self) -> frozenset[str]:
        if self.model is None:
            return frozenset({"citations"})
        return query_reads(self.query) | {"citations", "index.text"}

    def writes(self) -> frozenset[str]:
        return frozenset({"citations"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        snippets = {c.snippet for c in self._candidates(question) if c.snippet is not None}
        return Bound(0 if self.model is None else len(snippets), reach, "never")

    def open(self, kit: Kit) -> Ask:
        if self.model is None:
            return self._first
        render = query_renderer(self.query)
        score, index = kit.reranker(self.model), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            cited = [self._candidates(q) for q in questions]
            distinct = list(dict.fromkeys(c.snippet for cs in cited for c in cs if c.snippet is not None))
            found = await index.source_texts(distinct)
            if self.lower:
                found = [None if text is None else text.lower() for text in found]
            texts = dict(zip(distinct, found, strict=True))
            pairs, places = [], []
            for i, (q, citations) in enumerate(zip(questions, cited, strict=True)):
                for j, c in enumerate(citations):
                    text = None if c.snippet is None else texts[c.snippet]
                    if text is not None:
                        pairs.append((render(q), text))
                        places.append((i, j))
            scores = dict(zip(places, (await score(pairs)).tolist(), strict=True))
            return [
                self._narrow(q, cs, [scores.get((i, j)) for j in range(len(cs))]) if cs else q
                for i, (q, cs) in enumerate(zip(questions, cited, strict=True))
            ]

        return ask

    async def _first(self, questions: list[Question]) -> list[Question]:
        cited = [self._candidates(q) for q in questions]
        return [
            self._narrow(q, c, [None] * len(c)) if c else q for q, c in zip(questions, cited, strict=True)
        ]

    def _candidates(self, question: Question) -> tuple[Citation, ...]:
        """The citations with a page, where some must go; else none."""
        cited = tuple(c for c in question.citations or () if c.page is not None)
        return cited if len({c.page for c in cited}) > self.pages else ()

    def _narrow(
        self, question: Question, cited: Sequence[Citation], scores: Sequence[float | None]
    ) -> Question:
        """`scores` is parallel to `cited`; None where there is no snippet text."""
        rows = zip(cited, scores, strict=True)
        ranked = sorted(rows, key=lambda row: (row[1] is None, -(row[1] or 0.0), row[0].rank))
        kept = {None, *list(dict.fromkeys(c.page for c, _ in ranked))[: self.pages]}
        citations = question.citations or ()
        narrowed = (c if c.page in kept else replace(c, page=None, name=None) for c in citations)
        return replace(question, citations=tuple(narrowed))


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
        return (frozenset(self.prompt.variables) - {PASSAGES}) | {
            "hits",
            "order",
            "index.text",
            "index.hidden",
        }

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
        index, step = kit.index(), f"listwise:{self.into}"
        ask_numbers = number_asker(kit.generator(self.model), self.prompt, PASSAGES, self.sampling(), step)

        async def ask(questions: list[Question]) -> list[Question]:
            orders = [q.order[: self.candidates] for q in questions]
            found = await prompt_passages(index, [c for order in orders for c in order])
            lines = {c: " ".join(p.prompted.split())[: self.passage_chars] for c, p in found.items()}
            answers = await ask_numbers(questions, [[lines[c] for c in order] for order in orders])
            out = []
            for q, order, numbers in zip(questions, orders, answers, strict=True):
                named = () if isinstance(numbers, Reply) else numbers
                first = list(dict.fromkeys([*(order[n - 1] for n in named), *order]))
                scores = {chunk: 1 / rank for rank, chunk in enumerate(first, 1)}
                reply = numbers if isinstance(numbers, Reply) else Reply(", ".join(map(str, named)), ANSWERED)
                ranked = replace(add_scores(q, self.into, scores), order=tuple(first[: self.top]))
                out.append(with_replies(ranked, {self.into: reply}))
            return out

        return ask

    def sampling(self) -> Sampling:
        """Returns what is sent with each chat."""
        return Sampling(max_tokens=self.max_tokens + self.model.thought_tokens)
