"""The vectors of a table at one version on this machine, in files that all processes map.

A small table is read into memory. A larger one is copied once to the folder of temporary files, under a name
that says which data files of which version it holds; so any process may make or remove a copy, and a table
that was made again has another one. Where the disk has no room for it, or the folder cannot be written, there
is none, and the caller reads the table itself, a block at a time.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from lance import LanceDataset
from numpy.typing import DTypeLike

from raypipe.core.arrow import SPANS
from raypipe.core.records import digest
from raypipe.store.errors import StoreUnavailable, reaching
from raypipe.store.files import RESERVE
from raypipe.store.vector_rows import VectorRows, matrix_of, rows_of, where_sources_are

log = logging.getLogger("raypipe.store.vector_copy")

IN_MEMORY = 64 << 20  # bytes; above, the copies of several workers would add up
BLOCK = 16_384  # rows of a product: 16 MB of scores for 256 questions
ROW_BYTES = 20  # of a passage: its span, that of its parent, and the place of its source
FILES = ("vectors", "spans", "places", "sources", "runs")  # the fields of VectorRows, an array each
CUT = (OSError, ValueError, EOFError)  # what opening a copy raises that is not whole
UNUSED_S = 86_400.0  # after which a copy that no process opened again may go


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
    path, size = where / _name(dataset), rows * (dim * 4 + ROW_BYTES)
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


def _name(dataset: LanceDataset) -> str:
    table = dataset.uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")
    held = digest(*(str(f.metadata.to_json()) for f in dataset.get_fragments()))
    return f"{table}@{dataset.version}-{held[:16]}.rows"


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
