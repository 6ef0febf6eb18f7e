"""Search over a whole collection: what building the postings costs, and a question by BM25 and by vectors.

    python bench/figures/search_collection.py --papers 400000

Papers are Zipf words of log-normal lengths (mean 100). Vectors lie between those that MiniLM gives real
sentences (SciFact's where RAYPIPE_DATA names the data, else an invented collection's), with some noise. Each
phase is a process of its own, so its peak memory is its own. CPU seconds count; wall seconds depend on what
else runs. NumPy's product over the same rows stands next to ours, and so does bm25s over the same words,
where it is installed; a sort of all scores in float64 says what is right. The last line has the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
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
from embedding import model

from raypipe.contrib.world.collection import write_collection
from raypipe.core.arrow import DIGEST, id_column, id_texts
from raypipe.core.index import VectorHit
from raypipe.core.records import Question, source_id
from raypipe.models import load
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.store_tasks import PART_SOURCES, PostingsTask
from raypipe.runs.pipeline.tasks import Task, WorkerConfig
from raypipe.steps.bm25 import Bm25
from raypipe.store import PASSAGES, Store, commit, vectors_schema, write_part
from raypipe.store.ids import Ids, distinct
from raypipe.store.index import LanceIndex, index_spec
from raypipe.store.sources import lacked
from raypipe.store.tables import LENGTHS, POSTINGS
from raypipe.store.vectors import folder as copies
from raypipe.store.vectors import vector_copy
from raypipe.text.words import sentences, word_hash

TEXTS, PARTS, WORDS, LENGTH, VECTORS = (
    f"{kind}-{'c' * 32}" for kind in ("texts", "passages", "postings", "lengths", "vectors")
)
TEXT = pa.schema(
    [
        ("source", DIGEST),
        ("text", pa.large_string()),
        ("words_plain", pa.list_(pa.uint64())),
        ("starts_plain", pa.list_(pa.int32())),
    ]
)
VOCABULARY = 300_000
MODEL = model("all-MiniLM-L6-v2")
REAL = 4_000  # sentences that are embedded
NOISE = 0.1  # length of what is added to an interpolated vector of length 1
BEST = 150  # papers of a question by vectors
AT_ONCE = 50_000


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of words by Zipf's law."""
    return np.minimum((VOCABULARY ** rng.random(count)).astype(np.int64), VOCABULARY - 1)


def real_lines(folder: Path, file: str) -> list[dict[str, Any]]:
    """Rows of a file of SciFact, or of an invented collection in the same form."""
    if data := os.environ.get("RAYPIPE_DATA"):
        return [json.loads(line) for line in gzip.open(Path(data) / "scifact" / f"{file}.jsonl.gz", "rt")]
    if not (folder / "papers").exists():
        write_collection(folder / "papers", 4000, 200, seed=1)
    return [json.loads(line) for line in (folder / "papers" / f"{file}.jsonl").open()]


def embed(folder: Path) -> dict[str, float]:
    """The model's own vectors of real sentences and of real questions, kept in files of the folder."""
    papers = (row["text"] for row in real_lines(folder, "corpus"))
    found = [text[a:b] for text in papers for a, b in sentences(text)][:REAL]
    asked = [row["text"] for row in real_lines(folder, "queries")]
    embedder = load.open_model(MODEL, "transformers", "cpu")
    np.save(folder / "passages.npy", embedder.embed(found, "passage"))
    np.save(folder / "queries.npy", embedder.embed(asked, "query"))
    return {"sentences": len(found), "questions": len(asked)}


def between(real: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors on the way from one real vector to another, with noise."""
    one, other = (real[rng.integers(0, len(real), count)] for _ in range(2))
    share = rng.random((count, 1), np.float32)
    noise = rng.standard_normal(one.shape, np.float32) * (NOISE / one.shape[1] ** 0.5)
    made: np.ndarray = one * share + other * (1 - share) + noise
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def names(first: int, count: int) -> list[str]:
    return [source_id("document", str(i)) for i in range(first, first + count)]


def add(store: Store, folder: Path, first: int, count: int, run: str) -> None:
    """Texts, passages and vectors of some papers."""
    rng = np.random.default_rng(first)
    real = np.load(folder / "passages.npy")
    hashes = np.array([word_hash(f"w{i}") for i in range(VOCABULARY)], np.uint64)
    parts = []
    for at in range(0, count, AT_ONCE):
        n = min(AT_ONCE, count - at)
        lengths = np.clip(rng.lognormal(4.4, 0.6, n), 5, 1000).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts = (np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).astype(np.int32) * 6
        sources = id_column(names(first + at, n))
        lists = [hashes[drawn(rng, int(offsets[-1]))], starts]
        columns = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(x)) for x in lists]
        text = pa.array(["" for _ in range(n)], pa.large_string())
        zero, end = np.zeros(n, np.int32), (lengths * 6).astype(np.int32)
        spans = [sources, *(pa.array(x) for x in (zero, end, zero, end))]
        column = pa.FixedSizeListArray.from_arrays(pa.array(between(real, n, rng).ravel()), MODEL.dim)
        rows = {
            TEXTS: pa.Table.from_arrays([sources, text, *columns], schema=TEXT),
            PARTS: pa.Table.from_arrays(spans, schema=PASSAGES),
            VECTORS: pa.Table.from_arrays([*spans, column], schema=vectors_schema(MODEL.dim)),
        }
        parts.append(str(at))
        for table, data in rows.items():
            store.ensure(table, data.schema)
            write_part(store, table, run, parts[-1], data, {})
    for table in (TEXTS, PARTS, VECTORS):
        commit(store, table, run, parts)


def build(store: Store, run: str) -> int:
    """What the pipeline does for the sources that postings lack, in this process: how many these are."""
    for table, schema in ((WORDS, POSTINGS), (LENGTH, LENGTHS)):
        store.ensure(table, schema)
    every = Ids(distinct(store.dataset(PARTS), "source"))
    ids = lacked(store, store.dataset(LENGTH), LENGTH, every)
    tasks = [Task(str(at), tuple(ids[at : at + PART_SOURCES])) for at in range(0, len(ids), PART_SOURCES)]
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    work = PostingsTask(worker, "plain", LENGTH, WORDS, TEXTS, PARTS, run)

    async def do_all() -> None:
        do = await work.open()
        for task in tasks:
            await do(task)

    asyncio.run(do_all())
    for table in (WORDS, LENGTH) if tasks else ():
        commit(store, table, run, [t.name for t in tasks])
    return len(ids)


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


def asked_vectors(folder: Path, count: int) -> np.ndarray:
    """(count, dim): unit vectors on the way between those of real questions."""
    return between(np.load(folder / "queries.npy"), count, np.random.default_rng(2))


def nearest(index: LanceIndex, asked: np.ndarray) -> list[list[VectorHit]]:
    return asyncio.run(index.search(MODEL, asked, [None] * len(asked), BEST))


def dense(store: Store, folder: Path, batch: int) -> dict[str, float]:
    asked, index = asked_vectors(folder, batch), index_of(store)
    start = time.process_time()
    nearest(index, asked[:1])  # makes or opens the copy
    opened = time.process_time() - start
    return {"open_cpu_s": round(opened, 2), **timed(lambda: {"hits": len(nearest(index, asked))}, batch)}


def numpy_product(store: Store, folder: Path, batch: int) -> dict[str, float]:
    """NumPy's float32 product over the same rows; and how many of ten questions have from us the papers that
    a full sort of float64 scores puts first, in its order."""
    asked = asked_vectors(folder, batch)
    copy = vector_copy(store.dataset(VECTORS), copies())
    assert copy is not None
    [matrix] = copy.matrices

    def product() -> dict[str, float]:
        best = [np.argpartition(-(b @ asked.T), BEST, axis=0)[:BEST] for b in np.array_split(matrix, 25)]
        return {"hits": len(best)}

    cost = timed(product, batch)
    ids = np.array(id_texts(store.dataset(VECTORS).to_table(["source"])["source"]))
    ours = nearest(index_of(store), asked[:10])
    blocks = np.array_split(matrix, 100)
    scores = np.concatenate([b.astype(np.float64) @ asked[:10].T.astype(np.float64) for b in blocks])
    same = 0
    for hits, column in zip(ours, scores.T, strict=True):
        same += [h.source for h in hits] == ids[np.lexsort((ids, -column))[:BEST]].tolist()
    return {**cost, "equal_of_10": same}


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


PHASES = (
    "embed",
    "add",
    "build",
    "build_again",
    "bm25s",
    "lexical12",
    "lexical60",
    "dense1",
    "dense50",
    "numpy50",
    "dense256",
    "add_more",
    "build_more",
    "lexical12",
)


def do(phase: str, folder: Path, papers: int) -> dict[str, Any]:
    """A phase in this process: what it found and cost."""
    store = Store.create(str(folder / "store"))
    number = int("".join(c for c in phase if c.isdigit()) or 0)
    if phase == "embed":
        return embed(folder)
    if phase.startswith("add"):
        first, count = (0, papers) if phase == "add" else (papers, max(1, papers // 100))
        return timed(lambda: add(store, folder, first, count, phase), count)
    if phase.startswith("build"):
        before = segment_files(store) if store.has(WORDS) else []
        found = timed(lambda: {"papers_inverted": build(store, phase)}, papers)
        after = segment_files(store)
        return {**found, "files": len(after), "old_files_kept": before == after[: len(before)]}
    if phase == "bm25s":
        return bm25s_index(store)
    if phase.startswith("lexical"):
        return lexical(store, number, 50)
    return (dense if phase.startswith("dense") else numpy_product)(store, folder, number)


def segment_files(store: Store) -> list[str]:
    """Data files of the postings, in the order of the table."""
    return [f.path for x in store.dataset(WORDS).get_fragments() for f in x.metadata.files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--papers", type=int, default=400_000)
    parser.add_argument("--folder", default="", help="where the store is made; a temporary one by default")
    parser.add_argument("--phase", choices=PHASES, help="this one alone, over a folder of an earlier run")
    args = parser.parse_args()
    if args.phase:
        found = do(args.phase, Path(args.folder), args.papers)
        print(json.dumps({"phase": args.phase, **found, **memory(), "load": os.getloadavg()[0]}))
        return
    with tempfile.TemporaryDirectory() as made:
        said: dict[str, dict[str, Any]] = {}
        for phase in PHASES:
            given = ["--papers", str(args.papers), "--folder", args.folder or made, "--phase", phase]
            command = [sys.executable, __file__, *given]
            line = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            said.setdefault(phase, json.loads(line))
            print(line, end="", flush=True)
    print(json.dumps({"ratios": ratios(said)}))


if __name__ == "__main__":
    main()
