"""The vectors of a table at one version as one float32 matrix of this machine: a file that all processes map.

A small table is read into memory. A larger one is copied once to the folder of temporary files, under a name
that says which data files of which version it holds; so any process may make or remove a copy, and a table
that was made again has another one. Where the disk has no room for it, or the folder cannot be written, there
is none, and the caller reads the table itself, a block at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from lance import LanceDataset

from raypipe.core.records import digest
from raypipe.store.disk_space import RESERVE
from raypipe.store.errors import StoreUnavailable, reaching

log = logging.getLogger("raypipe.store.vector_copy")

IN_MEMORY = 64 << 20  # bytes; above, the copies of several workers would add up
BLOCK = 16_384  # rows of a product: 16 MB of scores for 256 questions
UNUSED_S = 86_400.0  # after which a copy that no process opened again may go


def blocks(dataset: LanceDataset) -> Iterator[np.ndarray]:
    """(rows, dim) float32: the column `vector` in the order of the table, a block at a time."""
    with reaching(dataset.uri):
        for batch in dataset.to_batches(columns=["vector"], batch_size=BLOCK):
            yield matrix_of(batch["vector"])


def matrix_of(column: pa.FixedSizeListArray) -> np.ndarray:
    """(rows, dim) float32: a column of vectors, in place; of a float16 table a copy."""
    numbers = column.flatten().to_numpy().astype(np.float32, copy=False)
    matrix: np.ndarray = numbers.reshape(len(column), column.type.list_size)
    return matrix


def folder() -> Path:
    """Where this user's copies lie on this machine."""
    return Path(tempfile.gettempdir()) / f"raypipe-vectors-{os.getuid()}"


def free_bytes(where: Path) -> int:
    """What the disk of a folder has room for."""
    return shutil.disk_usage(where).free


def vector_matrix(
    dataset: LanceDataset,
    where: Path,
    in_memory: int = IN_MEMORY,
    free: Callable[[Path], int] = free_bytes,
) -> np.ndarray | None:
    """(rows, dim) float32: the column `vector`, in the order of the table. None where it is larger than what
    `where` has room for (`free`), or where the folder cannot be used. Raises StoreUnavailable."""
    rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
    size = rows * dim * 4
    if size <= in_memory:
        matrix: np.ndarray = np.concatenate([np.zeros((0, dim), np.float32), *blocks(dataset)])
        return matrix
    try:
        return _mapped(dataset, where, (rows, dim), free)
    except StoreUnavailable:  # an OSError too, but none of the folder
        raise
    except OSError as e:
        log.warning("%s: %s: vectors are read from the store for each batch", where, e)
        return None


def _mapped(
    dataset: LanceDataset, where: Path, shape: tuple[int, int], free: Callable[[Path], int]
) -> np.ndarray | None:
    """The copy of the vectors, made if it is not there; None where there can be none. Raises OSError of the
    folder."""
    size = shape[0] * shape[1] * 4
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.stat().st_uid != os.getuid():
        log.warning("%s belongs to another user: vectors are read from the store for each batch", where)
        return None
    path = where / _name(dataset)
    with open(where / f"{path.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process writes it, the others wait
        if not (path.exists() and path.stat().st_size == size):
            _sweep(where, path)
            if (room := free(where)) < size + RESERVE:
                log.warning(
                    "%s: %.1f MB of vectors and %.1f MB of reserve do not fit, %.1f MB are free: they are "
                    "read from the store for each batch", where, size / 1e6, RESERVE / 1e6, room / 1e6,
                )  # fmt: skip
                return None
            _write(dataset, path)
        os.utime(path)
    return np.memmap(path, np.float32, "r", shape=shape)


def _name(dataset: LanceDataset) -> str:
    table = dataset.uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")
    held = digest(*(str(f.metadata.to_json()) for f in dataset.get_fragments()))
    return f"{table}@{dataset.version}-{held[:16]}.f32"


def _write(dataset: LanceDataset, path: Path) -> None:
    half = path.with_suffix(".half")
    try:
        with open(half, "wb") as out:
            for block in blocks(dataset):
                out.write(np.ascontiguousarray(block).data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)  # what a full disk left


def _sweep(where: Path, path: Path) -> None:
    """Removes copies that no process opened for a day. One that is mapped stays readable for its process."""
    for old in (*where.glob("*.f32"), *where.glob("*.half")):
        if old != path and old.stat().st_mtime < time.time() - UNUSED_S:
            old.unlink(missing_ok=True)
