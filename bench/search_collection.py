"""Search over a whole collection: what building the postings costs, and a question by BM25 and by vectors.

    python bench/search_collection.py --papers 400000 --dim 384

Papers are Zipf words of log-normal lengths (mean 100), vectors are random unit rows: times depend on their
number, not on what they say. Each phase is a process of its own, so its peak memory is its own. CPU seconds
count; wall seconds depend on what else runs. NumPy's product over the same rows stands next to ours, and so
does bm25s over the same words, where it is installed. The last line has ratios of CPU seconds to theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raypipe.core.index import VectorHit
from raypipe.core.protocols import Model
from raypipe.core.records import Question, source_id
from raypipe.models.kit import LocalKit
from raypipe.pipeline.postings_task import PART_SOURCES, PostingsTask
from raypipe.pipeline.tasks import Task, WorkerConfig
from raypipe.steps.bm25 import Bm25
from raypipe.store import PASSAGES, Store, commit, vectors_schema, write_part
from raypipe.store.index import LanceIndex, index_spec
from raypipe.store.tables import LENGTHS, POSTINGS
from raypipe.text.words import word_hash

TEXTS, PARTS, WORDS, LENGTH, VECTORS = (
    f"{kind}-{'c' * 32}" for kind in ("texts", "passages", "postings", "lengths", "vectors")
)
TEXT = pa.schema(
    [("source", pa.string()), ("text", pa.large_string()), ("words_plain", pa.list_(pa.uint64())),
     ("starts_plain", pa.list_(pa.int32()))]
)  # fmt: skip
VOCABULARY = 300_000
MODEL = Model("random", "embedder", "hash", "", "", "", "sha256:random", dim=384)
AT_ONCE = 50_000


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of words by Zipf's law."""
    return np.minimum((VOCABULARY ** rng.random(count)).astype(np.int64), VOCABULARY - 1)


def names(first: int, count: int) -> list[str]:
    return [source_id("document", str(i)) for i in range(first, first + count)]


def add(store: Store, first: int, count: int, run: str, dim: int) -> None:
    """Texts, passages and vectors of some papers."""
    rng = np.random.default_rng(first)
    hashes = np.array([word_hash(f"w{i}") for i in range(VOCABULARY)], np.uint64)
    parts = []
    for at in range(0, count, AT_ONCE):
        n = min(AT_ONCE, count - at)
        lengths = np.clip(rng.lognormal(4.4, 0.6, n), 5, 1000).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts = (np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).astype(np.int32) * 6
        sources = pa.array(names(first + at, n))
        lists = [hashes[drawn(rng, int(offsets[-1]))], starts]
        columns = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(x)) for x in lists]
        text = pa.array(["" for _ in range(n)], pa.large_string())
        zero, end = np.zeros(n, np.int32), (lengths * 6).astype(np.int32)
        spans = [sources, *(pa.array(x) for x in (zero, end, zero, end))]
        vectors = rng.standard_normal((n, dim), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
        rows = {
            TEXTS: pa.Table.from_arrays([sources, text, *columns], schema=TEXT),
            PARTS: pa.Table.from_arrays(spans, schema=PASSAGES),
            VECTORS: pa.Table.from_arrays([*spans, column], schema=vectors_schema(dim)),
        }
        parts.append(str(at))
        for table, data in rows.items():
            store.ensure(table, data.schema)
            write_part(store, table, run, parts[-1], data, {})
    for table in (TEXTS, PARTS, VECTORS):
        commit(store, table, run, parts)


def build(store: Store, first: int, count: int, run: str) -> None:
    """What the pipeline does for these sources, in this process."""
    for table, schema in ((WORDS, POSTINGS), (LENGTH, LENGTHS)):
        store.ensure(table, schema)
    ids = names(first, count)
    tasks = [Task(str(at), tuple(ids[at : at + PART_SOURCES])) for at in range(0, count, PART_SOURCES)]
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    work = PostingsTask(worker, "plain", LENGTH, WORDS, TEXTS, PARTS, run)

    async def every() -> None:
        do = await work.open()
        for task in tasks:
            await do(task)

    asyncio.run(every())
    for table in (WORDS, LENGTH):
        commit(store, table, run, [t.name for t in tasks])


def index_of(store: Store) -> LanceIndex:
    from raypipe.core.digests import model_identity

    words = {"plain": (WORDS, LENGTH)} if store.has(LENGTH) else {}
    spec = index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS}, words)
    return LanceIndex(spec)


def queries(words: int) -> list[np.ndarray]:
    """Numbers of the words of a hundred questions."""
    rng = np.random.default_rng(1)
    return [drawn(rng, words) for _ in range(100)]


def lexical(store: Store, words: int, batch: int) -> dict[str, float]:
    asked = [Question(str(i), " ".join(f"w{w}" for w in q)) for i, q in enumerate(queries(words))]
    ask = Bm25(top=200, words="plain").open(LocalKit(index_of(store)))

    async def every() -> int:
        found = [await ask(asked[at : at + batch]) for at in range(0, len(asked), batch)]
        return sum(len(q.hits) for some in found for q in some)

    return timed(lambda: {"hits": asyncio.run(every())}, 100)


def bm25s_index(store: Store) -> dict[str, Any]:
    """bm25s in memory: what building costs, and the same questions."""
    if find_spec("bm25s") is None:
        return {"not_measured": "bm25s is not installed"}
    bm25s = import_module("bm25s")
    hashes = np.array([word_hash(f"w{i}") for i in range(VOCABULARY)], np.uint64)
    order = np.argsort(hashes)
    corpus: list[np.ndarray] = []
    for batch in store.dataset(TEXTS).to_batches(["words_plain"]):
        column = batch["words_plain"]
        found = order[np.searchsorted(hashes, column.flatten().to_numpy(), sorter=order)]
        corpus += np.split(
            found.astype(np.int32), column.offsets.to_numpy()[1:-1] - column.offsets[0].as_py()
        )
    made = bm25s.BM25(method="lucene")
    start = time.process_time()
    made.index((corpus, {str(i): i for i in range(VOCABULARY)}), show_progress=False)
    out: dict[str, Any] = {"build_cpu_s": round(time.process_time() - start, 2)}
    for words in (12, 60):
        asked = [q.tolist() for q in queries(words)]

        def retrieve(asked: Sequence[list[int]] = asked) -> None:
            made.retrieve(asked, k=200, show_progress=False)

        cost = timed(retrieve, 100)
        out[f"cpu_ms_{words}_words"] = cost["cpu_ms_per_question"]
    return out


def dense(store: Store, dim: int, batch: int) -> dict[str, float]:
    rng = np.random.default_rng(2)
    asked = rng.standard_normal((batch, dim), np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    index = index_of(store)

    def search(queries: np.ndarray) -> list[list[VectorHit]]:
        return asyncio.run(index.search(MODEL, queries, [None] * len(queries), 150))

    start = time.process_time()
    search(asked[:1])  # makes or opens the copy
    opened = time.process_time() - start
    return {"open_cpu_s": round(opened, 2), **timed(lambda: {"hits": len(search(asked))}, batch)}


def numpy_product(store: Store, dim: int, batch: int) -> dict[str, float]:
    from raypipe.store.vector_copy import folder, vector_copy

    rng = np.random.default_rng(2)
    asked = rng.standard_normal((batch, dim), np.float32)
    copy = vector_copy(store.dataset(VECTORS), folder())
    assert copy is not None
    [matrix] = copy.matrices

    def product() -> dict[str, float]:
        best = [np.argpartition(-(b @ asked.T), 150, axis=0)[:150] for b in np.array_split(matrix, 25)]
        return {"hits": len(best)}

    return timed(product, batch)


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """CPU seconds of ours by those of a peer, below 1 where ours are fewer."""
    per, peer = "cpu_ms_per_question", found["bm25s"]
    pairs = {"dense, 50 at once, by NumPy": (found["dense50"][per], found["numpy50"][per])}
    if "build_cpu_s" in peer:
        pairs["building, by bm25s"] = (found["build"]["cpu_s"], peer["build_cpu_s"])
        for n in (12, 60):
            pairs[f"{n} words, by bm25s"] = (found[f"lexical{n}"][per], peer[f"cpu_ms_{n}_words"])
    return {name: round(ours / theirs, 2) for name, (ours, theirs) in pairs.items()}


def timed(work: Callable[[], dict[str, float] | None], questions: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = work() or {}
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    per = {"cpu_ms_per_question": round(1000 * cpu / questions, 2)}
    return {**found, "cpu_s": round(cpu, 2), "wall_s": round(wall, 2), **per}


def memory() -> dict[str, float]:
    """Peak of this process, and what it has now that no other process can share, in MB."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    private = int(status["RssAnon"].split()[0]) / 1000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"peak_mb": round(peak), "private_mb": round(private)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--papers", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--phase", default="")
    parser.add_argument("--store", default="")
    args = parser.parse_args()
    more = max(1, args.papers // 100)
    if not args.phase:
        with tempfile.TemporaryDirectory() as made:
            phases = ["add", "build", "bm25s", "lexical12", "lexical60", "dense1", "dense50", "numpy50",
                      "dense256", "add_more", "build_more", "lexical12"]  # fmt: skip
            said: dict[str, dict[str, Any]] = {}
            for phase in phases:
                given = ["--papers", str(args.papers), "--dim", str(args.dim), "--phase", phase]
                command = [sys.executable, __file__, *given, "--store", args.store or f"{made}/store"]
                line = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
                said.setdefault(phase, json.loads(line))
                print(line, end="", flush=True)
        print(json.dumps({"ratios": ratios(said)}))
        return
    store, phase = Store.create(args.store), args.phase
    number = int("".join(c for c in phase if c.isdigit()) or 0)
    before = [f.path for x in (store.dataset(WORDS).get_fragments() if store.has(WORDS) else ())
              for f in x.metadata.files]  # fmt: skip
    if phase in ("add", "add_more"):
        first, count = (0, args.papers) if phase == "add" else (args.papers, more)
        found: dict[str, Any] = timed(lambda: add(store, first, count, phase, args.dim), count)
    elif phase in ("build", "build_more"):
        first, count = (0, args.papers) if phase == "build" else (args.papers, more)
        found = timed(lambda: build(store, first, count, phase), count)
        files = [f.path for x in store.dataset(WORDS).get_fragments() for f in x.metadata.files]
        found |= {"files": len(files), "old_files_kept": before == files[: len(before)]}
    elif phase.startswith("lexical"):
        found = lexical(store, number, 50)
    elif phase == "bm25s":
        found = bm25s_index(store)
    elif phase.startswith("dense"):
        found = dense(store, args.dim, number)
    else:
        found = numpy_product(store, args.dim, number)
    print(
        json.dumps({"phase": phase, "papers": args.papers, **found, **memory(), "load": os.getloadavg()[0]})
    )


if __name__ == "__main__":
    main()
