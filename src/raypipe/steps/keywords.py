"""Keyword recall: BM25 over exactly the passages of the question's sources. Knows words only as hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from raypipe.records import Hit, Question, parse_chunk_id
from raypipe.step import Ask, Kit
from raypipe.steps.ranking import add_hits, best_first
from raypipe.text import bm25
from raypipe.text.template import PLAIN, query_reads, query_renderer
from raypipe.text.words import analyse

Scope: TypeAlias = tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keywords:
    """Adds the `top` best passages by BM25 to `hits`; a passage that holds no word of the query is no hit.

    The statistics (idf, mean length) are those of the question's own sources, so what another question cites
    changes nothing. It makes candidates: `order` stays as it was, and `fuse` ranks them.
    """

    top: int  # passages
    words: str = "stems"  # analyzer: one that the corpus half's `tokenise` kept
    variant: bm25.Variant = "lucene"
    k1: float | None = None  # None: 1.2 for lucene, 1.5 for okapi
    b: float | None = None  # None: 0.75
    query: str = PLAIN
    into: str = "keywords"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.top < 1:
            raise ValueError(f"top: expected at least 1 passage, found {self.top}")

    def reads(self) -> frozenset[str]:
        return query_reads(self.query) | {"citations", f"index.words_{self.words}"}

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}"})

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        index = kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            scopes = [q.sources() for q in questions]
            pools: dict[Scope, tuple[tuple[str, ...], bm25.Pool]] = {}
            for scope in dict.fromkeys(scopes):  # each fetched, and its statistics made, once per batch
                words = await index.words(self.words, scope)
                pools[scope] = words.chunks, bm25.Pool(words.offsets, words.hashes)
            return [
                add_hits(q, self._best(render(q), *pools[scope]))
                for q, scope in zip(questions, scopes, strict=True)
            ]

        return ask

    def _best(self, query: str, chunks: tuple[str, ...], pool: bm25.Pool) -> list[Hit]:
        hashes, _ = analyse(query, self.words)
        k1, b = bm25.DEFAULTS[self.variant]
        k1, b = (k1 if self.k1 is None else self.k1), (b if self.b is None else self.b)
        passages, scores = bm25.scores(pool, hashes, self.variant, k1, b)
        if len(scores) > self.top:  # only what can be among the best is sorted by its id
            kept = scores >= np.partition(scores, -self.top)[-self.top]
            passages, scores = passages[kept], scores[kept]
        by_chunk = {chunks[i]: float(s) for i, s in zip(passages, scores, strict=True)}
        return [Hit(c, *parse_chunk_id(c), {self.into: by_chunk[c]}) for c in best_first(by_chunk, self.top)]
