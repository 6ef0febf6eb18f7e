"""Rows for the tables of a small store."""

import hashlib

import numpy as np
import pyarrow as pa

from raypipe.store import PASSAGES

DIGEST = "d" * 32
DIM = 4


def hex_id(name):
    """The id that a number or a short name stands for."""
    return hashlib.blake2b(str(name).encode(), digest_size=16).hexdigest()


def passage_rows(sources, per_source=2):
    """`sources`: ids, or short names."""
    ids = (bytes.fromhex(s if len(s) == 32 else hex_id(s)) for s in sources)
    rows = [
        {"source": s, "start": i * 10, "end": i * 10 + 12, "parent_start": i * 10, "parent_end": i * 10 + 12}
        for s in ids
        for i in range(per_source)
    ]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


def vector_rows(sources, per_source=2):
    rows = passage_rows(sources, per_source)
    numbers = np.random.default_rng(len(sources)).standard_normal((rows.num_rows, DIM)).astype(np.float32)
    numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
    return rows.append_column("vector", pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), DIM))
