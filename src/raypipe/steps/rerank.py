"""Reranking of passages by a cross-encoder or a language model, and of cited pages by a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.llm import Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Citation, Question, Reply
from raypipe.steps.field_checks import require_positive, require_prompt
from raypipe.steps.hits import add_scores, best_first
from raypipe.steps.prompts import CHARS_PER_TOKEN, number_asker, prompt_passages, skipping, with_replies
from raypipe.text.template import PLAIN, REPLY, Prompt, query_reads, query_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """Scores the first `candidates` passages of `order` and makes the `top` best of them the new `order`.

    One call scores the passages for a whole batch of questions, so that the model can fill its own batches.
    """

    model: Model
    top: int  # most passages of the new order
    candidates: int | None = None  # first passages of `order` to score; None: all
    shortcut: bool = False  # True: if there are at most `top` candidates, keep their order unscored (db3)
    lower: bool = False  # the model reads passages in lower case
    query: str = PLAIN
    into: str = "rerank"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        require_positive(self, "top")
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
    """Keeps only the `pages` cited pages whose snippets a reranker scores best.

    Other citations lose their page and their name. They keep their snippet, which can still be found (db3
    cuts the 50 pages of CRAG's task 3 to 5). A page that is cited twice counts once, by the best snippet, and
    remains in both citations. Pages without a snippet are ranked last, in their old order. A question with at
    most `pages` pages, or without citations, is unchanged and costs no call.
    """

    pages: int  # distinct pages to keep
    model: Model | None = None  # a reranker; None: keep the first pages in rank order
    lower: bool = False  # the model reads snippets in lower case
    query: str = PLAIN

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        require_positive(self, "pages")

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
            rows = [[None if c.snippet is None else texts[c.snippet] for c in cs] for cs in cited]
            shown = [(q, t) for q, row in zip(questions, rows, strict=True) for t in row if t is not None]
            scores = iter((await score([(render(q), text) for q, text in shown])).tolist())
            out = []
            for q, cs, row in zip(questions, cited, rows, strict=True):
                own = [None if text is None else next(scores) for text in row]
                out.append(self._narrow(q, cs, own) if cs else q)
            return out

        return ask

    async def _first(self, questions: list[Question]) -> list[Question]:
        cited = ((q, self._candidates(q)) for q in questions)
        return [self._narrow(q, c, [None] * len(c)) if c else q for q, c in cited]

    def _candidates(self, question: Question) -> tuple[Citation, ...]:
        """Returns the citations that have a page. Returns () if they have at most `pages` distinct pages."""
        cited = tuple(c for c in question.citations or () if c.page is not None)
        return cited if len({c.page for c in cited}) > self.pages else ()

    def _narrow(
        self, question: Question, cited: Sequence[Citation], scores: Sequence[float | None]
    ) -> Question:
        """Removes all but the best pages from the question's citations. `scores` is parallel to `cited`; None
        means that the snippet has no text."""
        rows = zip(cited, scores, strict=True)
        ranked = sorted(rows, key=lambda row: (row[1] is None, -(row[1] or 0.0), row[0].rank))
        kept = {None, *list(dict.fromkeys(c.page for c, _ in ranked))[: self.pages]}
        citations = question.citations or ()
        narrowed = (c if c.page in kept else replace(c, page=None, name=None) for c in citations)
        return replace(question, citations=tuple(narrowed))


PASSAGES = "passages"
"""Variable that a prompt of this step may use besides fields and replies: the passages, numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listwise:
    """Reorders the first `candidates` passages of `order` with a language model and keeps the first `top`.

    The prompt shows each passage as a line "[1] TEXT"; TEXT has at most `passage_chars` characters. The model
    writes numbers, the most helpful passage first (`text.replies.read_numbers`). Passages that the model does
    not name follow in the old order. The step writes a score and a reply, which are both called `into`. The
    score is 1 for the first passage, 1/2 for the second, 1/3 for the third. The reply holds the parsed
    numbers. If the model's text is missing or unreadable, the reply holds that fault, and the candidates keep
    the old order. If the model is declared absent (loader: none), `order` remains and the reply is skipped.
    """

    model: Model
    prompt: Prompt
    top: int  # most passages of the new order
    candidates: int = 10  # first passages of `order`, which the model reads
    passage_chars: int = 700  # characters of a passage that the prompt shows
    max_tokens: int = 60  # tokens of the reply; ten numbers take about 40
    into: str = "listwise"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_prompt(self.model, [self.prompt], {PASSAGES})
        if PASSAGES not in self.prompt.variables:
            raise ValueError(f"prompt: expected one that uses {PASSAGES}, found none")
        require_positive(self, "top", "candidates", "passage_chars")

    def reads(self) -> frozenset[str]:
        return frozenset({*self.prompt.variables, "hits", "order", "index.text", "index.hidden"}) - {PASSAGES}

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
        return Sampling(max_tokens=self.max_tokens + self.model.thought_tokens)
