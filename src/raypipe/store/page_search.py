"""Exact dense search within the pages that questions name: rows are read once for a batch, in page order.

Knows Arrow tables with the columns of passages and `vector`; knows neither a store nor a memory index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import SPANS
from raypipe.core.index import VectorHit
from raypipe.store.products import best_first, exact_scores, product_error
from raypipe.store.vector_copy import matrix_of

Stretch: TypeAlias = tuple[int, int, int]
"""Rows of one page, side by side: the number of their batch, the first, and the one behind the last."""


class PageVectors:
    """Rows of some pages in memory, where they were read: no vector is copied."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: the columns of passages, and vector; the rows of a page may lie apart."""
        self.dim: int = rows.schema.field("vector").type.list_size
        batches = rows.to_batches()
        self.matrices = [matrix_of(batch["vector"]) for batch in batches]  # (rows, dim) float32 each
        self._sources = [batch["source"] for batch in batches]
        self._spans = [[batch[name].to_numpy() for name in SPANS[1:]] for batch in batches]
        self._stretches: dict[str, list[Stretch]] = {}
        for number, sources in enumerate(self._sources):
            runs, start = pc.run_end_encode(sources), 0
            for source, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                self._stretches.setdefault(source, []).append((number, start, end))
                start = end

    def hit(self, number: int, row: int, score: float) -> VectorHit:
        """A row of a batch as what was found."""
        start, end, parent_start, parent_end = (int(column[row]) for column in self._spans[number])
        source = self._sources[number][row].as_py()
        return VectorHit(source, (start, end), (parent_start, parent_end), score)

    def stretches(self, scope: Iterable[str] | None) -> list[Stretch]:
        """The rows of a scope as few stretches, each row once; None: all rows."""
        if scope is None:
            return [(number, 0, len(matrix)) for number, matrix in enumerate(self.matrices) if len(matrix)]
        found: list[Stretch] = []
        for source in dict.fromkeys(scope):
            for number, start, end in self._stretches.get(source, ()):
                if found and found[-1][0] == number and found[-1][2] == start:
                    found[-1] = number, found[-1][1], end
                else:
                    found.append((number, start, end))
        return found


class BestWithin:
    """The best of one query so far: by exact score, then source, then span."""

    def __init__(self, query: np.ndarray, scope: tuple[str, ...] | None, top: int) -> None:
        """`query`: (dim,) float32, a unit row."""
        self._query, self._scope, self._top = query, scope, top
        self._error = 2 * product_error(len(query))
        self._scores = np.zeros(0, np.float64)
        self._rows: list[tuple[PageVectors, int, int]] = []  # with the numbers of batch and row

    def add(self, pages: PageVectors) -> None:
        """Looks at rows that no earlier call had."""
        stretches = pages.stretches(self._scope)
        before = np.cumsum([0, *(end - start for _, start, end in stretches)])
        near = np.empty(before[-1], np.float32)  # (rows in scope,)
        for (number, start, end), at in zip(stretches, before.tolist(), strict=False):
            np.dot(pages.matrices[number][start:end], self._query, out=near[at : at + end - start])
        # Exact scores differ from these by an error at most: what is two below the last of the best is out.
        cut = -np.inf
        if len(near) > self._top:
            cut = float(np.partition(near, -self._top)[-self._top]) - self._error
        if len(self._scores) >= self._top:
            cut = max(cut, float(self._scores.min()) - self._error)
        kept = np.flatnonzero(near >= np.nextafter(np.float32(cut), np.float32(-np.inf)))
        if not len(kept):
            return
        of = np.searchsorted(before, kept, side="right") - 1
        rows = []
        for stretch, inside in zip(of.tolist(), (kept - before[of]).tolist(), strict=True):
            number, start, _ = stretches[stretch]
            rows.append((pages, number, start + inside))
        vectors = np.stack([pages.matrices[number][row] for _, number, row in rows])
        self._scores = np.concatenate([self._scores, exact_scores(vectors, self._query)])
        self._rows = [*self._rows, *rows]
        if len(self._scores) > self._top:
            left = np.flatnonzero(self._scores >= np.partition(self._scores, -self._top)[-self._top])
            self._scores, self._rows = self._scores[left], [self._rows[i] for i in left.tolist()]

    def hits(self) -> list[VectorHit]:
        scored = zip(self._rows, self._scores.tolist(), strict=True)
        return best_first(pages.hit(number, row, score) for (pages, number, row), score in scored)[
            : self._top
        ]


def best_within(
    blocks: Iterable[PageVectors], queries: Sequence[tuple[np.ndarray, tuple[str, ...] | None]], top: int
) -> list[list[VectorHit]]:
    """For each query, (dim,) float32 with its scope, the `top` best of the scope, over blocks of rows."""
    found = [BestWithin(query, scope, top) for query, scope in queries]
    for block in blocks:
        for best in found:
            best.add(block)
    return [best.hits() for best in found]
