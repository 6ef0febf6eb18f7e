"""The shortlist: which of a question's pages are worth searching, judged by their snippets or by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import Citation, Question
from raypipe.text.template import PLAIN, query_reads, query_renderer


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
