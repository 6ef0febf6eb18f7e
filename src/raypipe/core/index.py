"""The contract of what can be searched, exactly or approximately, and the records that it gives. Protocols
and plain values only.

The tables of a store and the pages of one request keep it (`store.index`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from raypipe.core.records import Block, Citation, Layout, Span, chunk_id

if TYPE_CHECKING:
    from raypipe.core.protocols import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """Settings by which a whole snapshot is searched by an approximate index in place of the exact
    product."""

    index: Literal["ivf_rq"]  # LanceDB's inverted file with RaBitQ codes; an eval builds it
    probes: int  # partitions that are looked into for a question
    refine: int  # times `top` candidates are scored again with their whole vectors
    min_recall: float  # 0..1: least share of the exact best that any measured question must find

    def __post_init__(self) -> None:
        if self.probes < 1 or self.refine < 1:
            raise ValueError(f"probes and refine: expected at least 1, found {self.probes} and {self.refine}")
        if not 0 <= self.min_recall <= 1:
            raise ValueError(f"min_recall: expected 0 to 1, found {self.min_recall}")


@dataclass(frozen=True, slots=True)
class AnnRecall:
    """Recall of an approximate search: its share of the exact product's best, measured over some
    questions."""

    index: str  # its name, which is its identity
    top: int
    probes: int
    refine: int
    questions: int
    mean: float  # of the shares of the exact best, 0..1
    fifth: float  # 5 % of the questions have at most this share
    worst: float
    worst_question: str  # its id


@dataclass(frozen=True, slots=True)
class VectorHit:
    """A chunk that a vector search found."""

    source: str  # source id
    span: Span  # of the chunk itself
    passage: Span  # of the passage it belongs to: its parent, or itself
    score: float  # inner product of unit vectors, -1..1

    @property
    def chunk(self) -> str:
        """Id of the passage, as in `Hit.chunk`."""
        return chunk_id(self.source, self.passage)


@dataclass(frozen=True, slots=True)
class PassageWords:
    """The words of the passages in a scope, as flat arrays: what BM25 needs and nothing else.

    A word belongs to the passage in which it starts. Passages are ordered by source (in the scope's order;
    the whole snapshot: by id), then by span.
    """

    chunks: tuple[str, ...]  # passage ids, distinct
    offsets: np.ndarray  # (len(chunks) + 1,) int64: words of passage i are hashes[offsets[i]:offsets[i + 1]]
    hashes: np.ndarray  # (words,) uint64: text.words.word_hash of each word, in text order


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Occurrences of the words of a look-up in a segment of a snapshot, as flat arrays. The passages of a
    segment are numbered from 0."""

    lengths: np.ndarray  # (passages,) int32: words of each; -1 for one that is not in the snapshot any more
    rows: np.ndarray  # (passages,) int64: the number of each in the whole snapshot; -1 as above
    starts: np.ndarray  # (words + 1,) int64: word i is in passages[starts[i]:starts[i + 1]]
    passages: np.ndarray  # (pairs,) int64, ascending for each word, none twice
    counts: np.ndarray  # (pairs,) int64: how often the word is in that passage


class Postings(Protocol):
    """Occurrences of some words in all passages of a snapshot, read segment by segment."""

    @property
    def passages(self) -> int:
        """Passages of the snapshot."""
        ...

    @property
    def mean_length(self) -> float:
        """Mean number of words of a passage."""
        ...

    @property
    def found(self) -> np.ndarray:
        """(words,) int64: in how many passages each word of the look-up is."""
        ...

    def segments(self) -> AsyncIterator[Occurrences]:
        """Returns what each segment has of these words; a segment without any of them is left out."""
        ...

    async def frequencies(self) -> np.ndarray:
        """(distinct words of the snapshot,) int64: in how many passages each is, in no order."""
        ...

    async def chunks(self, rows: np.ndarray) -> list[str]:
        """The passage ids of these numbers ((n,) int64), in order."""
        ...

    async def rows_of(self, chunks: Collection[str]) -> np.ndarray:
        """(n,) int64: the numbers of these passages, ascending; those that the snapshot has not are left
        out."""
        ...


class Index(Protocol):
    """A searchable snapshot: the store's tables, or a request's own pages in memory. A scope is a tuple of
    source ids; None is everything. A source in a scope that the index does not hold is no error: an empty or
    faulty page has no passages."""

    async def search(
        self, model: Model, vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], top: int
    ) -> list[list[VectorHit]]:
        """The `top` best chunks for each row of vectors ((n, dim) float32, unit rows) within its scope, best
        first; ties by (source, span). Exact. Raises ConfError if no vectors of this model are here."""
        ...

    async def near(
        self, model: Model, vectors: np.ndarray, top: int, how: Approximate
    ) -> list[list[VectorHit]]:
        """About the `top` best chunks of everything for each row of vectors, best first; ties by (source,
        span). Scores are exact, and some of the best may not be found. Raises ConfError as `search`, and
        where there is no such index; pages in memory have none and are searched exactly."""
        ...

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        """The text of each passage id, in order. Raises KeyError for a source that is not here."""
        ...

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        """The whole parsed text of each source id, in order; None where the index does not hold it."""
        ...

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Span, ...]]:
        """Returns what each source's page carries and does not show, as spans of its parsed text, ascending
        and apart, in order; () where the index does not hold the source."""
        ...

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Block, ...]]:
        """The blocks of each source's parsed text, ascending and apart, in order; () where the index does not
        hold the source or its borders are not known."""
        ...

    async def layouts(self, sources: Sequence[str]) -> list[Layout | None]:
        """Returns the place and time of the file of each source, in order; None where it is of none."""
        ...

    async def matching(self, wheres: tuple[str, ...]) -> tuple[str, ...]:
        """The ids of all sources with fields for which all conditions hold, ascending. Raises ConditionError
        for one that the fields do not fit."""
        ...

    async def narrowed(self, citations: tuple[Citation, ...], where: str) -> tuple[Citation, ...]:
        """Those citations, and parts of them, for which a condition holds."""
        ...

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        """The words that the corpus step `tokenize` kept, for every passage in the scope."""
        ...

    async def postings(self, analyzer: str, words: np.ndarray) -> Postings | None:
        """Looks up words ((words,) uint64, ascending and distinct) in the whole snapshot. None where this
        index keeps no postings of the analyzer: `words` then gives equal scores, from more memory."""
        ...
