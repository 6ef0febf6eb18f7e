"""Similarity: a score of every hit by an embedder. Knows vectors only through the kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raypipe.core.index import VectorHit
from raypipe.core.protocols import FIELDS, Ask, Bound, Kit, Model, Reach
from raypipe.core.records import Question
from raypipe.steps.dense import MOST_CHUNKS
from raypipe.steps.ranking import add_scores
from raypipe.text.template import PLAIN, query_reads, query_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """Scores all hits: the cosine of the query and of a passage's best chunk. It finds none and drops none.

    So several models, or one model by several queries, each leave a score on the same candidates, and `fuse`
    weighs them. A hit whose vector is missing gets no score; `fuse` says what becomes of it.
    """

    model: Model
    query: str = PLAIN
    into: str = "similarity"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)

    def reads(self) -> frozenset[str]:
        return query_reads(self.query) | {"hits", "index.vector"}

    def writes(self) -> frozenset[str]:
        return frozenset({f"hits.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        plain = query_reads(self.query) <= FIELDS
        return Bound(1, reach, "never", plain, dim=self.model.dim)

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        embed, index = kit.embedder(self.model), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            vectors = await embed([render(q) for q in questions], "query")
            scopes = [tuple(dict.fromkeys(h.source for h in q.hits)) for q in questions]
            found = await index.search(self.model, vectors, scopes, MOST_CHUNKS)
            return [self._scored(q, f) for q, f in zip(questions, found, strict=True)]

        return ask

    def _scored(self, question: Question, found: list[VectorHit]) -> Question:
        wanted, best = {h.chunk for h in question.hits}, dict[str, float]()
        for f in found:  # best first
            if f.chunk in wanted:
                best.setdefault(f.chunk, float(f.score))
        return add_scores(question, self.into, best)
