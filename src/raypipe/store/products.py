"""Exact dense search over a whole snapshot: one float32 product for each batch of questions.

A product of 256 questions reads the vectors once, where a scan for each question reads them 256 times. What
could be among the best within float32's error is then scored in double precision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from lance import LanceDataset

from raypipe.core.arrow import SPANS
from raypipe.core.index import VectorHit
from raypipe.store.errors import reaching
from raypipe.store.vector_copy import BLOCK, blocks, matrix_of, vector_matrix

OpenMatrix: TypeAlias = Callable[[LanceDataset, Path], np.ndarray | None]
Product: TypeAlias = Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]
"""queries (n, dim) -> what gives a block's (rows, dim) scores, (n, rows); all float32, and none errs by more
than `product_error`. A GPU's is `models.products.torch_product`."""
AT_ONCE = 256  # questions of a product: at 400,000 x 384 a question takes 37 ms alone, 3.3 at 50, 1.9 at 256


def product_error(dim: int) -> float:
    """The most by which the float32 inner product of two unit vectors may err: a rounding per dimension."""
    return 2.0**-22 + dim * 2.0**-24


def numpy_product(queries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The product on this process's cores (`Product`)."""

    def scores(block: np.ndarray) -> np.ndarray:
        found: np.ndarray = queries @ block.T
        return found

    return scores


class SnapshotVectors:
    """The vectors of a table at a pinned version."""

    def __init__(
        self, dataset: LanceDataset, folder: Path, opened: OpenMatrix = vector_matrix,
        product: Product = numpy_product,
    ) -> None:  # fmt: skip
        """`folder`: where a copy on this machine may lie, which `opened` makes at the first call."""
        self._dataset, self._folder, self._open, self._product = dataset, folder, opened, product
        self._matrix: np.ndarray | None = None
        self._opened = False
        self._lock = threading.Lock()  # one product at a time: it takes all cores, and its scores' memory

    def best(self, calls: list[tuple[np.ndarray, int]]) -> list[list[list[VectorHit]]]:
        """For each call, queries ((n, dim) float32, unit rows) and `top`: the best of each query, by exact
        score, then source, then span."""
        queries = np.concatenate([q for q, _ in calls])
        tops = [top for q, top in calls for _ in range(len(q))]
        with self._lock:
            if not self._opened:
                self._matrix, self._opened = self._open(self._dataset, self._folder), True
            found = [
                hits
                for at in range(0, len(queries), AT_ONCE)
                for hits in self._some(queries[at : at + AT_ONCE], tops[at : at + AT_ONCE])
            ]
        ends = np.cumsum([len(q) for q, _ in calls]).tolist()
        return [found[end - len(q) : end] for (q, _), end in zip(calls, ends, strict=True)]

    def _some(self, queries: np.ndarray, tops: list[int]) -> list[list[VectorHit]]:
        candidates = near(self._blocks(), queries, max(tops), self._product)
        exact = []
        for query, rows, top in zip(queries, candidates, tops, strict=True):
            scores = exact_scores(self._vectors(rows), query)
            if len(scores) > top:
                kept = scores >= np.partition(scores, -top)[-top]
                rows, scores = rows[kept], scores[kept]
            exact.append((rows, scores))
        distinct, places = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in exact)]), return_inverse=True
        )
        names = self._take(distinct, SPANS).to_pylist() if len(distinct) else []
        named = iter(places.tolist())
        hits = [[hit_of(names[next(named)], score) for score in scores.tolist()] for _, scores in exact]
        return [best_first(some)[:top] for some, top in zip(hits, tops, strict=True)]

    def _blocks(self) -> Iterator[np.ndarray]:
        if self._matrix is None:
            return blocks(self._dataset)
        matrix = self._matrix
        return (matrix[at : at + BLOCK] for at in range(0, len(matrix), BLOCK))

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim) float32."""
        if self._matrix is not None:
            return np.asarray(self._matrix[rows])
        return matrix_of(self._take(rows, ("vector",))["vector"].combine_chunks())

    def _take(self, rows: np.ndarray, columns: Iterable[str]) -> pa.Table:
        with reaching(self._dataset.uri):
            return self._dataset.take(pa.array(rows), columns=list(columns))


def hit_of(row: Mapping[str, Any], score: float) -> VectorHit:
    """A row with the columns of passages as what was found."""
    source, start, end, parent_start, parent_end = (row[name] for name in SPANS)
    return VectorHit(source, (start, end), (parent_start, parent_end), score)


def best_first(hits: Iterable[VectorHit]) -> list[VectorHit]:
    """By score, then source, then span."""
    return sorted(hits, key=lambda f: (-f.score, f.source, f.span))


def exact_scores(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(n,) float64: the inner products of (n, dim) and (dim,), each in double precision."""
    scores: np.ndarray = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return scores


def near(
    matrix: Iterable[np.ndarray], queries: np.ndarray, top: int, product: Product = numpy_product
) -> list[np.ndarray]:
    """For each query the rows that can be among its `top` best by exact score, and all that tie with them:
    (n,) int64, ascending. `matrix`: (rows, dim) float32 blocks of unit rows, in order.

    A row whose float32 score is more than two errors below the `top`-th best one is none of them: that one's
    exact score is at most an error lower, and its own at most an error higher.
    """
    error = 2 * product_error(queries.shape[1])
    kept = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
    cut = np.full(len(queries), -np.inf)
    first, score = 0, product(queries)
    for block in matrix:
        scores = score(block)  # (queries, rows) float32
        if not np.isfinite(cut).all() and len(block) >= top:
            cut = np.maximum(cut, np.partition(scores, -top, axis=1)[:, -top] - error)
        bound = np.nextafter(cut.astype(np.float32), np.float32(-np.inf))  # never above the cut
        of, row = np.nonzero(scores >= bound[:, None])
        values, ends = scores[of, row], np.searchsorted(of, np.arange(1, len(queries) + 1))
        begin = 0
        for i, end in enumerate(ends.tolist()):
            if end > begin:
                kept[i], cut[i] = _better(*kept[i], row[begin:end] + first, values[begin:end], top, error)
            begin = end
        first += len(block)
    return [rows for rows, _ in kept]


def _better(
    rows: np.ndarray, scores: np.ndarray, more: np.ndarray, values: np.ndarray, top: int, error: float
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """The candidates of a query after some more rows, and the score below which there are none."""
    rows, scores = np.concatenate([rows, more]), np.concatenate([scores, values])
    if len(scores) < top:
        return (rows, scores), -np.inf
    cut = float(np.partition(scores, -top)[-top]) - error
    left = scores >= cut
    return (rows[left], scores[left]), cut
