"""Dense search in a request's own pages, which are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from bench_rows import BenchRow, Contest
from machine import Machine
from threadpoolctl import threadpool_limits

from raypipe.core.arrow import SPANS, id_column
from raypipe.core.digests import model_identity
from raypipe.core.index import VectorHit
from raypipe.core.protocols import Model
from raypipe.store.index import MemoryIndex

ROWS, PAGES, DIM, TOP, CALLS = 2500, 50, 384, 50, 20
MODEL = Model("random", "embedder", "hash", "", "", "", "sha256:random", dim=DIM)


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"{i:032x}" for i in range(PAGES)]
    at = pa.array(np.arange(ROWS, dtype=np.int32))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    spans = [id_column(np.repeat(names, ROWS // PAGES)), *[at] * 4]
    table = pa.table([*spans, column], names=[*SPANS, "vector"])
    text = pa.table({"source": id_column(names), "text": [""] * PAGES})
    index = MemoryIndex(text, table.select(SPANS), {model_identity(MODEL): table})

    async def requests() -> list[VectorHit]:
        for _ in range(CALLS):
            [found] = await index.search(MODEL, vectors[:1], [tuple(names)], TOP)
        return found

    def peer() -> list[int]:
        for _ in range(CALLS):
            found: list[int] = np.argsort(-(vectors @ vectors[0]), kind="stable")[:TOP].tolist()
        return found

    def unequal(a: list[VectorHit], b: list[int]) -> str:
        return "" if [h.span[0] for h in a] == b else "the orders differ"

    with threadpool_limits(1):  # a second thread of BLAS spins, and its seconds would count
        limit = machine.memcpy / (ROWS * DIM * 4)
        yield Contest(CALLS, lambda: asyncio.run(requests()), peer, unequal, limit)


ROW = BenchRow(
    "the best 50 of a request's own 2,500 chunks, in memory, one thread",
    "requests",
    contest,
    "numpy",
    "memcpy of its vectors",
    least=1 / 3,
)
