"""Worker processes: what one keeps from block to block and from graph to graph, and how it does a block.

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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put

from raypipe.core.progress import IN_HAND
from raypipe.core.protocols import Model
from raypipe.models.kit import LocalKit, warm_up
from raypipe.runs.cluster.file import Timeouts
from raypipe.runs.pipeline.operators import SKIPPED, Key, Note, Operator, Outcome, PartRows, StagedWork
from raypipe.runs.pipeline.tasks import OUTCOME, HandedBack, Task, WorkerConfig
from raypipe.store import Store
from raypipe.store.parts import halt, halted

T = TypeVar("T")

NOTE_S = 1.0  # between two notes of a process on its part; a note takes a millisecond


class Alarm:
    """Limits on several pieces of work of one process at a time: the first that is over ends the process.

    No thread and no signal handler interrupts a library that loops inside its C code; a timer of the kernel
    whose signal has no handler does. The owner of the process sees it die and decides what that means."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}  # piece -> when it must be over, on the monotonic clock
        self._names, self._lock = itertools.count(), threading.Lock()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Ends the process if the block takes longer than `seconds`."""
        name = next(self._names)
        with self._lock:
            self._ends[name] = time.monotonic() + seconds
            self._set()
        try:
            yield
        finally:
            with self._lock:
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


def notes_of(graph: str) -> str:
    """Begins the keys of a graph's notes in Ray's own store of keys and values."""
    return f"raypipe-in-hand-{graph}-"


def noting(graph: str) -> Callable[[str, int], None]:
    """Makes a listener (`PartInHand`) that lets the driver read how far this process is."""
    last = -NOTE_S

    def note(part: str, units: int) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTE_S:
            last = time.monotonic()
            with suppress(Exception):  # no row waits for what people are shown
                _internal_kv_put(notes_of(graph) + worker_name(), json.dumps([part, units]), overwrite=True)

    return note


def notes(graph: str) -> dict[str, int]:
    """Reads part -> units of it, of the processes of a graph."""
    found = [_internal_kv_get(key) for key in _internal_kv_list(notes_of(graph))]
    return dict(json.loads(note) for note in found if note)


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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kits: list[tuple[WorkerConfig, LocalKit]] = []
        self._opened: dict[tuple[str, int], list[Any]] = {}  # graph, place in it -> what no block uses now
        self._alarm, self._lock, self._starting = Alarm(), threading.Lock(), threading.Lock()
        self._broken = False  # True: nothing more is computed in this process

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Does some work on the loop of this process, which blocks that only wait share."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="work", daemon=True).start()
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:  # Ray ends a task by an exception in its thread
            done.cancel()
            raise

    def load(self, config: WorkerConfig, models: Sequence[Model]) -> None:
        """Loads models before a row needs them. One that cannot be loaded is left to the part that asks it
        first, which says why."""

        async def loaded() -> None:
            await warm_up(await self._kit(config), models)

        with self._lock, suppress(Exception):
            self.wait(loaded())

    def read(self, graph: GraphRun, task: Task, key: Key) -> pa.Table:
        """The first rows of a part: its ids, out of the plan of the run."""

        async def read() -> PartRows:
            if task.planned is None:
                return PartRows.of_task(task, key)
            store = await graph.worker.open_store()
            return PartRows.of_task(await graph.worker.tried(lambda: task.with_ids(store)), key)

        empty = replace(PartRows.of_task(Task(task.name), key), note=Note(task.rows))
        return self._done(graph, empty, read()).table()

    def operate(
        self, graph: GraphRun, place: int, operator: Operator, worker: WorkerConfig, rows: pa.Table
    ) -> pa.Table:
        block = PartRows.of(rows)
        if block.note.over:
            return rows
        if place == 0 and graph.halted():
            return block.over(ended=SKIPPED).table()

        async def operated() -> PartRows:
            free = self._free(graph, place)
            operate = free.pop() if free else await operator.open(await self._kit(worker))
            done: PartRows = await operate(block)
            free.append(operate)
            return done

        return self._done(graph, block, operated(), alone=not operator.in_hand).table()

    def store(self, graph: GraphRun, work: StagedWork, rows: pa.Table) -> str:
        """Returns what came of a part, as JSON (`tasks.OUTCOME`)."""
        block, outcomes = PartRows.of(rows), list[Outcome]()
        if block.note.ended:
            return OUTCOME.dump_json(block.note.ended).decode()

        async def stored() -> PartRows:
            free = self._free(graph, -1)
            store = free.pop() if free else await work.open_sink(worker_name())
            outcomes.append(await store(block))
            free.append(store)
            return block

        done = self._done(graph, block, stored())
        return OUTCOME.dump_json(done.note.ended or outcomes[0]).decode()

    def _done(
        self, graph: GraphRun, block: PartRows, work: Coroutine[Any, Any, PartRows], alone: bool = True
    ) -> PartRows:
        """`alone`: while no other such work is done in this process."""
        if self._broken:
            os._exit(1)  # Ray starts another in its place, and sends it this block again
        try:
            limit = self._alarm.limit(graph.limits.task_timeout_s(block.note.ids))
            with self._alone(graph.name, block.part) if alone else nullcontext(), limit:
                done = self.wait(work)
        except Exception as e:
            done = block.over(ended=Raised.of(e).json())
        back: HandedBack | None = done.note.back
        self._broken |= back is not None and back.then == "replace"
        if done.note.ended or (back is not None and back.then == "stop"):
            graph.halt(done)
        return done

    @contextmanager
    def _alone(self, graph: str, part: str) -> Iterator[None]:
        """Keeps other blocks waiting; models say how far this one is."""
        with self._lock, IN_HAND.heard_by(noting(graph)), IN_HAND.of(part):
            yield

    def _free(self, graph: GraphRun, place: int) -> list[Any]:
        """Lists what was opened at a place of a graph and no block uses; drops what is of another graph."""
        self._opened = {at: it for at, it in self._opened.items() if at[0] == graph.name}
        return self._opened.setdefault((graph.name, place), [])

    async def _kit(self, config: WorkerConfig) -> LocalKit:
        """The kit of a configuration. Those that differ in nothing but threads stay next to each other: the
        processes of Ray's tasks serve operators of several needs."""
        for held, kit in self._kits:
            if held == config:
                return kit
        # The threads of the tokenizers: else as many as the machine has cores, in each process.
        os.environ.setdefault("RAYON_NUM_THREADS", str(config.threads))
        made = config.kit(None, worker_name())
        gone = [kit for c, kit in self._kits if replace(c, threads=config.threads) != config]
        self._kits = [(c, kit) for c, kit in self._kits if kit not in gone] + [(config, made)]
        for kit in gone:
            await kit.close()
        return made


HERE = Process()
"""This worker process: Ray has no other place for what its tasks keep."""
