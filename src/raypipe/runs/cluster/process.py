"""What a worker process keeps from block to block and from graph to graph, and how it does a block.

Ray keeps the processes of tasks, so the kit with its models stays loaded. Trouble that is no row's fault
becomes a row that the driver reads (`halt`), or a part that comes back; the process never raises.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import ray

from raypipe.core.protocols import Model
from raypipe.models.kit import LocalKit
from raypipe.models.warm_up import warm_up
from raypipe.runs.cluster.file import Timeouts
from raypipe.runs.pipeline.blocks import SKIPPED, Key, PartRows, ended_text, outcome_text
from raypipe.runs.pipeline.operators import Operator, Outcome, StagedWork
from raypipe.runs.pipeline.recipe_task import task_with_ids
from raypipe.runs.pipeline.tasks import HandedBack, Task, WorkerConfig
from raypipe.store import Store
from raypipe.store.parts import halt, halted

T = TypeVar("T")


class Alarm:
    """Limits on several pieces of work of one process at a time: the first that is over ends the process.

    No thread and no signal handler interrupts a library that loops inside its C code; a timer of the kernel
    whose signal has no handler does. The owner of the process sees it die and decides what that means."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}  # piece -> when it must be over, on the monotonic clock
        self._names = itertools.count()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Ends the process if the block takes longer than `seconds`."""
        name = next(self._names)
        self._ends[name] = time.monotonic() + seconds
        self._set()
        try:
            yield
        finally:
            del self._ends[name]
            self._set()

    def _set(self) -> None:
        left = max(0.001, min(self._ends.values()) - time.monotonic()) if self._ends else 0.0
        signal.setitimer(signal.ITIMER_REAL, left)  # 0: none; SIGALRM ends a process that does not handle it


def worker_name() -> str:
    """Says which process this is: its node, and its GPUs where it has some."""
    context = ray.get_runtime_context()
    gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
    node = f"node {context.get_node_id()[:8]}"  # several may stand on one host
    return f"{node} gpu {gpus}" if gpus else f"{node} process {os.getpid()}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a worker, as JSON: its class by name, its message, its trace."""

    kind: str  # module:name
    text: str
    trace: str

    @classmethod
    def of(cls, e: Exception) -> Raised:
        return cls(
            f"{type(e).__module__}:{type(e).__qualname__}", str(e), "".join(traceback.format_exception(e))
        )

    def json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def revived(cls, text: str) -> Exception:
        """The exception with its message; a RuntimeError with the trace where its class cannot say that."""
        tree = json.loads(text)
        module, _, name = tree["kind"].partition(":")
        with suppress(Exception):
            kind = getattr(importlib.import_module(module), name)
            made = kind.__new__(kind, tree["text"])
            if isinstance(made, Exception) and str(made) == tree["text"]:
                made.add_note(tree["trace"])
                return made
        return RuntimeError(tree["trace"])


@dataclass(frozen=True, slots=True)
class GraphRun:
    """Facts of a graph that each of its processes has."""

    name: str  # another for each graph
    worker: WorkerConfig
    limits: Timeouts
    records: tuple[str, str] | None  # table and run whose completion records say that a part is done

    def halted(self) -> bool:
        return self.records is not None and halted(Store.open(self.worker.store), *self.records) is not None

    def halt(self, block: PartRows) -> None:
        """Says to the driver, and to the parts that have not begun, why the run is to end. Where the store
        does not take it, the sink says so at the end."""
        if self.records is not None:
            with suppress(Exception):
                halt(Store.open(self.worker.store), *self.records, block.note.text())


class Process:
    """A worker process, and all that it keeps."""

    def __init__(self) -> None:
        self._loop: asyncio.Runner | None = None
        self._kits: list[tuple[WorkerConfig, LocalKit]] = []
        self._opened: dict[tuple[str, int], Any] = {}  # graph, place in it -> what was opened
        self._alarm, self._lock = Alarm(), threading.Lock()
        self._broken = False  # True: nothing more is computed in this process

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop = self._loop or asyncio.Runner()
        return self._loop.run(work)

    def load(self, config: WorkerConfig, models: Sequence[Model]) -> None:
        """Loads models before a row needs them. One that cannot be loaded is left to the part that asks it
        first, which says why."""
        with self._lock, suppress(Exception):
            self.wait(self._loaded(config, models))

    def read(self, graph: GraphRun, task: Task, key: Key) -> pa.Table:
        """The first rows of a part: its ids, out of the plan of the run."""

        async def read() -> PartRows:
            if task.planned is None:
                return PartRows.of_task(task, key)
            store = Store.open(graph.worker.store)
            return PartRows.of_task(await task_with_ids(store, task, graph.worker), key)

        empty = PartRows.of_task(Task(task.name, ("",) * task.rows), key)
        return self._done(graph, empty, read()).table()

    def operate(
        self, graph: GraphRun, place: int, operator: Operator, worker: WorkerConfig, rows: pa.Table
    ) -> pa.Table:
        block = PartRows.of(rows)
        if block.note.over:
            return rows
        if place == 0 and graph.halted():
            return block.ended(SKIPPED).table()

        async def operated() -> PartRows:
            if (graph.name, place) not in self._opened:
                self._keep(graph, place, await operator.open(await self._kit(worker)))
            done: PartRows = await self._opened[graph.name, place](block)
            return done

        return self._done(graph, block, operated()).table()

    def store(self, graph: GraphRun, work: StagedWork, rows: pa.Table) -> str:
        """What came of a part, as text (`blocks.outcome_of`)."""
        block, outcomes = PartRows.of(rows), list[Outcome]()
        if block.note.ended:
            return ended_text(block.note.ended)

        async def stored() -> PartRows:
            if (graph.name, -1) not in self._opened:
                self._keep(graph, -1, await work.open_sink(worker_name()))
            outcomes.append(await self._opened[graph.name, -1](block))
            return block

        done = self._done(graph, block, stored())
        return ended_text(done.note.ended) if done.note.ended else outcome_text(outcomes[0])

    def _done(self, graph: GraphRun, block: PartRows, work: Coroutine[Any, Any, PartRows]) -> PartRows:
        if self._broken:
            os._exit(1)  # Ray starts another in its place, and sends it this block again
        try:
            with self._lock, self._alarm.limit(graph.limits.task_timeout_s(block.note.ids)):
                done = self.wait(work)
        except Exception as e:
            done = block.ended(Raised.of(e).json())
        back: HandedBack | None = done.note.back
        self._broken = back is not None and back.then == "replace"
        if done.note.ended or (back is not None and back.then == "stop"):
            graph.halt(done)
        return done

    async def _loaded(self, config: WorkerConfig, models: Sequence[Model]) -> None:
        await warm_up(await self._kit(config), models)

    def _keep(self, graph: GraphRun, place: int, opened: Any) -> None:
        """Keeps what was opened for a graph; what was opened for another one goes."""
        self._opened = {at: it for at, it in self._opened.items() if at[0] == graph.name}
        self._opened[graph.name, place] = opened

    async def _kit(self, config: WorkerConfig) -> LocalKit:
        """The kit of a configuration. Those that differ in nothing but threads stay next to each other: the
        processes of Ray's tasks serve operators of several needs."""
        for held, kit in self._kits:
            if held == config:
                return kit
        gone = [(c, kit) for c, kit in self._kits if replace(c, threads=config.threads) != config]
        self._kits = [(c, kit) for c, kit in self._kits if replace(c, threads=config.threads) == config]
        for _, kit in gone:
            await kit.close()
        # The threads of the tokenizers: else as many as the machine has cores, in each process.
        os.environ.setdefault("RAYON_NUM_THREADS", str(config.threads))
        self._kits.append((config, config.kit(None, worker_name())))
        return self._kits[-1][1]


HERE = Process()
"""This worker process: Ray has no other place for what its tasks keep."""
