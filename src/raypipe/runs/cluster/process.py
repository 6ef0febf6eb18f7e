"""Worker processes: the state that a process keeps between blocks and graphs, and its work on a block.

A part is the rows of one task; a block holds the rows of one part between two operators of a graph. Ray
reuses the processes of tasks, so a kit (access to models) stays loaded. If work on a block raises, the
exception goes no further: the block notes it. A block also notes that its part is handed back, if the part's
rows are not to blame. If the run must end, a record in the store tells the driver and other processes
(`GraphRun.halt`).
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put

from raypipe.core.progress import IN_HAND
from raypipe.core.protocols import Model
from raypipe.models.kit import LocalKit, warm_up
from raypipe.runs.cluster.cluster_file import Timeouts
from raypipe.runs.pipeline.operators import SKIPPED, Key, Note, Operator, Outcome, PartRows, StagedWork
from raypipe.runs.pipeline.tasks import OUTCOME, HandedBack, Task, WorkerConfig
from raypipe.store import Store
from raypipe.store.parts import halt, halted

T = TypeVar("T")

NOTE_S = 1.0  # seconds between two notes of a process on its part; a note takes a millisecond


class Alarm:
    """Time limits on concurrent pieces of work; the process ends if one piece takes too long. Nothing inside
    a process can interrupt a library that loops in C code, so a kernel timer sends a signal without a
    handler, which ends the process. The owner of the process sees its death and decides on the work."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}  # piece -> its deadline on the monotonic clock
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
        signal.setitimer(signal.ITIMER_REAL, left)  # 0: no timer; SIGALRM without a handler ends the process


def worker_name() -> str:
    """Returns a name of this process: its node, with the GPUs or else the process id."""
    context = ray.get_runtime_context()
    gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
    node = f"node {context.get_node_id()[:8]}"  # a host may have several
    return f"{node} gpu {gpus}" if gpus else f"{node} process {os.getpid()}"


def notes_of(graph: str) -> str:
    """Returns the prefix of the keys under which Ray's internal key-value store holds a graph's progress."""
    return f"raypipe-in-hand-{graph}-"


def noting(graph: str) -> Callable[[str, int], None]:
    """Returns a listener for `core.progress.IN_HAND` that stores this process's progress for the driver."""
    last = -NOTE_S

    def note(part: str, units: int) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTE_S:
            last = time.monotonic()
            with suppress(Exception):  # progress is only for display: a failed note stops no row
                _internal_kv_put(notes_of(graph) + worker_name(), json.dumps([part, units]), overwrite=True)

    return note


def notes(graph: str) -> dict[str, int]:
    """Reads the progress of a graph's processes: part -> units done."""
    found = [_internal_kv_get(key) for key in _internal_kv_list(notes_of(graph))]
    return dict(json.loads(note) for note in found if note)


def _error_text(e: Exception) -> str:
    """Returns an exception of a worker as JSON: module and name of its class, message, trace."""
    trace = "".join(traceback.format_exception(e))
    return json.dumps([type(e).__module__, type(e).__qualname__, str(e), trace])


def error_of(text: str) -> Exception:
    """Returns the exception of an `_error_text`; a RuntimeError with the trace, if it cannot be rebuilt."""
    module, name, message, trace = json.loads(text)
    with suppress(Exception):
        kind = getattr(importlib.import_module(module), name)
        made = kind.__new__(kind, message)
        if isinstance(made, Exception) and str(made) == message:
            made.add_note(trace)
            return made
    return RuntimeError(trace)


@dataclass(frozen=True, slots=True)
class GraphRun:
    """Description of a running graph, sent to each of its processes."""

    name: str  # unique for each graph
    worker: WorkerConfig
    limits: Timeouts
    records: tuple[str, str] | None  # table and run of the parts' completion records; None: no records

    def halted(self) -> bool:
        return self.records is not None and halted(Store.open(self.worker.store), *self.records) is not None

    def halt(self, block: PartRows) -> None:
        """Stores the reason why the run must end, for the driver and for parts that have not begun. If the
        store cannot be written, the driver learns the reason from the block at the end of the graph."""
        if self.records is not None:
            with suppress(Exception):
                halt(Store.open(self.worker.store), *self.records, block.note.text())


class Process:
    """State of a worker process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kits: list[tuple[WorkerConfig, LocalKit]] = []
        self._opened: dict[tuple[str, int], list[Any]] = {}  # (graph, place in it) -> opened, unused ones
        self._alarm, self._lock, self._starting = Alarm(), threading.Lock(), threading.Lock()
        self._broken = False  # True: the process ends instead of computing more

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work on this process's event loop, which all threads share, and waits for it."""
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
        """Loads models early. Ignores an error: the first part that needs the model reports it."""

        async def loaded() -> None:
            await warm_up(await self._kit(config), models)

        with self._lock, suppress(Exception):
            self.wait(loaded())

    def read(self, graph: GraphRun, task: Task, key: Key) -> pa.Table:
        """Returns the first block of a part: the ids of its rows, from the task or the plan of the run."""

        async def read() -> PartRows:
            if task.planned is None:
                return PartRows.of_task(task, key)
            store = await graph.worker.open_store()
            return PartRows.of_task(await graph.worker.tried(lambda: task.with_ids(store)), key)

        empty = replace(PartRows.of_task(Task(task.name), key), note=Note(task.rows))
        return self._do(graph, empty, read()).table()

    def operate(
        self, graph: GraphRun, place: int, operator: Operator, worker: WorkerConfig, rows: pa.Table
    ) -> pa.Table:
        """Runs the operator at `place` of a graph on a block. Returns the block unchanged if an earlier
        operator ended it. The first operator skips the block if the run is halted."""
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

        return self._do(graph, block, operated(), alone=not operator.in_hand).table()

    def store(self, graph: GraphRun, work: StagedWork, rows: pa.Table) -> str:
        """Stores a part. Returns its outcome as JSON (`tasks.OUTCOME`), or the reason why it ended early."""
        block, outcomes = PartRows.of(rows), list[Outcome]()
        if block.note.ended:
            return OUTCOME.dump_json(block.note.ended).decode()

        async def stored() -> PartRows:
            free = self._free(graph, -1)
            store = free.pop() if free else await work.open_sink(worker_name())
            outcomes.append(await store(block))
            free.append(store)
            return block

        done = self._do(graph, block, stored())
        return OUTCOME.dump_json(done.note.ended or outcomes[0]).decode()

    def _do(
        self, graph: GraphRun, block: PartRows, work: Coroutine[Any, Any, PartRows], alone: bool = True
    ) -> PartRows:
        """Does work on a block within its time limit. If the work raises, the block ends with a note of the
        error. `alone` True: no other such work of this process runs meanwhile, and the progress is noted."""
        if self._broken:
            os._exit(1)  # Ray starts another process and sends it this block again
        try:
            with ExitStack() as held:
                if alone:
                    held.enter_context(self._lock)
                    held.enter_context(IN_HAND.heard_by(noting(graph.name)))
                    held.enter_context(IN_HAND.of(block.part))
                held.enter_context(self._alarm.limit(graph.limits.task_timeout_s(block.note.ids)))
                done = self.wait(work)
        except Exception as e:
            done = block.over(ended=_error_text(e))
        back: HandedBack | None = done.note.back
        self._broken |= back is not None and back.then == "replace"
        if done.note.ended or (back is not None and back.then == "stop"):
            graph.halt(done)
        return done

    def _free(self, graph: GraphRun, place: int) -> list[Any]:
        """Returns idle functions opened at a place of a graph (-1: its sink). Drops those of other graphs."""
        self._opened = {at: it for at, it in self._opened.items() if at[0] == graph.name}
        return self._opened.setdefault((graph.name, place), [])

    async def _kit(self, config: WorkerConfig) -> LocalKit:
        """Returns the kit of a configuration. Kits of configurations that differ only in threads stay open,
        because a process of Ray's tasks serves several operators. Closes all other kits."""
        for held, kit in self._kits:
            if held == config:
                return kit
        # Threads of tokenizers. By default each process has as many as the machine has cores.
        os.environ.setdefault("RAYON_NUM_THREADS", str(config.threads))
        made = config.kit(None, worker_name())
        gone = [kit for c, kit in self._kits if replace(c, threads=config.threads) != config]
        self._kits = [(c, kit) for c, kit in self._kits if kit not in gone] + [(config, made)]
        for kit in gone:
            await kit.close()
        return made


HERE = Process()
"""State of this worker process. Ray offers no other place to keep things between tasks."""
