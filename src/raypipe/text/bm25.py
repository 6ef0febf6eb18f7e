"""BM25 over flat arrays of word hashes: the scores of `rank_bm25` without rebuilding its corpus.

Pure functions of arrays. rank_bm25 gives the Okapi variant's idf and parameters; knows no records, no index
and no analyzer. One path serves every size of corpus: a request's few pages get rank_bm25's
numbers (a test holds them to 1e-9), and 5,000 passages take a few milliseconds instead of 79.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
from rank_bm25 import BM25Okapi

Variant: TypeAlias = Literal["lucene", "okapi"]


class CountedOkapi(BM25Okapi):  # type: ignore[misc]  # the package has no types
    """A BM25Okapi made from counts instead of texts: `idf`, `k1` and `b` are its own.

    >>> CountedOkapi(4, {7: 1, 9: 3}).idf[7]  # log(3.5 / 1.5)
    0.8472978603872037
    """

    def __init__(self, size: int, found: Mapping[int, int]) -> None:
        """`size`: passages; `found`: for each word, how many passages hold it."""
        self._counts = size, found
        super().__init__(())

    def _initialize(self, corpus: tuple[()]) -> Mapping[int, int]:
        """What the base class counts in a corpus."""
        self.corpus_size, found = self._counts
        return found


_OKAPI = CountedOkapi(1, {0: 1})

DEFAULTS: dict[Variant, tuple[float, float]] = {"lucene": (1.2, 0.75), "okapi": (_OKAPI.k1, _OKAPI.b)}
"""k1 and b. Okapi: WeKnow-RAG's and rank_bm25's own, 1.5 and 0.75; Lucene: its BM25Similarity's."""


class Bm25Corpus:
    """The passages that a query is scored against, and the statistics they give.

    `offsets` (passages + 1,) int64 and `hashes` (words,) uint64: the words of passage i are
    `hashes[offsets[i]:offsets[i + 1]]`.
    """

    def __init__(self, offsets: np.ndarray, hashes: np.ndarray) -> None:
        self.offsets, self.hashes = offsets, hashes
        self.size = len(offsets) - 1
        self.lengths = np.diff(offsets)  # (passages,) int64, words
        self.mean_length = float(self.lengths.mean()) if self.size else 0.0

    def occurrences(self, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where sorted distinct words (terms,) uint64 occur: term number, passage number and count, each
        (pairs,) int64, by term and passage."""
        at = np.flatnonzero(np.isin(self.hashes, terms))
        term = np.searchsorted(terms, self.hashes[at])
        passage = np.searchsorted(self.offsets, at, side="right") - 1
        key, count = np.unique(term * self.size + passage, return_counts=True)
        return key // max(self.size, 1), key % max(self.size, 1), count

    @cached_property
    def frequencies(self) -> dict[int, int]:
        """Document frequency: word -> number of passages that hold it."""
        words = pa.array(self.hashes).dictionary_encode()
        passage = np.repeat(np.arange(self.size), self.lengths)
        pair = np.sort(words.indices.to_numpy().astype(np.int64) * self.size + passage)
        once = pair[np.diff(pair, prepend=-1) > 0] // max(self.size, 1)
        return dict(zip(words.dictionary.to_pylist(), np.bincount(once).tolist(), strict=True))


def scores(
    pool: Bm25Corpus, query: np.ndarray, variant: Variant, k1: float, b: float
) -> tuple[np.ndarray, np.ndarray]:
    """The passages that hold a word of the query, ascending, and their scores: (hits,) int64, (hits,)
    float64.

    `query` (words,) uint64; a repeated word counts as often as it occurs. An Okapi score can be zero or
    below (rank_bm25 floors an idf at a quarter of the mean idf, which may itself be negative); a Lucene
    score cannot.
    """
    terms, repeats = np.unique(query, return_counts=True)
    term, passage, count = pool.occurrences(terms)
    if not len(term):
        return np.empty(0, np.int64), np.empty(0, np.float64)
    found = np.bincount(term, minlength=len(terms))  # (terms,) passages that hold it
    idf = _okapi_idf(pool, terms, found) if variant == "okapi" else _lucene_idf(pool, found)
    norm = k1 * (1 - b + b * pool.lengths[passage] / pool.mean_length)
    weight = idf[term] * repeats[term] * count * (k1 + 1) / (count + norm)
    passages, place = np.unique(passage, return_inverse=True)
    return passages, np.bincount(place, weights=weight)


def _lucene_idf(pool: Bm25Corpus, found: np.ndarray) -> np.ndarray:
    return np.log1p((pool.size - found + 0.5) / (found + 0.5))


def _okapi_idf(pool: Bm25Corpus, terms: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(terms,) float64, 0 for a word that no passage holds."""
    # The vocabulary's mean idf only makes the floor, and that is for words in more than half of the passages.
    common = bool((2 * found > pool.size).any())
    seen = {int(t): int(n) for t, n in zip(terms, found, strict=True) if n}
    okapi = CountedOkapi(pool.size, pool.frequencies if common else seen)
    return np.array([okapi.idf.get(int(t), 0.0) for t in terms])
