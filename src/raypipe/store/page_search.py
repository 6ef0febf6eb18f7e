"""Exact dense search within the pages that questions name, over blocks of rows; knows no store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from raypipe.core.index import VectorHit
from raypipe.store.vector_rows import VectorRows


def product_error(dim: int) -> float:
    """The most by which the float32 inner product of two unit vectors may err: a rounding per dimension."""
    return 2.0**-22 + dim * 2.0**-24


def best_first(hits: Iterable[VectorHit]) -> list[VectorHit]:
    """By score, then source, then span."""
    return sorted(hits, key=lambda f: (-f.score, f.source, f.span))


def exact_scores(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(n,) float64: the inner products of (n, dim) and (dim,), each in double precision."""
    scores: np.ndarray = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return scores


class BestWithin:
    """The best of one query so far: by exact score, then source, then span."""

    def __init__(self, query: np.ndarray, scope: tuple[str, ...] | None, top: int) -> None:
        """`query`: (dim,) float32, a unit row."""
        self._query, self._scope, self._top = query, scope, top
        self._error = 2 * product_error(len(query))
        self._found: list[tuple[VectorRows, np.ndarray, np.ndarray]] = []  # rows of a block, and their scores
        self._last = -np.inf  # of `top` rows the lowest exact score: what has a lower one is out

    def add(self, pages: VectorRows) -> None:
        """Looks at rows that no earlier call had."""
        stretches = pages.stretches(self._scope)
        ends = list(accumulate((end - first for first, end in stretches), initial=0))
        near = np.empty(ends[-1], np.float32)  # (rows in scope,)
        for (first, end), at in zip(stretches, ends, strict=False):
            np.dot(pages.block(first, end), self._query, out=near[at : at + end - first])
        # Exact scores differ from these by an error at most: what is two below the last of the best is out.
        cut = self._last
        if len(near) > self._top:
            cut = max(cut, float(np.partition(near, -self._top)[-self._top]))
        kept = np.flatnonzero(near >= np.nextafter(np.float32(cut - self._error), np.float32(-np.inf)))
        if not len(kept):
            return
        of = np.searchsorted(ends, kept, side="right") - 1
        rows = kept + (np.array([first for first, _ in stretches]) - ends[:-1])[of]
        self._found.append((pages, rows, exact_scores(pages.vectors(rows), self._query)))
        scores = np.concatenate([scores for _, _, scores in self._found])
        if len(scores) >= self._top:
            self._last = float(np.partition(scores, -self._top)[-self._top])
            better = ((pages, rows, scores, scores >= self._last) for pages, rows, scores in self._found)
            self._found = [(p, rows[left], scores[left]) for p, rows, scores, left in better if left.any()]

    def hits(self) -> list[VectorHit]:
        return best_first(h for pages, *some in self._found for h in pages.hits(*some))[: self._top]


def best_within(
    blocks: Iterable[VectorRows], queries: Sequence[tuple[np.ndarray, tuple[str, ...] | None]], top: int
) -> list[list[VectorHit]]:
    """For each query, (dim,) float32 with its scope, the `top` best of the scope, over blocks of rows."""
    found = [BestWithin(query, scope, top) for query, scope in queries]
    for block in blocks:
        for best in found:
            best.add(block)
    return [best.hits() for best in found]
