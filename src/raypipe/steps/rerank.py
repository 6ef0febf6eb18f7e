"""Reranking: a model that reads query and passage together. Knows it only through the kit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import Question
from raypipe.steps.rows import add_scores, best_first
from raypipe.text.template import PLAIN, query_reads, query_renderer


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
