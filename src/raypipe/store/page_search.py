"""Exact dense search within the pages that questions name: rows are read once for a batch, in page order.

Knows Arrow tables with the columns of passages and `vector`; knows neither a store nor a memory index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from raypipe.core.arrow import SPANS
from raypipe.core.protocols import VectorHit
from raypipe.store.products import product_error


class PageVectors:
    """Rows of some pages in memory, those of a page side by side."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """`rows`: the columns of passages, and vector; pages keep the order in which they first stand."""
        coded = rows["source"].dictionary_encode()
        code = coded.indices.to_numpy(zero_copy_only=False)
        if (np.diff(code) < 0).any():  # pages in pieces: put together once
            order = np.argsort(code, kind="stable")
            rows, code = rows.take(pa.array(order)), code[order]
        self.matrix = matrix_of(rows["vector"])  # (rows, dim) float32
        self._names, self._code = coded.dictionary.to_pylist(), code
        self._spans = [rows[name].to_numpy() for name in SPANS[1:]]
        ends = np.searchsorted(code, np.arange(len(self._names)), side="right").tolist()
        self._ranges = dict(zip(self._names, zip([0, *ends], ends, strict=False), strict=True))

    def span(self, row: int) -> tuple[str, int, int, int, int]:
        """Source, chunk and passage of a row."""
        start, end, parent_start, parent_end = (int(column[row]) for column in self._spans)
        return self._names[self._code[row]], start, end, parent_start, parent_end

    def ranges(self, scope: Iterable[str] | None) -> list[tuple[int, int]]:
        """The rows of a scope as few ranges, each row once; None: all rows."""
        if scope is None:
            return [(0, len(self.matrix))] if len(self.matrix) else []
        found: list[tuple[int, int]] = []
        for source in dict.fromkeys(scope):
            start, end = self._ranges.get(source, (0, 0))
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], end
            elif end > start:
                found.append((start, end))
        return found


class BestWithin:
    """The best of one query so far: by exact score, then source, then span."""

    def __init__(self, query: np.ndarray, scope: tuple[str, ...] | None, top: int) -> None:
        """`query`: (dim,) float32, a unit row."""
        self._query, self._scope, self._top = query, scope, top
        self._error = 2 * product_error(len(query))
        self._scores = np.zeros(0, np.float64)
        self._hits: list[tuple[PageVectors, int]] = []

    def add(self, pages: PageVectors) -> None:
        """Looks at rows that no earlier call had."""
        ranges = pages.ranges(self._scope)
        if not ranges:
            return
        parts = [pages.matrix[start:end] @ self._query for start, end in ranges]
        near = parts[0] if len(parts) == 1 else np.concatenate(parts)  # (rows in scope,) float32
        # Exact scores differ from these by an error at most: what is two below the last of the best is out.
        cut = -np.inf
        if len(near) > self._top:
            cut = float(np.partition(near, -self._top)[-self._top]) - self._error
        if len(self._scores) >= self._top:
            cut = max(cut, float(self._scores.min()) - self._error)
        kept = np.flatnonzero(near >= np.nextafter(np.float32(cut), np.float32(-np.inf)))
        if not len(kept):
            return
        starts, lengths = np.array(ranges).T[0], [end - start for start, end in ranges]
        before = np.concatenate([[0], np.cumsum(lengths)])
        of = np.searchsorted(before, kept, side="right") - 1
        rows = kept - before[of] + starts[of]
        exact = (pages.matrix[rows].astype(np.float64) * self._query.astype(np.float64)).sum(axis=1)
        self._scores = np.concatenate([self._scores, exact])
        self._hits += [(pages, row) for row in rows.tolist()]
        if len(self._scores) > self._top:
            left = np.flatnonzero(self._scores >= np.partition(self._scores, -self._top)[-self._top])
            self._scores, self._hits = self._scores[left], [self._hits[i] for i in left.tolist()]

    def hits(self) -> list[VectorHit]:
        found = []
        for (pages, row), score in zip(self._hits, self._scores.tolist(), strict=True):
            source, start, end, parent_start, parent_end = pages.span(row)
            found.append(VectorHit(source, (start, end), (parent_start, parent_end), score))
        return sorted(found, key=lambda f: (-f.score, f.source, f.span))[: self._top]


def best_within(
    blocks: Iterable[PageVectors], queries: Sequence[tuple[np.ndarray, tuple[str, ...] | None]], top: int
) -> list[list[VectorHit]]:
    """For each query, (dim,) float32 with its scope, the `top` best of the scope, over blocks of rows."""
    found = [BestWithin(query, scope, top) for query, scope in queries]
    for block in blocks:
        for best in found:
            best.add(block)
    return [best.hits() for best in found]


def matrix_of(column: pa.FixedSizeListArray) -> np.ndarray:
    """(rows, dim) float32: a column of vectors, in place; of a float16 table a copy."""
    numbers = column.flatten().to_numpy().astype(np.float32, copy=False)
    matrix: np.ndarray = numbers.reshape(len(column), column.type.list_size)
    return matrix
