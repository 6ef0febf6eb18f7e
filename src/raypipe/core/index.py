"""Contract of search, and the records that a search returns. `store.index` implements the contract twice: on
the tables of a store, and on the pages of one request, in memory."""

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
    """Settings of approximate search, in place of exact search over a whole snapshot."""

    index: Literal["ivf_rq"]  # LanceDB's inverted file with RaBitQ codes; an eval builds it
    probes: int  # number of partitions that are searched for a question
    refine: int  # `refine` x `top` candidates are scored again with whole vectors
    min_recall: float  # 0..1: least share of the exact best that each measured question must find

    def __post_init__(self) -> None:
        if self.probes < 1 or self.refine < 1:
            raise ValueError(f"probes and refine: expected at least 1, found {self.probes} and {self.refine}")
        if not 0 <= self.min_recall <= 1:
            raise ValueError(f"min_recall: expected 0 to 1, found {self.min_recall}")


@dataclass(frozen=True, slots=True)
class AnnRecall:
    """Measured recall of an approximate search: the share of the exact best chunks that it finds, 0..1."""

    index: str  # name of the index, which is its identity
    top: int
    probes: int
    refine: int
    questions: int  # number of measured questions
    mean: float  # mean recall
    fifth: float  # 5th percentile of the recall
    worst: float  # least recall of a question
    worst_question: str  # id of that question


@dataclass(frozen=True, slots=True)
class VectorHit:
    source: str  # source id
    span: Span  # span of the chunk
    passage: Span  # span of the chunk's passage: its parent, or the chunk itself
    score: float  # inner product of unit vectors, -1..1

    @property
    def chunk(self) -> str:
        """Id of the passage, as in `Hit.chunk`."""
        return chunk_id(self.source, self.passage)


@dataclass(frozen=True, slots=True)
class PassageWords:
    """Words of the passages in a scope, as flat arrays: the input of BM25.

    A word belongs to each passage that contains its first character. Passages are ordered by source (as in
    the scope; by id in a whole snapshot), then by span.
    """

    chunks: tuple[str, ...]  # passage ids, distinct
    offsets: np.ndarray  # (len(chunks) + 1,) int64: words of passage i are hashes[offsets[i]:offsets[i + 1]]
    hashes: np.ndarray  # (words,) uint64: text.words.word_hash of each word, in text order


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Occurrences of looked-up words in one segment of a snapshot, as flat arrays. Passages are numbered from
    0 in each segment."""

    lengths: np.ndarray  # (passages,) int32: words of each; -1: the passage has left the snapshot
    rows: np.ndarray  # (passages,) int64: number of each in the whole snapshot; -1 as above
    starts: np.ndarray  # (words + 1,) int64: word i is in passages[starts[i]:starts[i + 1]]
    passages: np.ndarray  # (pairs,) int64: passages of each word, ascending and distinct
    counts: np.ndarray  # (pairs,) int64: occurrences of the word in that passage


class Postings(Protocol):
    """Occurrences of looked-up words in all passages of a snapshot, read segment by segment."""

    @property
    def passages(self) -> int:
        """Number of passages in the snapshot."""

    @property
    def mean_length(self) -> float:
        """Mean number of words of a passage."""

    @property
    def found(self) -> np.ndarray:
        """(words,) int64: number of passages that contain each looked-up word."""

    def segments(self) -> AsyncIterator[Occurrences]:
        """Yields the occurrences of the words, one segment at a time. Skips segments without any of the
        words."""

    async def frequencies(self) -> np.ndarray:
        """Returns the number of passages with each distinct word of the snapshot, (n,) int64, unordered."""

    async def chunks(self, rows: np.ndarray) -> list[str]:
        """Returns the ids of the passages with these numbers ((n,) int64), in order."""

    async def rows_of(self, chunks: Collection[str]) -> np.ndarray:
        """Returns the numbers of these passages, (n,) int64, ascending; omits ids outside the snapshot."""


class Index(Protocol):
    """A searchable snapshot. A scope is a tuple of source ids, or None for everything. It may name sources
    that the index lacks, such as empty or faulty pages. Results are in the order of the given sources."""

    async def search(
        self, model: Model, vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], top: int
    ) -> list[list[VectorHit]]:
        """Finds the `top` best chunks for each row of `vectors` ((n, dim) float32, unit rows) within its
        scope, exactly. Chunks are ordered best first; ties are ordered by source, then span. Raises ConfError
        if the index has no vectors of this model."""

    async def near(
        self, model: Model, vectors: np.ndarray, top: int, how: Approximate
    ) -> list[list[VectorHit]]:
        """Finds `top` chunks of the snapshot for each row of `vectors`, ordered as in `search`. Scores are
        exact; some of the best chunks may be missing. Pages in memory are searched exactly. Raises ConfError
        as `search` does, and if a store has no approximate index."""

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        """Returns the texts of passages by id. Raises KeyError if a source is not in the index."""

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        """Returns the whole parsed text of each source. None: the index does not hold the source."""

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Span, ...]]:
        """Returns the hidden spans of each source's parsed text, ascending and disjoint. (): nothing is
        hidden, or the index does not hold the source."""

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Block, ...]]:
        """Returns the blocks of each source's parsed text, ascending and disjoint. (): the blocks are
        unknown, or the index does not hold the source."""

    async def layouts(self, sources: Sequence[str]) -> list[Layout | None]:
        """Returns the layout (path, pages, date) of each source's document. None: it has no layout."""

    async def matching(self, wheres: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the ids of all sources whose fields meet all conditions, ascending. Raises ConditionError
        if a condition does not fit the fields."""

    async def narrowed(self, citations: tuple[Citation, ...], where: str) -> tuple[Citation, ...]:
        """Returns the citations with a source that meets a condition. Sources that do not meet it are removed
        from these citations."""

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        """Returns the words of every passage in the scope, as the corpus step `tokenize` stored them."""

    async def postings(self, analyzer: str, words: np.ndarray) -> Postings | None:
        """Looks up words ((words,) uint64, ascending and distinct) in the whole snapshot. None: the index has
        no postings of the analyzer. The method `words` then gives equal scores, but takes more memory."""
