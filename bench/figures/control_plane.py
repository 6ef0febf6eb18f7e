#!/usr/bin/env python3
"""What the driver itself costs: plan, cut, commit and look again, over tasks that compute nothing.

    python bench/figures/control_plane.py --sources 1000000 --folder /tmp/control

Makes a store of sources of 200 bytes, and tasks that read and compute nothing: a text without words, one
chunk, one vector, and a search that finds nothing. So all that is measured is the driver: seconds and peak
memory of a plan, of an index, of an eval and of a second one that changes nothing. Each phase runs in a
process of its own. A store that is there is used again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from memory import highest

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.answer_operators import answers_table
from raypipe.runs.pipeline.counters import RunCounters
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.store_tasks import StoreTask
from raypipe.runs.pipeline.tasks import HandedBack, Task, TaskResult, Verb, WorkerConfig, inline
from raypipe.runs.plan.planner import plan
from raypipe.store import Store, commit, put, write_part
from raypipe.store.sources import write_sizes

ROOT = Path(__file__).parents[2]
RECIPE = """
about: texts, passages and vectors that hold nothing
corpus:
  - parse: {html: lxml, via: fast, kinds: [document]}
  - split: {child_chars: 200, child_overlap: 50}
  - embed: {model: tiny}
question:
  - dense: {model: tiny, top: 10}
"""
MODELS = "tiny: {kind: embedder, loader: hash, dim: DIM}\n"
SOURCE_BYTES = 200
PART = 250_000  # sources of a part: 50 MB
PER_TASK = 10_000
PHASES = ("plan", "index", "first", "again")


def fill(store: Store, count: int) -> None:
    """Sources of random ids, in one commit, and one question about all of them."""
    rng, names = np.random.default_rng(1), []
    for part in range(0, count, PART):
        size = min(PART, count - part)
        ids = [x.tobytes().hex() for x in rng.integers(0, 1 << 32, (size, 4), np.uint32)]
        content = [f"{id}{'x' * (SOURCE_BYTES - 32)}" for id in ids]
        table = pa.table(
            [arrow.id_column(ids), pa.array(["document"] * size), pa.array(content)],
            arrow.source.schema.names,
        )
        rows = table.cast(store.dataset("sources").schema)
        write_part(store, "sources", "fill", str(part), rows, {})
        write_sizes(store, f"fill-{part}", rows)
        names.append(str(part))
    commit(store, "sources", "fill", names)
    put(store, "questions", arrow.question.table([Question("q", "who?", citations=None)]))


class Nothing:
    """Does tasks without reading or computing: rows that hold nothing, answers of questions that found
    nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that the tasks took: workers would

    def __call__(self, verb: Verb, work: Any, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        if isinstance(work, StoreTask):  # of what is there: it fills nothing
            yield from inline(verb, work, tasks)
            return
        store = Store.open(work.worker.store)
        schema = store.dataset(work.table).schema
        for task in tasks:
            start = time.perf_counter()
            ids = task.with_ids(store).ids
            if verb == "answer":
                rows = _unfound(store, work, ids)
            else:
                rows = pa.Table.from_arrays([_filled(f, ids) for f in schema], schema=schema)
            write_part(store, work.table, work.run, task.name, rows, {"counts": {}})
            none = store.dataset("faults").schema.empty_table()
            write_part(store, "faults", work.run, task.name, none, {})
            self.seconds += time.perf_counter() - start
            yield TaskResult(task.name, task.rows, rows.num_rows, 0)


def _unfound(store: Store, work: Any, ids: Sequence[str]) -> pa.Table:
    """The answers of questions for which nothing was found."""
    recipe = work.recipe.digest()
    asked = [replace(q, outcome="ranked") for q in arrow.question.records(store.rows("questions", "id", ids))]
    return answers_table([(work.sources.key(recipe, q), work.sources.row(q), q) for q in asked], recipe)


def _filled(field: pa.Field, ids: Sequence[str]) -> pa.Array:
    """A column of rows that hold next to nothing: spans of one character, equal unit vectors."""
    kind, count = field.type, len(ids)
    if field.name == "source":
        return arrow.id_column(ids, kind)
    if pa.types.is_fixed_size_list(kind):
        row = np.eye(1, kind.list_size, dtype=np.float32)
        return pa.FixedSizeListArray.from_arrays(
            pa.array(np.tile(row, (count, 1)).reshape(-1)), kind.list_size
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.array([[]] * count, kind)
    if pa.types.is_integer(kind):
        return pa.array(np.full(count, int(field.name.endswith("end"))), kind)
    return pa.array(["x" if field.name == "text" else ""] * count, kind)


def read_bytes() -> int:
    """What this process has asked the kernel to read of files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def run(phase: str, folder: Path) -> dict[str, Any]:
    """One phase in this process: its seconds and peak memory. Of an index also, for each table, what the
    driver did without the tasks: cut, plan, commit and index."""
    store = Store.open(str(folder / "store"))
    recipe = load_recipe(str(folder / "nothing.yaml"), str(folder / "models.yaml"), Conf((ROOT / "conf",)))
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    silent = Progress(io.StringIO(), silent=True)
    runner, tables = Nothing(), dict[str, float]()
    pipe = Pipeline(store, recipe, worker, TaskSizes(PER_TASK, 10), runner, silent)
    start, cpu, already = time.perf_counter(), time.process_time(), read_bytes()
    if phase == "plan":
        plan(pipe, list(questions_of(pipe, None, None)))
    elif phase == "index":
        with driving(store, "index"):
            for build in pipe.corpus.tables(pipe.sources(None), None):
                began, runner.seconds = time.perf_counter(), 0.0
                pipe.builder.build(build, RunCounters())
                tables[build.done_verb] = round(time.perf_counter() - began - runner.seconds, 1)
    else:
        evaluate(pipe, [], folder / phase, EvalOptions("rows"))
    took = time.perf_counter() - start
    return {
        "phase": phase,
        "seconds": round(took, 1),
        "cpu": round(time.process_time() - cpu, 1),
        "read": read_bytes() - already,
        "peak": highest(os.getpid()),  # `ru_maxrss` begins with what the parent had
        "tables": tables,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=8, help="numbers of a vector (8)")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--phase", choices=PHASES)
    args = parser.parse_args()
    if args.phase:
        print(json.dumps(run(args.phase, args.folder)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "nothing.yaml").write_text(RECIPE)
    (args.folder / "models.yaml").write_text(MODELS.replace("DIM", str(args.dim)))
    store = Store.create(str(args.folder / "store"))
    if not store.count("sources"):
        start = time.perf_counter()
        fill(store, args.sources)
        print(f"filled {args.sources:,} sources in {time.perf_counter() - start:.0f} s", flush=True)
    for phase in PHASES:
        command = [sys.executable, __file__, "--folder", str(args.folder), "--phase", phase]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise SystemExit(said.stderr)
        found = json.loads(said.stdout.rstrip().rpartition("\n")[2])
        print(
            f"{phase}: {found['seconds']} s, {found['cpu']} of CPU, peak {found['peak'] >> 20} MiB, "
            f"read {found['read'] / 2**20:.1f} MiB",
            *(f"{verb}: {took} s without its tasks" for verb, took in found["tables"].items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
