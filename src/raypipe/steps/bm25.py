"""Keyword recall: BM25 over exactly the passages of the question's sources. Knows words only as hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import Citation, Hit, Question, parse_chunk_id
from raypipe.steps.ranking import Scope, add_hits, best_first, grown, pool_of, scope_of
from raypipe.text import bm25
from raypipe.text.template import PLAIN, query_reads, query_renderer
from raypipe.text.words import analyse

Sources: TypeAlias = tuple[str, ...] | None
SourceKind: TypeAlias = Literal["page", "snippet", "name"]
"""What a citation brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25:
    """Adds the `top` best passages by BM25 to `hits`; a passage that holds no word of the query is no hit.

    The statistics (idf, mean length) are those of the question's own sources, so what another question cites
    changes nothing; with `scope: all` those of the whole store. It makes candidates: `order` stays as it was,
    and `fuse` ranks them.

    `kinds` and `among` narrow what is found, never the statistics: a passage has one score, whichever step
    finds it. So WeKnow's first stage is two steps, one with the kind page and one with snippet and name,
    and its second one among what these two found (section 3.2).
    """

    top: int  # passages
    words: str = "stems"  # analyzer: one that the corpus half's `tokenize` kept
    variant: bm25.Variant = "lucene"
    k1: float | None = None  # None: 1.2 for lucene, 1.5 for okapi
    b: float | None = None  # None: 0.75
    kinds: tuple[
        SourceKind, ...
    ] = ()  # of sources to look in, what is no part of a citation is a page; (): all
    among: tuple[str, ...] = ()  # scores: only hits that have one of them are found; (): any passage
    scope: Scope = "own"  # all: also what the question does not cite
    query: str = PLAIN
    into: str = "bm25"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.top < 1:
            raise ValueError(f"top: expected at least 1 passage, found {self.top}")

    def reads(self) -> frozenset[str]:
        found = {"hits", *(f"hits.{n}" for n in self.among)} if self.among else set()
        return query_reads(self.query) | {"citations", f"index.words_{self.words}"} | found

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, grown(reach, self.top), "never")

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        index = kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            scopes = [scope_of(q, self.scope) for q in questions]
            pools: dict[Sources, tuple[tuple[str, ...], bm25.Bm25Corpus]] = {}
            for scope in dict.fromkeys(scopes):  # each fetched, and its statistics made, once per batch
                words = await index.words(self.words, scope)
                pools[scope] = words.chunks, bm25.Bm25Corpus(words.offsets, words.hashes)
            return [
                add_hits(q, self._best(render(q), *pools[scope], self._narrowed(q)))
                for q, scope in zip(questions, scopes, strict=True)
            ]

        return ask

    def _narrowed(self, question: Question) -> Callable[[str], bool]:
        """Whether a chunk id may be found."""
        known = pool_of(question, self.among)
        other = {s for c in question.citations or () for kind, s in _parts(c) if kind not in self.kinds}
        pages = "page" in self.kinds  # where nothing is cited everything is a page

        def may(chunk: str) -> bool:
            if self.among and chunk not in known:
                return False
            if not self.kinds:
                return True
            return pages if scope_of(question, self.scope) is None else parse_chunk_id(chunk)[0] not in other

        return may

    def _best(
        self, query: str, chunks: tuple[str, ...], pool: bm25.Bm25Corpus, may: Callable[[str], bool]
    ) -> list[Hit]:
        hashes, _ = analyse(query, self.words)
        k1, b = bm25.DEFAULTS[self.variant]
        k1, b = (k1 if self.k1 is None else self.k1), (b if self.b is None else self.b)
        passages, scores = bm25.scores(pool, hashes, self.variant, k1, b)
        if self.kinds or self.among:
            found = np.array([may(chunks[i]) for i in passages], bool)
            passages, scores = passages[found], scores[found]
        if len(scores) > self.top:  # only what can be among the best is sorted by its id
            kept = scores >= np.partition(scores, -self.top)[-self.top]
            passages, scores = passages[kept], scores[kept]
        by_chunk = {chunks[i]: float(s) for i, s in zip(passages, scores, strict=True)}
        return [Hit(c, *parse_chunk_id(c), {self.into: by_chunk[c]}) for c in best_first(by_chunk, self.top)]


def _parts(citation: Citation) -> Iterator[tuple[str, str]]:
    """Kind and id of each source that a citation brings."""
    for kind in ("page", "snippet", "name"):
        if (source := getattr(citation, kind)) is not None:
            yield kind, source
