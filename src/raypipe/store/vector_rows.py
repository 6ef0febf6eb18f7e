"""Rows of vectors in memory or mapped from a file, the passage that each is of, and exact search within them.

Knows Arrow columns of passages and of vectors; knows no store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import SPANS
from raypipe.core.index import VectorHit


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Rows of some pages or of a whole table, numbered over all their matrices; no vector is copied."""

    dim: int
    matrices: tuple[np.ndarray, ...]  # (rows, dim) float32 each
    starts: tuple[int, ...]  # the number of the first row of each matrix
    spans: np.ndarray  # (rows, 4) int32: the columns of a passage after its source
    places: np.ndarray  # (rows,) int32: the place of its source in `sources`
    sources: np.ndarray  # (sources,) bytes, ascending
    runs: np.ndarray  # (3, runs) int64, ascending: a place, the first row and the one behind the last that
    # stand side by side in one matrix

    def hits(self, rows: np.ndarray, scores: np.ndarray) -> list[VectorHit]:
        """Rows ((n,) int64) with their scores as what was found."""
        names, spans = self.sources[self.places[rows]].tolist(), self.spans[rows].tolist()
        return [
            VectorHit(name.decode(), (start, end), (parent_start, parent_end), score)
            for name, (start, end, parent_start, parent_end), score in zip(
                names, spans, scores.tolist(), strict=True
            )
        ]

    def block(self, first: int, end: int) -> np.ndarray:
        """(rows, dim) float32: rows of one matrix, in place."""
        number = bisect_right(self.starts, first) - 1
        start = self.starts[number]
        return self.matrices[number][first - start : end - start]

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim) float32: a copy of some rows."""
        if len(self.matrices) == 1:
            return np.asarray(self.matrices[0][rows])
        none = np.zeros((0, self.dim), np.float32)  # of a table without rows there is no matrix
        return np.concatenate([none, *(self.block(row, row + 1) for row in rows.tolist())])

    def stretches(self, scope: Iterable[str] | None) -> list[tuple[int, int]]:
        """The rows of a scope, each once: few stretches of one matrix each, ascending, each as its first row
        and the one behind its last. None: all rows."""
        if scope is None:
            ends = (start + len(matrix) for start, matrix in zip(self.starts, self.matrices, strict=True))
            return [(start, end) for start, end in zip(self.starts, ends, strict=True) if end > start]
        encoded = (source.encode() for source in set(scope))
        wanted = np.array([s for s in encoded if len(s) <= self.sources.itemsize], self.sources.dtype)
        place = np.searchsorted(self.sources, wanted)
        inside = place < len(self.sources)
        place, wanted = place[inside], wanted[inside]
        place = place[self.sources[place] == wanted]
        low, high = (np.searchsorted(self.runs[0], place, side) for side in ("left", "right"))
        pick = [run for a, b in zip(low.tolist(), high.tolist(), strict=True) for run in range(a, b)]
        found: list[tuple[int, int]] = []
        for first, end in sorted(self.runs[1:, pick].T.tolist()):
            if found and found[-1][1] == first and first not in self.starts:
                found[-1] = found[-1][0], end
            else:
                found.append((first, end))
        return found


def matrix_of(column: pa.FixedSizeListArray) -> np.ndarray:
    """(rows, dim) float32: a column of vectors, in place; of a float16 table a copy."""
    numbers = column.flatten().to_numpy().astype(np.float32, copy=False)
    matrix: np.ndarray = numbers.reshape(len(column), column.type.list_size)
    return matrix


def rows_of(table: pa.Table) -> VectorRows:
    """The rows of a table with the columns of passages and vector; those of a page may lie apart."""
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    starts = tuple(accumulate((batch.num_rows for batch in batches), initial=0))[:-1]
    spans = [table[name].to_numpy().astype(np.int32) for name in SPANS[1:]]
    sources = [pc.run_end_encode(batch["source"]) for batch in batches]
    return VectorRows(
        table.schema.field("vector").type.list_size, tuple(matrix_of(batch["vector"]) for batch in batches),
        starts, np.stack(spans, axis=1), *where_sources_are(sources, starts),
    )  # fmt: skip


def where_sources_are(
    pieces: Sequence[pa.RunEndEncodedArray], starts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`places`, `sources` and `runs` of VectorRows. `pieces`: a column `source` in pieces; `starts`: of each
    the number of its first row."""
    names = [name.encode() for piece in pieces for name in piece.values.to_pylist()]
    sources, place = np.unique(np.array(names, "S"), return_inverse=True)
    none = [np.zeros(0, np.int64)]
    ends = [piece.run_ends.to_numpy() + np.int64(start) for piece, start in zip(pieces, starts, strict=True)]
    firsts = [np.concatenate([[start], end[:-1]]) for start, end in zip(starts, ends, strict=True)]
    first, end = np.concatenate(none + firsts), np.concatenate(none + ends)
    order = np.argsort(place, kind="stable")
    runs = np.stack([place, first, end])[:, order]
    return np.repeat(place, end - first).astype(np.int32), sources, runs


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


def best_within(
    blocks: Iterable[VectorRows], queries: Sequence[tuple[np.ndarray, tuple[str, ...] | None]], top: int
) -> list[list[VectorHit]]:
    """For each query, (dim,) float32 with its scope, the `top` best of the scope, over blocks of rows: by
    exact score, then source, then span."""
    found: list[list[VectorHit]] = [[] for _ in queries]
    for rows in blocks:
        for i, (query, scope) in enumerate(queries):
            found[i] = best_first([*found[i], *_candidates(rows, query, scope, top)])[:top]
    return found


def _candidates(
    rows: VectorRows, query: np.ndarray, scope: tuple[str, ...] | None, top: int
) -> list[VectorHit]:
    """The rows of a scope that can be among its `top` best, with their exact scores."""
    if not (stretches := rows.stretches(scope)):
        return []
    ends = list(accumulate((end - first for first, end in stretches), initial=0))
    near = np.empty(ends[-1], np.float32)  # (rows in scope,)
    for (first, end), at in zip(stretches, ends, strict=False):
        np.dot(rows.block(first, end), query, out=near[at : at + end - first])
    kept = np.arange(len(near))
    if len(near) > top:
        # Exact scores differ from these by an error at most: what is two below the last of the best is out.
        cut = float(np.partition(near, -top)[-top]) - 2 * product_error(len(query))
        kept = np.flatnonzero(near >= np.nextafter(np.float32(cut), np.float32(-np.inf)))
    of = np.searchsorted(ends, kept, side="right") - 1
    found = kept + (np.array([first for first, _ in stretches], np.int64) - ends[:-1])[of]
    return rows.hits(found, exact_scores(rows.vectors(found), query))
