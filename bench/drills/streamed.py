"""Parsing and embedding at the same time on fake GPUs: how busy these are, what lies between, what dies.

    python bench/drills/streamed.py --gpus 64 --lose 8   # eight are killed, eight join, in the middle
    python bench/drills/streamed.py --gpus 4 --slow 100  # an encoder 100 times slower than parsing
    python bench/drills/streamed.py --gpus 4 --way data  # the same work as one graph of Ray Data

Raylets of one machine, with GPUs that are not there: an encoder computes from words and then waits. Prints
one line of JSON; exit code 1 if a table differs from those of one process, if the GPUs were busy for less
than 90 % of the time between the moment when all had begun and the last task, or if more bytes lay between
the two parts than may.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from nodes import SOON, Raylet

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.config import Conf
from raypipe.core.kits import ForwardingKit
from raypipe.core.plain import json_lines
from raypipe.core.progress import Progress
from raypipe.core.records import Source, source_id
from raypipe.runs.cluster.file import LIMITS, Pool
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.pipeline.tasks import HandedBack, Task, TaskResult, WorkerConfig, inline
from raypipe.runs.pipeline.whole_corpus_task import EmbedTask, Prepare, Prepared, WholeCorpusTask
from raypipe.store import Store, put

ROOT = Path(__file__).parents[2]
ROWS = 8  # sources of a task, each of some 700 characters
BUSY = 0.9
PER_NODE = 8  # GPUs of a raylet
JOIN_S = 300.0  # for a raylet, and for all workers to start


@dataclass(frozen=True)
class Timed:
    """Work whose encoder takes `seconds` for a task, one at a time in a process, and keeps a diary."""

    task: WholeCorpusTask
    diary: str
    seconds: float
    worker: WorkerConfig

    async def open_prepare(self, kit: Any) -> Prepare:
        prepare = await replace(self.task, worker=self.worker).open_prepare(kit)

        async def timed(task: Task) -> Prepared | HandedBack:
            done = await prepare(task)
            if isinstance(done, Prepared):
                _note(self.diary, {"bytes": done.nbytes, "at": time.time()})
            return done

        return timed

    async def open_embed(self, kit: Any) -> EmbedTask:
        busy = asyncio.Lock()
        watched: Any = TimedKit(kit, self, _lock(kit, busy))
        embed = await replace(self.task, worker=self.worker).open_embed(watched)

        async def timed(task: Task, prepared: Prepared) -> TaskResult | HandedBack:
            done = await embed(task, prepared)
            _note(self.diary, {"bytes": -prepared.nbytes, "at": time.time()})
            return done

        return timed


def _lock(kit: Any, fresh: asyncio.Lock) -> asyncio.Lock:
    """The lock of a process's one encoder."""
    return kit.__dict__.setdefault("lock", fresh)  # type: ignore[no-any-return]


class TimedKit(ForwardingKit[Any]):
    """A kit whose encoder keeps others waiting for as long as a GPU would."""

    def __init__(self, kit: Any, work: Timed, lock: asyncio.Lock) -> None:
        super().__init__(kit)
        self._work, self._lock = work, lock

    def loading_s(self) -> float:
        return float(self._kit.loading_s())

    def embedder(self, model: Any) -> Any:
        inner = self._kit.embedder(model)

        async def embed(texts: Sequence[str], role: Any) -> np.ndarray:
            async with self._lock:
                start = time.time()
                out: np.ndarray = await inner(texts, role)
                await asyncio.to_thread(time.sleep, max(0.0, self._work.seconds - (time.time() - start)))
                _note(self._work.diary, {"start": start, "end": time.time(), "who": os.getpid()})
            return out

        return embed


def _note(diary: str, what: dict[str, Any]) -> None:
    with open(diary, "a") as f:
        f.write(json.dumps(what) + "\n")


def through_data(pools: Any, work: Any, tasks: Sequence[Task]) -> Iterator[TaskResult]:
    """The same two parts as one graph of Ray Data, held to the same bytes."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, ExecutionResources

    from raypipe.runs.cluster.streamed_pool import StreamWorker

    class Preparing(StreamWorker):
        def __init__(self) -> None:
            super().__init__("prepare", work, LIMITS)

        async def __call__(self, batch: dict[str, Any]) -> Any:
            if not self._free:
                await self.ready()
            for packed in batch["task"]:
                task = pickle.loads(packed)
                _, prepared = await self.prepare(task)
                yield {"task": [packed], "prepared": [pickle.dumps(prepared)]}

    class Embedding(StreamWorker):
        def __init__(self) -> None:
            super().__init__("embed", work, LIMITS)

        async def __call__(self, batch: dict[str, Any]) -> Any:
            if not self._free:
                await self.ready()
            for packed, prepared in zip(batch["task"], batch["prepared"], strict=True):
                done = await self.embed(pickle.loads(packed), pickle.loads(prepared))
                yield {"result": [pickle.dumps(done)]}

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.resource_limits = ExecutionResources(object_store_memory=pools.most_bytes())
    rows = [{"task": pickle.dumps(t)} for t in tasks]
    parts = ray.data.from_items(rows, override_num_blocks=len(rows))
    prepared = parts.map_batches(
        Preparing,
        batch_size=1,
        num_cpus=pools.prepare.cpus,
        compute=ActorPoolStrategy(size=pools.prepare.size),
    )
    done = prepared.map_batches(
        Embedding, batch_size=1, num_cpus=pools.embed.cpus, num_gpus=pools.embed.gpus,
        compute=ActorPoolStrategy(size=pools.embed.size, max_tasks_in_flight_per_actor=2),
    )  # fmt: skip
    for row in done.iter_rows():
        yield pickle.loads(row["result"])


class Machines:
    """A head without work, a node with CPUs, and nodes with fake GPUs."""

    def __init__(self, gpus: int, cpus: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._all = [Raylet("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")]
        _until(self._all[0].listens, "the head")
        self.add(f"--num-cpus={cpus}")
        self.with_gpus = [
            self.add("--num-cpus=8", f"--num-gpus={min(PER_NODE, gpus)}") for _ in range(0, gpus, PER_NODE)
        ]

    def add(self, *arguments: str) -> Raylet:
        node = Raylet(f"--address={self.address}", *arguments)
        self._all.append(node)
        _until(node.listens, "a node")
        return node

    def down(self) -> None:
        for raylet in reversed(self._all):
            raylet.down()


def _until(true: Any, what: str) -> None:
    late = time.monotonic() + JOIN_S
    while not true():
        if time.monotonic() > late:
            raise SystemExit(f"{what} did not come up in {JOIN_S:g} s")
        time.sleep(0.2)


def pipeline(folder: Path, tasks: int, runner: Any, streams: Any = None) -> Pipeline:
    store = Store.create(str(folder))
    texts = [
        f"Source {i}. " + " ".join(f"word{(i * j) % 997}" for j in range(1, 90)) for i in range(ROWS * tasks)
    ]
    put(store, "sources", arrow.source.table(Source(source_id("snippet", t), "snippet", t) for t in texts))
    recipe = load_recipe(str(ROOT / "tests" / "support" / "fakes.yaml"), None, Conf((ROOT / "conf",)))
    worker, silent = WorkerConfig(store.uri, "transformers", "cpu", 1), Progress(io.StringIO(), silent=True)
    return Pipeline(store, recipe, worker, TaskSizes(ROWS, 4), runner, silent, streams=streams)


def tables(pipe: Pipeline) -> dict[str, list[str]]:
    """Every row of the corpus half."""
    names = (*whole_corpus(pipe.recipe)[1], "faults")
    return {
        t: sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in pipe.store.scan(t).to_pylist())
        for t in names
    }


def measured(diary: Path, workers: int) -> dict[str, Any]:
    """How busy the encoders were, each from its first task within the warm time to its last, and the most
    bytes that lay between the parts."""
    notes = json_lines(diary.read_text())
    calls: dict[int, list[tuple[float, float]]] = {}
    for n in notes:
        if "who" in n:
            calls.setdefault(n["who"], []).append((n["start"], n["end"]))
    begun = sorted(min(c)[0] for c in calls.values())
    warm = begun[min(workers, len(begun)) - 1]
    end = max(e for c in calls.values() for _, e in c)
    last = max(start for c in calls.values() for start, _ in c)
    busy = lives = 0.0
    for c in calls.values():
        inside = [(max(s, warm), min(e, last)) for s, e in c if e > warm and s < last]
        busy += sum(e - s for s, e in inside)
        lives += max((e for _, e in inside), default=0.0) - min((s for s, _ in inside), default=0.0)
    held = most = 0
    for n in sorted((n for n in notes if "bytes" in n), key=lambda n: n["at"]):
        most = max(most, held := held + n["bytes"])
    return {
        "encoders": len(calls), "busy": round(busy / lives, 4) if lives else 0.0, "peak_bytes": most,
        "warm_after_s": round(warm - begun[0], 1), "wall_s": round(end - begun[0], 1),
    }  # fmt: skip


def run(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    import ray

    from raypipe.runs.cluster import connection
    from raypipe.runs.cluster.streamed_pool import StreamedPools

    alone = pipeline(home / "alone", given.tasks, inline)
    alone.index(None)
    os.environ.update(SOON)
    diary = home / "diary"
    machines = Machines(given.gpus, given.parsers)
    trouble: list[str] = []
    try:
        connection.connect(machines.address)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        pools = StreamedPools(
            Pool(given.parsers, cpus=1), Pool(given.gpus, cpus=0.05, gpus=1), lambda: given.most_bytes, LIMITS
        )

        def streamed(verb: str, work: WholeCorpusTask, tasks: Sequence[Task]) -> Iterator[Any]:
            if verb != "index":  # words are inverted afterwards
                return inline("parse", work, tasks)
            timed: Any = Timed(work, str(diary), given.seconds * given.slow, work.worker)
            return pools.run(timed, tasks) if given.way == "actors" else through_data(pools, timed, tasks)

        pipe = pipeline(home / "streamed", given.tasks, streamed, lambda: True)
        if given.lose:
            threading.Thread(target=_lose, args=(machines, diary, given, trouble), daemon=True).start()
        start, cpu = time.perf_counter(), time.process_time()
        pipe.index(None)
        took, driver = time.perf_counter() - start, time.process_time() - cpu
        ray.shutdown()
    finally:
        machines.down()
    line = {"way": given.way, "gpus": given.gpus, "parsers": given.parsers, "tasks": given.tasks}
    line |= {
        "encoder_s": given.seconds * given.slow,
        "lost_and_joined": given.lose,
        "most_bytes": given.most_bytes,
    }
    line |= measured(diary, given.gpus) | {"index_s": round(took, 1), "driver_cpu_s": round(driver, 1)}
    return line | {"equal": tables(pipe) == tables(alone), "trouble": trouble}


def _lose(machines: Machines, diary: Path, given: argparse.Namespace, trouble: list[str]) -> None:
    """Kills nodes with that many GPUs once a third of the tasks is embedded, and has as many join."""
    try:
        _until(
            lambda: diary.exists() and diary.read_text().count('"who"') > given.tasks / 3,
            "a third of the tasks",
        )
        count = given.lose // PER_NODE
        for node in machines.with_gpus[:count]:
            node.down()
        time.sleep(2 * given.seconds)
        for _ in range(count):
            machines.add("--num-cpus=8", f"--num-gpus={PER_NODE}")
    except BaseException as e:
        trouble.append(repr(e))


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--parsers", type=int, default=2, help="workers with a CPU")
    parser.add_argument("--tasks", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=1.0, help="of the encoder, for a task")
    parser.add_argument("--slow", type=float, default=1.0, help="times slower than that")
    parser.add_argument("--lose", type=int, default=0, help="GPUs, a multiple of 8, that are killed and join")
    parser.add_argument("--most-bytes", type=int, default=4_000_000, help="between the two parts")
    parser.add_argument("--way", choices=["actors", "data"], default="actors")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    with tempfile.TemporaryDirectory(prefix="raypipe-streamed-") as temporary:
        line = run(given, Path(temporary))
    print(json.dumps(line), flush=True)
    fine = line["equal"] and not line["trouble"] and line["peak_bytes"] <= given.most_bytes
    return 0 if fine and line["busy"] >= BUSY else 1


if __name__ == "__main__":
    sys.exit(main())
