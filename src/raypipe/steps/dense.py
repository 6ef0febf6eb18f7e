"""Vector search: `Dense` finds the passages nearest to a query; `Similarity` scores hits of other steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from raypipe.core.digests import ADDED
from raypipe.core.index import Approximate, Index, VectorHit
from raypipe.core.protocols import FIELDS, Ask, Bound, Kit, Model, Reach
from raypipe.core.records import Hit, Question
from raypipe.steps.field_checks import require_positive
from raypipe.steps.hits import Scope, add_hits, add_scores, grown, pool_of, scopes_of
from raypipe.text.filters import parse
from raypipe.text.template import PLAIN, query_reads, query_renderer

MOST_CHUNKS: Final = 1_000_000
"""Limit of a search that must find all chunks of a question's sources: 400 sources of 2,500 chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Finds the `top` chunks nearest to the query and adds their passages to `hits`.

    A passage has the score of its best chunk. Several chunks may share a passage, so `top` chunks give at
    most `top` passages. (db3 finds 50 chunks and adds the larger passages around them.) `order`, the
    question's ranking, does not change: `fuse` ranks the new hits. `among` restricts the search to chunks of
    hits that have one of these scores, as in WeKnow's second stage. Then `scope` has no effect, and `ann` and
    `where` are refused. With `ann`, an approximate index searches the whole store. Sources narrowed by
    citations or a condition are searched exactly.
    """

    model: Model
    top: int  # chunks to find
    among: tuple[str, ...] = ()  # score names: search only hits with one of these scores; (): all passages
    scope: Scope = "own"  # own: cited sources, or the whole store if none are given; all: the whole store
    ann: Approximate | None = field(default=None, metadata=ADDED)  # None: the whole store is searched exactly
    where: str = field(default="", metadata=ADDED)  # condition on the fields of sources to search; "": none
    query: str = PLAIN
    into: str = "dense"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.where:
            parse(self.where)
        require_positive(self, "top")
        if self.among and (self.ann or self.where):
            name = "ann" if self.ann else "where"
            raise ValueError(f"{name}: expected without `among`, which looks only at what other steps found")

    def reads(self) -> frozenset[str]:
        found = {"hits", *(f"hits.{n}" for n in self.among)} if self.among else set()
        return query_reads(self.query) | {"citations", "index.vector"} | found

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        plain = query_reads(self.query) <= FIELDS
        return Bound(1, grown(reach, self.top), "never", plain, dim=self.model.dim)

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        embed, index = kit.embedder(self.model), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            vectors = await embed([render(q) for q in questions], "query")
            if self.among:
                return [await self._among(index, v, q) for v, q in zip(vectors, questions, strict=True)]
            scopes = await scopes_of(index, questions, self.scope, self.where)
            found = await self._found(index, vectors, scopes)
            return [add_hits(q, self._passages(f)) for q, f in zip(questions, found, strict=True)]

        return ask

    async def _found(
        self, index: Index, vectors: np.ndarray, scopes: list[tuple[str, ...] | None]
    ) -> list[list[VectorHit]]:
        if self.ann is None:
            return await index.search(self.model, vectors, scopes, self.top)
        whole = [i for i, scope in enumerate(scopes) if scope is None]
        own = [i for i, scope in enumerate(scopes) if scope is not None]
        found = await index.near(self.model, vectors[whole], self.top, self.ann) if whole else []
        if own:
            found += await index.search(self.model, vectors[own], [scopes[i] for i in own], self.top)
        hits = dict(zip([*whole, *own], found, strict=True))
        return [hits[i] for i in range(len(scopes))]

    async def _among(self, index: Index, vector: np.ndarray, question: Question) -> Question:
        pool = pool_of(question, self.among)
        sources = tuple(dict.fromkeys(h.source for h in question.hits if h.chunk in pool))
        [found] = await index.search(self.model, vector[None], [sources], MOST_CHUNKS)
        return add_hits(question, self._passages([f for f in found if f.chunk in pool][: self.top]))

    def _passages(self, found: list[VectorHit]) -> list[Hit]:
        first: dict[str, VectorHit] = {}
        for f in found:
            first.setdefault(f.chunk, f)
        return [Hit(chunk, f.source, f.passage, {self.into: float(f.score)}) for chunk, f in first.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """Scores each hit by the cosine of the query and the passage's best chunk; adds and removes no hits.

    Several such steps, for several models or queries, score the same hits; `fuse` weights the scores. A hit
    without a vector gets no score; the field `missing` of `fuse` decides how such a hit counts.
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
            best = [{f.chunk: float(f.score) for f in reversed(some)} for some in found]  # best chunk wins
            return [add_scores(q, self.into, by) for q, by in zip(questions, best, strict=True)]

        return ask
