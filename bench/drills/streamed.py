"""The graph of the corpus half on fake GPUs: how busy these are, what lies between, what dies.

    python bench/drills/streamed.py --gpus 64 --lose 8 --join  # eight are killed, eight join, in the middle
    python bench/drills/streamed.py --gpus 16 --lose 8    # eight are killed for good
    python bench/drills/streamed.py --gpus 4 --slow 100   # an encoder 100 times slower than parsing

Raylets of one machine, with GPUs that are not there: an encoder computes from words and then waits. Prints
one line of JSON; exit code 1 if a table differs from those of one process, or if the GPUs were busy for less
than 90 % of the time between the moment when all had begun and the last task, none of them being lost.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from nodes import SOON, Raylet

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.protocols import ForwardingKit
from raypipe.core.records import Source, source_id
from raypipe.core.textfile import json_lines
from raypipe.runs.cluster.cluster_file import LIMITS, Pool
from raypipe.runs.pipeline.corpus_operators import CorpusTask
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.operators import Operate, Operator, PartRows
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.pipeline.tasks import Task, WorkerConfig, inline
from raypipe.store import Store, put

ROOT = Path(__file__).parents[2]
ROWS = 8  # sources of a task, each of some 700 characters
BUSY = 0.9
PER_NODE = 8  # GPUs of a raylet
JOIN_S = 300.0  # for a raylet, and for all workers to start


@dataclass(frozen=True)
class Timed(CorpusTask):
    """Work whose encoder takes `seconds` for a part, one at a time in a process, and keeps a diary."""

    diary: str = ""
    seconds: float = 0.0

    def operators(self) -> Sequence[Operator]:
        parse, *between, embed = CorpusTask.operators(self)
        *between, last = between
        return [parse, *between, Watched(last, self), Watched(embed, self)]


@dataclass(frozen=True)
class Watched:
    """An operator that notes the bytes of its blocks, and whose encoder waits."""

    inner: Operator
    work: Timed

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def pool(self) -> Any:
        return self.inner.pool

    @property
    def in_hand(self) -> int:
        return self.inner.in_hand

    async def open(self, kit: Any) -> Operate:
        watched: Any = TimedKit(kit, self.work, asyncio.Lock())
        do = await self.inner.open(watched if self.name == "embed" else kit)

        async def noted(block: PartRows) -> PartRows:
            done = await do(block)
            given = -block.rows.nbytes if self.name == "embed" else done.rows.nbytes
            _note(self.work.diary, {"bytes": given, "at": time.time()})
            return done

        return noted


class TimedKit(ForwardingKit[Any]):
    """A kit whose encoder keeps others waiting for as long as a GPU would."""

    def __init__(self, kit: Any, work: Timed, lock: asyncio.Lock) -> None:
        super().__init__(kit)
        self._work, self._lock = work, lock

    @property
    def process(self) -> str:
        return str(self._kit.process)

    @property
    def spent(self) -> Any:
        return self._kit.spent

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
        "encoders": len(calls),
        "busy": round(busy / lives, 4) if lives else 0.0,
        "peak_bytes": most,
        "warm_after_s": round(warm - begun[0], 1),
        "wall_s": round(end - begun[0], 1),
    }


def run(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    import ray

    from raypipe.runs.cluster import connection, running

    alone = pipeline(home / "alone", given.tasks, inline)
    alone.index(None)
    os.environ.update(SOON)
    diary = home / "diary"
    machines = Machines(given.gpus, given.parsers)
    trouble: list[str] = []
    try:
        connection.connect(machines.address)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        said: list[str] = []

        def there() -> int:
            return int(sum(node.get("GPU", 0.0) for node in connection.nodes()))

        _until(lambda: there() >= given.gpus, "all GPUs")

        def pools() -> dict[Any, Pool]:
            embed = Pool(min(given.gpus, there()), cpus=0.05, gpus=1)
            return {"parse": Pool(given.parsers, cpus=1), "embed": embed}

        def streamed(verb: Any, work: CorpusTask, tasks: Sequence[Task]) -> Iterator[Any]:
            if verb != "index":  # words are inverted afterwards
                return inline("parse", work, tasks)
            timed = Timed(
                work.worker,
                work.recipe,
                work.run,
                models=work.models,
                memo=work.memo,
                diary=str(diary),
                seconds=given.seconds * given.slow,
            )
            return running.run(verb, timed, tasks, pools, LIMITS, said.append)

        pipe = pipeline(home / "streamed", given.tasks, streamed, lambda: True)
        if given.lose:
            threading.Thread(target=_lose, args=(machines, diary, given, trouble), daemon=True).start()
        start, cpu = time.perf_counter(), time.process_time()
        pipe.index(None)
        took, driver = time.perf_counter() - start, time.process_time() - cpu
        ray.shutdown()
    finally:
        machines.down()
    line = {"gpus": given.gpus, "parsers": given.parsers, "tasks": given.tasks}
    line |= {
        "encoder_s": given.seconds * given.slow,
        "lost": given.lose,
        "joined": given.lose if given.join else 0,
        "graphs": len(said),
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
        for _ in range(count if given.join else 0):
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
    parser.add_argument("--lose", type=int, default=0, help="GPUs, a multiple of 8, that are killed")
    parser.add_argument("--join", action="store_true", help="as many join then")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    with tempfile.TemporaryDirectory(prefix="raypipe-streamed-") as temporary:
        line = run(given, Path(temporary))
    print(json.dumps(line), flush=True)
    fine = line["equal"] and not line["trouble"]
    return 0 if fine and (given.lose or line["busy"] >= BUSY) else 1


if __name__ == "__main__":
    sys.exit(main())
