"""Keyword search: `Tokenize` stores the word hashes of each text, `Bm25` ranks passages by these hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from raypipe.core.digests import ADDED
from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Bound, Build, CorpusBound, Kit, Reach
from raypipe.core.records import Hit, Question, parse_chunk_id
from raypipe.steps.field_checks import require_positive
from raypipe.steps.hits import Scope, add_hits, best_first, grown, pool_of, scopes_of
from raypipe.text import bm25
from raypipe.text.filters import parse
from raypipe.text.template import PLAIN, query_reads, query_renderer
from raypipe.text.words import ANALYZERS, Analyzer, analyse

Sources: TypeAlias = tuple[str, ...] | None
SourceKind: TypeAlias = Literal["page", "snippet", "name"]
"""Kinds of source that a citation can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25:
    """Adds the `top` best passages by BM25 to `hits`. A passage must contain a word of the query.

    The statistics (idf, mean length) come from the sources that the question cites, so citations of other
    questions have no influence. With `scope: all`, or without citations, they come from the whole store. A
    condition `where`, of the step or the question, narrows these sources. `order`, the question's ranking,
    does not change: `fuse` ranks the new hits.

    `kinds` and `among` restrict the hits but not the statistics. So a passage has the same score in steps
    that differ only in these two fields. WeKnow (section 3.2) has three such steps. The first finds pages,
    the second finds snippets and names, and the third searches among the hits of the first two.
    """

    top: int  # most passages found
    words: str = "stems"  # analyzer of one of the recipe's `tokenize` steps
    variant: bm25.Variant = "lucene"
    k1: float | None = None  # None: 1.2 for lucene, 1.5 for okapi
    b: float | None = None  # None: 0.75
    kinds: tuple[SourceKind, ...] = ()  # kinds of sources to search; uncited sources are pages; (): all kinds
    among: tuple[str, ...] = ()  # score names: search only hits with one of these scores; (): all passages
    scope: Scope = "own"  # own: cited sources, or the whole store if none are given; all: the whole store
    where: str = field(default="", metadata=ADDED)  # condition on the fields of sources to search; "": none
    query: str = PLAIN
    into: str = "bm25"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.where:
            parse(self.where)
        require_positive(self, "top")

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
            queries = [analyse(render(q), self.words)[0] for q in questions]
            scoped = await scopes_of(index, questions, self.scope, self.where)
            whole = [i for i, scope in enumerate(scoped) if scope is None]
            found = await self._in_snapshot(index, [questions[i] for i in whole], [queries[i] for i in whole])
            hits = dict(zip(whole, found, strict=False))  # empty if the index keeps no postings
            scopes = {i: scope for i, scope in enumerate(scoped) if i not in hits}
            pools: dict[Sources, tuple[tuple[str, ...], bm25.Bm25Corpus]] = {}
            for scope in dict.fromkeys(scopes.values()):  # one fetch and one count per batch and scope
                words = await index.words(self.words, scope)
                pools[scope] = words.chunks, bm25.Bm25Corpus(words.offsets, words.hashes)
            for i, scope in scopes.items():
                hits[i] = self._best(queries[i], *pools[scope], questions[i])
            return [add_hits(q, hits[i]) for i, q in enumerate(questions)]

        return ask

    async def _in_snapshot(
        self, index: Index, questions: list[Question], queries: list[np.ndarray]
    ) -> list[list[Hit]]:
        """Finds the hits of questions that search the whole store, by its postings (each word's passages).
        Returns [] if the index has no postings. Memory holds one segment of the postings at a time."""
        words = np.unique(np.concatenate([np.zeros(0, np.uint64), *queries]))
        tables = await index.postings(self.words, words) if questions else None
        if tables is None:
            return []
        if self.kinds and "page" not in self.kinds:
            return [[] for _ in questions]  # uncited sources count as pages
        k1, b = self._k1_b()
        asked = [bm25.query_words(q, words) for q in queries]
        best = [bm25.Best(self.top) for _ in questions]
        among = [await tables.rows_of(pool_of(q, self.among)) if self.among else None for q in questions]
        if self.variant == "lucene":
            idf = bm25.lucene_idf(tables.passages, tables.found)
        else:
            common = bool((2 * tables.found > tables.passages).any())
            every = await tables.frequencies() if common else None
            idf = bm25.okapi_idf(tables.passages, tables.found, every)
        async for segment in tables.segments():
            scores = bm25.SegmentScores(segment, idf, tables.mean_length, k1, b)
            for query, found, rows in zip(asked, best, among, strict=True):
                passages, values = scores.of(query, found.bound if rows is None else -np.inf)
                if rows is not None:
                    known = np.isin(segment.rows[passages], rows)
                    passages, values = passages[known], values[known]
                found.add(segment.rows[passages], values)
        chunks = iter(await tables.chunks(np.concatenate([np.zeros(0, np.int64), *(f.rows for f in best)])))
        return [self._hits({next(chunks): s for s in found.scores.tolist()}) for found in best]

    def _k1_b(self) -> tuple[float, float]:
        k1, b = bm25.DEFAULTS[self.variant]
        return (k1 if self.k1 is None else self.k1), (b if self.b is None else self.b)

    def _best(
        self, query: np.ndarray, chunks: tuple[str, ...], pool: bm25.Bm25Corpus, question: Question
    ) -> list[Hit]:
        passages, scores = bm25.scores(pool, query, self.variant, *self._k1_b())
        known = pool_of(question, self.among)
        kinds = [kind for kind in get_args(SourceKind) if kind not in self.kinds]
        other = {getattr(c, kind) for c in question.citations or () for kind in kinds}
        everything = self.scope == "all" or question.citations is None

        def may(chunk: str) -> bool:
            if self.among and chunk not in known:
                return False
            if not self.kinds:
                return True
            # Without citations every source counts as a page.
            return "page" in self.kinds if everything else parse_chunk_id(chunk)[0] not in other

        if self.kinds or self.among:
            found = np.array([may(chunks[i]) for i in passages], bool)
            passages, scores = passages[found], scores[found]
        if len(scores) > self.top:  # drop all that cannot be among the best before sorting by id
            kept = scores >= np.partition(scores, -self.top)[-self.top]
            passages, scores = passages[kept], scores[kept]
        return self._hits({chunks[i]: float(s) for i, s in zip(passages, scores, strict=True)})

    def _hits(self, by_chunk: Mapping[str, float]) -> list[Hit]:
        return [Hit(c, *parse_chunk_id(c), {self.into: by_chunk[c]}) for c in best_first(by_chunk, self.top)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize:
    """Adds two columns for an analyzer NAME of `text.words`. `words_NAME` holds the hash of each word of a
    text, in order. `starts_NAME` holds the offset of each word. Both are null for a row without text."""

    words: Analyzer = "stems"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.words not in ANALYZERS:
            raise ValueError(f"words: expected one of {', '.join(ANALYZERS)}, found {self.words!r}")

    def reads(self) -> frozenset[str]:
        return frozenset({"text"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"words_{self.words}", f"starts_{self.words}"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars)

    def open(self, kit: Kit) -> Build:
        async def build(table: pa.Table) -> pa.Table:
            found = [None if t is None else analyse(t, self.words) for t in table["text"].to_pylist()]
            ends = np.cumsum([0, *(0 if f is None else len(f[0]) for f in found)])  # end of each row's words
            offsets = pa.array(ends, pa.int32(), mask=np.array([*(f is None for f in found), False]))
            empty = (np.zeros(0, np.uint64), np.zeros(0, np.int32))
            words, starts = (np.concatenate(a) for a in zip(empty, *(f for f in found if f), strict=True))
            table = table.append_column(f"words_{self.words}", pa.ListArray.from_arrays(offsets, words))
            return table.append_column(f"starts_{self.words}", pa.ListArray.from_arrays(offsets, starts))

        return build
