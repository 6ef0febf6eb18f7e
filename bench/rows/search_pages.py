"""Dense search in the pages that questions cite, for a batch of questions over one store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench_rows import BenchRow, Contest
from machine import Machine
from threadpoolctl import threadpool_limits

from raypipe.core.arrow import DIGEST, id_column
from raypipe.core.digests import model_identity
from raypipe.core.index import VectorHit
from raypipe.core.protocols import Model
from raypipe.core.records import source_id
from raypipe.store import PASSAGES, Store, commit, vectors_schema, write_part
from raypipe.store.index import LanceIndex, index_spec

PAGES, ROWS, DIM, PARTS = 2000, 50, 384, 20  # 100,000 chunks
QUESTIONS, CITED, TOP = 20, 50, 50
MODEL = Model("random", "embedder", "hash", "", "", "", "sha256:random", dim=DIM)
TEXTS, SPANS, VECTORS = (f"{kind}-{'b' * 32}" for kind in ("texts", "passages", "vectors"))


def filled(folder: str, pages: int) -> tuple[Store, list[str], np.ndarray]:
    """A store of pages with random unit vectors, their names, and all vectors."""
    rng, store = np.random.default_rng(1), Store.create(folder)
    names = [source_id("page", str(i)) for i in range(pages)]
    vectors = rng.standard_normal((pages * ROWS, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    at = pa.array(np.tile(np.arange(ROWS, dtype=np.int32) * 10, pages))
    spans = [id_column(np.repeat(names, ROWS)), *[at] * 4]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    text = pa.schema([pa.field("source", DIGEST, nullable=False), ("text", pa.large_string())])
    tables = {
        TEXTS: pa.table([id_column(names), pa.array([""] * pages, pa.large_string())], schema=text),
        SPANS: pa.table(spans, schema=PASSAGES),
        VECTORS: pa.table([*spans, column], schema=vectors_schema(DIM)),
    }
    for table, rows in tables.items():
        store.ensure(table, rows.schema)
        step = -(-rows.num_rows // PARTS)
        for part in range(PARTS):
            write_part(store, table, "bench", str(part), rows.slice(part * step, step), {})
        commit(store, table, "bench", [str(part) for part in range(PARTS)])
    return store, names, vectors


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as folder:
        store, names, vectors = filled(f"{folder}/store", 200 if quick else PAGES)
        spec = index_spec(store, TEXTS, SPANS, {model_identity(MODEL): VECTORS})
        index = LanceIndex(spec, copies=Path(folder) / "copies")
        cited = [np.sort(rng.choice(len(names), CITED, replace=False)) for _ in range(QUESTIONS)]
        scopes = [tuple(names[i] for i in some) for some in cited]
        queries = rng.standard_normal((QUESTIONS, DIM)).astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        asyncio.run(index.search(MODEL, queries[:1], [None], TOP))  # makes this machine's copy
        own = [np.concatenate([vectors[i * ROWS : (i + 1) * ROWS] for i in some]) for some in cited]

        def ours() -> list[list[VectorHit]]:
            return asyncio.run(index.search(MODEL, queries, scopes, TOP))

        def peer() -> list[list[tuple[str, int]]]:
            found = []
            for some, query, matrix in zip(cited, queries, own, strict=True):
                best = np.argsort(-(matrix @ query), kind="stable")[:TOP].tolist()
                found.append([(names[some[row // ROWS]], row % ROWS * 10) for row in best])
            return found

        def unequal(a: list[list[VectorHit]], b: list[list[tuple[str, int]]]) -> str:
            wrong = sum([(h.source, h.span[0]) for h in x] != y for x, y in zip(a, b, strict=True))
            return f"{wrong} of {QUESTIONS} orders differ" if wrong else ""

        with threadpool_limits(1):  # a second thread of BLAS spins, and its seconds would count
            yield Contest(QUESTIONS, ours, peer, unequal, machine.memcpy / (CITED * ROWS * DIM * 4))


ROW = BenchRow(
    "the best 50 of a question's 2,500 chunks of 100,000, from this machine's copy, 20 at once, one thread",
    "questions",
    contest,
    "numpy over arrays in memory",
    "memcpy of their vectors",
    least=0.8,
    short="Of .8 ms of CPU for a question, .55 are the products and the exact scores of what is near.",
)
