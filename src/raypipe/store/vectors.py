"""Rows of vectors in memory or mapped from files of this machine, and exact search within them.

A small table is read into memory. A larger one is copied once to the folder of temporary files, which all
processes map, under a name that says which data files of which version it holds; so any process may make or
remove a copy, and a table that was made again has another one. Where the disk has no room for it, or the
folder cannot be written, there is none, and the caller reads the table itself, a block at a time.
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

IN_MEMORY = 64 << 20  # bytes; above, the copies of several workers would add up
BLOCK = 16_384  # rows of a product: 16 MB of scores for 256 questions
ROW_BYTES = 20  # of a passage: its span, that of its parent, and the place of its source
FILES = ("vectors", "spans", "places", "sources", "runs")  # the fields of VectorRows, an array each
CUT = (OSError, ValueError, EOFError)  # what opening a copy raises that is not whole
UNUSED_S = 86_400.0  # after which a copy that no process opened again may go


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Rows of some pages or of a whole table, numbered over all their matrices; no vector is copied."""

    dim: int
    matrices: tuple[np.ndarray, ...]  # (rows, dim) float32 each
    starts: tuple[int, ...]  # the number of the first row of each matrix
    spans: np.ndarray  # (rows, 4) int32: the columns of a passage after its source
    places: np.ndarray  # (rows,) int32: the place of its source in `sources`
    sources: np.ndarray  # (sources,) S16, ascending
    runs: np.ndarray  # (3, runs) int64, ascending: a place, the first row and the one behind the last that
    # stand side by side in one matrix

    def hits(self, rows: np.ndarray, scores: np.ndarray) -> list[VectorHit]:
        """Rows ((n,) int64) with their scores as what was found."""
        digits, values = self.sources[self.places[rows]].tobytes().hex(), scores.tolist()
        return [
            VectorHit(digits[32 * i : 32 * i + 32], (start, end), (parent_start, parent_end), values[i])
            for i, (start, end, parent_start, parent_end) in enumerate(self.spans[rows].tolist())
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
        table.schema.field("vector").type.list_size,
        tuple(matrix_of(batch["vector"]) for batch in batches),
        starts,
        np.stack(spans, axis=1),
        *where_sources_are(sources, starts),
    )


def where_sources_are(
    pieces: Sequence[pa.RunEndEncodedArray], starts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`places`, `sources` and `runs` of VectorRows. `pieces`: a column `source` in pieces; `starts`: of each
    the number of its first row."""
    sources, place = np.unique(raw(gathered(piece.values for piece in pieces)), return_inverse=True)
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


def blocks(dataset: LanceDataset) -> Iterator[np.ndarray]:
    """(rows, dim) float32: the column `vector` in the order of the table, a block at a time."""
    with reaching(dataset.uri):
        for batch in dataset.to_batches(columns=["vector"], batch_size=BLOCK):
            yield matrix_of(batch["vector"])


def folder() -> Path:
    """Returns where this user's copies lie on this machine."""
    return Path(tempfile.gettempdir()) / f"raypipe-vectors-{os.getuid()}"


def vector_copy(
    dataset: LanceDataset,
    where: Path,
    make: bool = True,
    in_memory: int = IN_MEMORY,
    free: Callable[[Path], int] = lambda where: shutil.disk_usage(where).free,
) -> VectorRows | None:
    """The rows of a table of vectors, in its order. None where it is larger than what `where` has room for
    (`free`), or where the folder cannot be used; without `make`, also where no process has made its copy yet.
    Raises StoreUnavailable."""
    rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
    if rows * dim * 4 <= in_memory:
        with reaching(dataset.uri):
            return rows_of(dataset.to_table(columns=[*SPANS, "vector"]))
    table = dataset.uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")
    held = digest(*(str(f.metadata.to_json()) for f in dataset.get_fragments()))
    path, size = where / f"{table}@{dataset.version}-{held[:16]}.rows", rows * (dim * 4 + ROW_BYTES)
    try:
        return _mapped(dataset, path, size, free) if make or path.exists() else None
    except StoreUnavailable:  # an OSError too, but none of the folder
        raise
    except CUT as e:
        log.warning("%s: %s: vectors are read from the store for each batch", where, e)
        return None


def _mapped(dataset: LanceDataset, path: Path, size: int, free: Callable[[Path], int]) -> VectorRows:
    """The copy of some `size` bytes, made if it is not there. Raises OSError where there can be none."""
    where = path.parent
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "the folder belongs to another user")
    with open(where / f"{path.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process writes it, the others wait
        try:
            found = _open(path)
        except CUT:  # there is none, or one that is cut
            shutil.rmtree(path, ignore_errors=True)
            _sweep(where, path)
            if (room := free(where)) < size + RESERVE:
                need = f"{size / 1e6:.1f} MB of vectors and {RESERVE / 1e6:.1f} MB of reserve"
                raise OSError(errno.ENOSPC, f"{need} do not fit, {room / 1e6:.1f} MB are free") from None
            _write(dataset, path)
            found = _open(path)
        os.utime(path)
    return found


def _open(path: Path) -> VectorRows:
    """A copy, mapped. Raises one of CUT where it is not whole."""
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
        with suppress(OSError):  # another process was faster, where flock locks nothing: that copy is opened
            os.replace(half, path)
    finally:
        shutil.rmtree(half, ignore_errors=True)  # what a full disk left


@contextmanager
def _array(path: Path, kind: DTypeLike, shape: tuple[int, ...]) -> Iterator[BufferedWriter]:
    """A file of NumPy's form, whose rows the block writes; on disk when it ends."""
    with open(path, "wb") as out:
        about = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, about)  # type: ignore[no-untyped-call]
        yield out
        out.flush()
        os.fsync(out.fileno())


def _sweep(where: Path, path: Path) -> None:
    """Removes copies that no process opened for a day. One that is mapped stays readable for its process."""
    for old in where.iterdir():
        if old.suffix != ".lock" and old != path and old.stat().st_mtime < time.time() - UNUSED_S:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
