"""Rows of vectors, in memory or mapped from local files, and exact search within them.

A small table is read into memory. A larger one is copied once to the folder of temporary files, and all
processes of the user map this copy. The copy's name identifies the version and data files of the table. So
any process may make or remove a copy, and a rebuilt table gets another one. If the disk has no room, or the
folder cannot be written, there is no copy, and the caller reads the table itself, block by block.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset
from numpy.typing import DTypeLike

from raypipe.core.arrow import SPANS, id_column
from raypipe.core.index import VectorHit
from raypipe.core.records import digest
from raypipe.store.errors import StoreUnavailable, reaching
from raypipe.store.files import RESERVE
from raypipe.store.ids import gathered, raw

log = logging.getLogger("raypipe.store.vectors")

IN_MEMORY = 64 << 20  # most bytes of a table in memory: each worker would hold its own
BLOCK = 16_384  # rows per product: 16 MB of scores for 256 questions
ROW_BYTES = 20  # bytes per passage next to its vector: two spans (own, parent) and its source's place
FILES = ("vectors", "spans", "places", "sources", "runs")  # files of a copy, one array each: see VectorRows
CUT = (OSError, ValueError, EOFError)  # errors of opening an incomplete copy
UNUSED_S = 86_400.0  # seconds without an opening process after which a copy is removed


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Vectors of some pages or of a whole table. Their rows are numbered across all matrices."""

    dim: int
    matrices: tuple[np.ndarray, ...]  # (rows, dim) float32 each
    starts: tuple[int, ...]  # the number of the first row of each matrix
    spans: np.ndarray  # (rows, 4) int32: start, end, parent_start, parent_end of each passage
    places: np.ndarray  # (rows,) int32: index of each row's source in `sources`
    sources: np.ndarray  # (sources,) S16: digests, ascending
    runs: np.ndarray  # (3, runs) int64, ascending: index of a source, first row and last row + 1 of adjacent
    # rows of this source in one matrix

    def hits(self, rows: np.ndarray, scores: np.ndarray) -> list[VectorHit]:
        """Makes hits from rows ((n,) int64) and their scores."""
        digits, values = self.sources[self.places[rows]].tobytes().hex(), scores.tolist()
        return [
            VectorHit(digits[32 * i : 32 * i + 32], (start, end), (parent_start, parent_end), values[i])
            for i, (start, end, parent_start, parent_end) in enumerate(self.spans[rows].tolist())
        ]

    def block(self, first: int, end: int) -> np.ndarray:
        """Returns a range of rows of one matrix, (rows, dim) float32, without a copy."""
        number = bisect_right(self.starts, first) - 1
        start = self.starts[number]
        return self.matrices[number][first - start : end - start]

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Copies some rows: (n, dim) float32."""
        if len(self.matrices) == 1:
            return np.asarray(self.matrices[0][rows])
        none = np.zeros((0, self.dim), np.float32)  # a table without rows has no matrix
        return np.concatenate([none, *(self.block(row, row + 1) for row in rows.tolist())])

    def stretches(self, scope: Iterable[str] | None) -> list[tuple[int, int]]:
        """Returns the rows of a scope (None: all rows) as ranges (first row, last row + 1), ascending and
        disjoint. Each range lies in one matrix, and adjacent ranges are joined."""
        if scope is None:
            ends = (start + len(matrix) for start, matrix in zip(self.starts, self.matrices, strict=True))
            return [(start, end) for start, end in zip(self.starts, ends, strict=True) if end > start]
        wanted = raw(id_column(set(scope)))
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
    """Views a column of vectors as (rows, dim) float32; a float16 column is copied."""
    numbers = column.flatten().to_numpy().astype(np.float32, copy=False)
    matrix: np.ndarray = numbers.reshape(len(column), column.type.list_size)
    return matrix


def rows_of(table: pa.Table) -> VectorRows:
    """Makes VectorRows from a table of passages' spans and vectors. Rows of a page need not be adjacent."""
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    starts = tuple(accumulate((batch.num_rows for batch in batches), initial=0))[:-1]
    spans = [table[name].to_numpy().astype(np.int32) for name in SPANS[1:]]
    sources = [pc.run_end_encode(batch["source"]) for batch in batches]
    return VectorRows(
        table.schema.field("vector").type.list_size,
        tuple(matrix_of(batch["vector"]) for batch in batches),
        starts,
        np.stack(spans, axis=1),
        *where_sources_are(sources, starts),
    )


def where_sources_are(
    pieces: Sequence[pa.RunEndEncodedArray], starts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the arrays `places`, `sources` and `runs` of VectorRows. `pieces` are consecutive parts of the
    column `source`; `starts` are the row numbers at which they start."""
    sources, place = np.unique(raw(gathered(piece.values for piece in pieces)), return_inverse=True)
    none = [np.zeros(0, np.int64)]
    ends = [piece.run_ends.to_numpy() + np.int64(start) for piece, start in zip(pieces, starts, strict=True)]
    firsts = [np.concatenate([[start], end[:-1]]) for start, end in zip(starts, ends, strict=True)]
    first, end = np.concatenate(none + firsts), np.concatenate(none + ends)
    order = np.argsort(place, kind="stable")
    runs = np.stack([place, first, end])[:, order]
    return np.repeat(place, end - first).astype(np.int32), sources, runs


def product_error(dim: int) -> float:
    """Returns a bound on the error of two unit vectors' float32 inner product: one rounding per dimension."""
    return 2.0**-22 + dim * 2.0**-24


def best_first(hits: Iterable[VectorHit]) -> list[VectorHit]:
    """Sorts hits by score, then source, then span."""
    return sorted(hits, key=lambda f: (-f.score, f.source, f.span))


def exact_scores(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Computes the inner products of (n, dim) and (dim,) in double precision: (n,) float64."""
    scores: np.ndarray = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return scores


def best_within(
    blocks: Iterable[VectorRows], queries: Sequence[tuple[np.ndarray, tuple[str, ...] | None]], top: int
) -> list[list[VectorHit]]:
    """Finds each query's `top` best rows in its scope, over all blocks. A query is (dim,) float32 with a
    scope: sources, or None for all rows. Hits are ordered by exact score, then source, then span."""
    found: list[list[VectorHit]] = [[] for _ in queries]
    for rows in blocks:
        for i, (query, scope) in enumerate(queries):
            found[i] = best_first([*found[i], *_candidates(rows, query, scope, top)])[:top]
    return found


def _candidates(
    rows: VectorRows, query: np.ndarray, scope: tuple[str, ...] | None, top: int
) -> list[VectorHit]:
    """Returns a scope's rows that can be among its `top` best, with their exact scores."""
    if not (stretches := rows.stretches(scope)):
        return []
    ends = list(accumulate((end - first for first, end in stretches), initial=0))
    near = np.empty(ends[-1], np.float32)  # (rows in scope,)
    for (first, end), at in zip(stretches, ends, strict=False):
        np.dot(rows.block(first, end), query, out=near[at : at + end - first])
    kept = np.arange(len(near))
    if len(near) > top:
        # Exact scores differ from these by at most one error, so a row two errors below the last best is out.
        cut = float(np.partition(near, -top)[-top]) - 2 * product_error(len(query))
        kept = np.flatnonzero(near >= np.nextafter(np.float32(cut), np.float32(-np.inf)))
    of = np.searchsorted(ends, kept, side="right") - 1
    found = kept + (np.array([first for first, _ in stretches], np.int64) - ends[:-1])[of]
    return rows.hits(found, exact_scores(rows.vectors(found), query))


def blocks(dataset: LanceDataset) -> Iterator[np.ndarray]:
    """Yields the column `vector` in the order of the table, in blocks of (rows, dim) float32."""
    with reaching(dataset.uri):
        for batch in dataset.to_batches(columns=["vector"], batch_size=BLOCK):
            yield matrix_of(batch["vector"])


def folder() -> Path:
    """Returns the folder for this user's copies on this machine."""
    return Path(tempfile.gettempdir()) / f"raypipe-vectors-{os.getuid()}"


def vector_copy(
    dataset: LanceDataset,
    where: Path,
    make: bool = True,
    in_memory: int = IN_MEMORY,
    free: Callable[[Path], int] = lambda where: shutil.disk_usage(where).free,
) -> VectorRows | None:
    """Reads a small table of vectors, or maps a local copy of a large one, in the table's order. Returns None
    if the copy does not fit in the folder `where` (`free` tells its room), or if this folder cannot be used.
    Without `make`, also returns None if no process has made the copy yet. Raises StoreUnavailable."""
    rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
    if rows * dim * 4 <= in_memory:
        with reaching(dataset.uri):
            return rows_of(dataset.to_table(columns=[*SPANS, "vector"]))
    table = dataset.uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")
    held = digest(*(str(f.metadata.to_json()) for f in dataset.get_fragments()))
    path, size = where / f"{table}@{dataset.version}-{held[:16]}.rows", rows * (dim * 4 + ROW_BYTES)
    try:
        return _mapped(dataset, path, size, free) if make or path.exists() else None
    except StoreUnavailable:  # also an OSError, but the store's, not the folder's
        raise
    except CUT as e:
        log.warning("%s: %s: vectors are read from the store for each batch", where, e)
        return None


def _mapped(dataset: LanceDataset, path: Path, size: int, free: Callable[[Path], int]) -> VectorRows:
    """Maps the copy (about `size` bytes); makes it first if it is missing. Raises OSError if that fails."""
    where = path.parent
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "the folder belongs to another user")
    with open(where / f"{path.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process writes the copy, others wait
        try:
            copy = _open(path)
        except CUT:  # the copy is missing or incomplete
            shutil.rmtree(path, ignore_errors=True)
            _sweep(where, path)
            if (room := free(where)) < size + RESERVE:
                need = f"{size / 1e6:.1f} MB of vectors and {RESERVE / 1e6:.1f} MB of reserve"
                raise OSError(errno.ENOSPC, f"{need} do not fit, {room / 1e6:.1f} MB are free") from None
            _write(dataset, path)
            copy = _open(path)
        os.utime(path)
    return copy


def _open(path: Path) -> VectorRows:
    """Maps a copy. Raises one of the errors in CUT if the copy is missing or incomplete."""
    matrix, *rest = (np.load(path / f"{name}.npy", mmap_mode="r") for name in FILES)
    return VectorRows(matrix.shape[1], (matrix,), (0,), *rest)


def _write(dataset: LanceDataset, path: Path) -> None:
    half = Path(tempfile.mkdtemp(".half", path.stem, path.parent))
    try:
        rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
        sources, starts = [], [0]
        with (
            _array(half / "vectors.npy", np.float32, (rows, dim)) as vectors,
            _array(half / "spans.npy", np.int32, (rows, len(SPANS) - 1)) as spans,
            reaching(dataset.uri),
        ):
            for batch in dataset.to_batches(columns=[*SPANS, "vector"], batch_size=BLOCK):
                vectors.write(np.ascontiguousarray(matrix_of(batch["vector"])).data)
                spans.write(np.stack([batch[name].to_numpy() for name in SPANS[1:]], axis=1).data)
                sources.append(pc.run_end_encode(batch["source"]))
                starts.append(starts[-1] + batch.num_rows)
        for name, values in zip(FILES[2:], where_sources_are(sources, starts[:-1]), strict=True):
            with _array(half / f"{name}.npy", values.dtype, values.shape) as out:
                out.write(np.ascontiguousarray(values).data)
        with suppress(OSError):  # without a working flock another process was faster: its copy is opened
            os.replace(half, path)
    finally:
        shutil.rmtree(half, ignore_errors=True)  # a partial copy, such as after a full disk


@contextmanager
def _array(path: Path, kind: DTypeLike, shape: tuple[int, ...]) -> Iterator[BufferedWriter]:
    """Opens a NumPy file for the block to write its rows; it is synced to disk when the block ends."""
    with open(path, "wb") as out:
        about = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, about)  # type: ignore[no-untyped-call]
        yield out
        out.flush()
        os.fsync(out.fileno())


def _sweep(where: Path, path: Path) -> None:
    """Removes copies that no process opened for a day. A process that has mapped a copy can still read it."""
    for old in where.iterdir():
        if old.suffix != ".lock" and old != path and old.stat().st_mtime < time.time() - UNUSED_S:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
