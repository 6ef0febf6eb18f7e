"""Execution of tasks on Ray, as a graph of Ray Data. Tasks whose processes die are tried row by row.

A stored part (the rows of one task) has a completion record in the store. A thread runs the graph, since
`write_datasink` blocks; the driver meanwhile reads the records. If a part has no record when the graph ends,
its processes have died. Its rows are then tried one by one, which finds a row that kills its process.
"""

from __future__ import annotations

import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_del

from raypipe.core.errors import RaypipeError, Unavailable
from raypipe.core.progress import IN_HAND
from raypipe.core.records import Fault
from raypipe.recipes.executor import StageCounters
from raypipe.runs.cluster.cluster_file import LIMITS, Pool, Timeouts
from raypipe.runs.cluster.graph import LEFT, TRIES, GraphLeft, Pools, Whole, graph_of, write
from raypipe.runs.cluster.process import NOTE_S, Alarm, GraphRun, error_of, notes, notes_of, worker_name
from raypipe.runs.pipeline.counters import summed
from raypipe.runs.pipeline.dead_letters import FailedRow, Suspects
from raypipe.runs.pipeline.operators import NOTE, SKIPPED, Note, Outcome, StagedWork
from raypipe.runs.pipeline.tasks import OUTCOME, HandedBack, TableTask, Task, TaskResult, Verb
from raypipe.store import Store
from raypipe.store.parts import go_on, halt, halted, new_parts

DIED = (RayActorError, OutOfMemoryError)  # out of memory: Ray ended the worker, as its node had none left


class WorkerDied(RaypipeError):
    """Repeated death of a task's workers by the machine or all rows together: no single row explains it."""


class TrialWorker:
    """A process for trying rows alone. It opens its work once, then does each task under a time limit."""

    def __init__(self, limits: Timeouts, work: TableTask) -> None:
        self._limits, self._work, self._alarm = limits, work, Alarm()
        self._run_task: Any = None  # a `RunTask`; None: the work is not opened

    async def open(self) -> None:
        """Opens the work, before the time of rows counts. The first row that needs a model loads it."""
        if self._run_task is None:
            self._run_task = await self._work.open(self._work.worker.kit(None, worker_name()))

    async def do(self, task: Task) -> Any:
        await self.open()
        with self._alarm.limit(self._limits.task_timeout_s(task.rows)):
            return await self._run_task(task)


def row_by_row(work: TableTask, task: Task, pool: Pool, limits: Timeouts) -> TaskResult | HandedBack:
    """Retries a task whose workers died: each row alone, then together all rows that did not end their
    worker. Hands the task back if it has several rows and each ends its worker, or if the work hands a row
    back. Raises errors of workers, and WorkerDied if a worker dies while it opens the work or does rows
    together."""
    worker = ray.remote(TrialWorker).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_restarts=0)
    task = task.with_ids(Store.open(work.worker.store))
    lost: dict[str, FailedRow] = {}
    asked: dict[str, StageCounters] = {}
    actor = worker.remote(limits, work)
    try:
        for id in task.ids:
            try:
                ray.get(actor.open.remote())
            except DIED:  # the worker died between two rows, so not because of a row
                actor = worker.remote(limits, work)
                ray.get(actor.open.remote())
            tried = _tried(actor, Task(task.name, (id,), trial=True), limits)
            if isinstance(tried, Fault):
                lost[id] = FailedRow(tried, TRIES + 1)
                ray.kill(actor)
                actor = worker.remote(limits, work)
                continue
            for name, count in tried.counts.items():
                asked.setdefault(name, StageCounters()).calls.add(count.calls)
            if isinstance(tried, HandedBack):
                return replace(tried, counts=asked)
        if 1 < len(lost) == len(task.ids):
            why = f"each of the {len(lost)} rows of a task kills its worker by itself, so no row is blamed"
            return HandedBack(task.name, why, "replace", Suspects(), asked)
        done: TaskResult | HandedBack = ray.get(actor.do.remote(replace(task, failed=lost)))
        counts = summed(done.counts, asked)  # the trials' values count as computed, though cached now
        if isinstance(done, HandedBack):
            return replace(done, counts=counts)
        last = {name: replace(s, counts=summed(s.counts, asked)) for name, s in [*done.by.items()][-1:]}
        return replace(done, by={**done.by, **last})
    except RayTaskError as e:  # the worker's error, or Ray's own if that could not be sent
        raise (e.cause if isinstance(e.cause, Exception) else e) from e
    except DIED as e:
        died = f"its worker died {TRIES + 1} times, and no single row explains it"
        alone = f"{len(lost)} of its {len(task.ids)} rows kill a worker by themselves"
        mend = "Lower sources_per_task or questions_per_task, or give a worker more memory"
        raise WorkerDied(f"task {task.name}: {died} ({alone}). {mend}. Ray says: {e}") from e
    finally:
        ray.kill(actor)


def _tried(actor: Any, task: Task, limits: Timeouts) -> TaskResult | HandedBack | Fault:
    """Does one row alone. Returns its result, or a fault if the row's worker died or took too long."""
    start, limit_s = time.monotonic(), limits.task_timeout_s(1)
    try:
        done: TaskResult | HandedBack = ray.get(actor.do.remote(task), timeout=limit_s)
        return done
    except (GetTimeoutError, *DIED) as e:
        if isinstance(e, GetTimeoutError) or time.monotonic() - start >= limit_s:  # its own alarm came first
            most = f"expected at most {limits.row_timeout_s:g} s, it took more"
            return Fault("worker", "timeout", most, transient=False)
        dead = "expected a result, found its worker dead, three times"
        return Fault("worker", "crash", dead, transient=False)


LOOK_S, MOST_LOOK_S, LOOKS = 0.05, 0.5, 50
"""Least and most seconds between two reads of the records, for progress and caps. A pause is also LOOKS times
as long as the read, so reads take a fiftieth of the driver's time. With a tenth the driver of four fake GPUs
took 3.8 CPU seconds in place of 3.1 (bench/drills/streamed.py, 40 parts of 2 s)."""
STILL_S = 30.0
"""Least seconds without a record, on a cluster that lost nodes, before the graph is left. A head takes 10 to
20 s to declare a silent node dead. Ray then starts its tasks elsewhere by itself, if it can."""
END_S = 10.0  # seconds for a left graph to end its tasks


def run(
    verb: Verb,
    work: TableTask,
    tasks: Sequence[Task],
    pools: Callable[[], Pools],
    limits: Timeouts = LIMITS,
    say_stats: Callable[[str], None] = lambda stats: None,
) -> Iterator[Outcome]:
    """Does all tasks and yields their outcomes, in any order.

    A part whose process dies is tried TRIES times in all, then row by row. A broken process hands its part
    back and is replaced. Raises any error of an operator; stored parts remain stored. If the caller empties
    `tasks` and the work has completion records, no more tasks begin, and running tasks finish. Closing the
    generator ends running tasks. If a node is dead and no part finishes any more, another graph does the
    unfinished tasks with new `pools()`. `say_stats` gets the statistics of each graph that ran to its end."""
    left, worker = {task.name: task for task in tasks}, work.worker
    staged: StagedWork = work if isinstance(work, StagedWork) else Whole(work, verb)
    while left and tasks:
        graph = GraphRun(uuid.uuid4().hex, worker, limits, getattr(work, "records", None))
        running = _Running(graph, staged, list(left.values()), pools(), say_stats)
        with running:
            for outcome in running.outcomes(tasks):
                if left.pop(outcome.name, None) is not None:
                    yield outcome
        if not running.nodes_gone:
            break
        for outcome in running.recorded():  # parts that finished while the graph was left
            if left.pop(outcome.name, None) is not None:
                yield outcome
    if tasks:  # empty: the caller wants no more
        pool = pools()[list(staged.operators())[-1].pool]
        for task in left.values():
            yield row_by_row(work, task, pool, limits)


@dataclass
class _Running:
    """A running graph."""

    graph: GraphRun
    work: StagedWork
    tasks: Sequence[Task]
    pools: Pools
    say_stats: Callable[[str], None]
    _ended: threading.Event = field(default_factory=threading.Event)
    _seen: set[str] = field(default_factory=set)  # parts whose record was read
    _error: Exception | None = None
    _heard: float = 0.0  # time of the last read of notes

    def __enter__(self) -> None:
        self._nodes, self._last, self._slowest = _nodes(), time.monotonic(), 0.0
        if self.graph.records is not None:
            go_on(self._store, *self.graph.records)
        self._rows, self._sink = graph_of(self.graph, self.work, self.tasks, self.pools)
        self._thread = threading.Thread(target=self._write, name="graph", daemon=True)
        self._thread.start()

    def __exit__(self, *why: object) -> None:
        _internal_kv_del(notes_of(self.graph.name), del_by_prefix=True)
        LEFT.add(self.graph.name)
        if self._ended.wait(END_S):
            LEFT.discard(self.graph.name)
        # Ray Data frees the actors of a left graph with the last reference to them. These references are in
        # the frames of its exception, a cycle. Until then, another graph gets none of their GPUs.
        del self._rows
        gc.collect()

    @property
    def _store(self) -> Store:
        return Store.open(self.graph.worker.store)

    def _write(self) -> None:
        try:
            write(self._rows, self._sink, self.work, self.pools, len(self.tasks))
            self.say_stats(self._rows.stats())
        except GraphLeft:
            pass
        except Exception as e:
            self._error = e
        finally:
            self._ended.set()

    def outcomes(self, wanted: Sequence[Task]) -> Iterator[Outcome]:
        """Yields the outcomes of parts as they are recorded, and all outcomes again at the end. Once the
        caller empties `wanted`, no more parts begin, if the work has completion records."""
        halting, pause_s, backoff = False, LOOK_S, self.graph.worker.backoff()
        while not self._ended.wait(pause_s):
            start = time.monotonic()
            try:
                came = list(self.recorded())
            except Unavailable:  # workers retry as long before they give up
                if (wait_s := backoff.next_s()) is None:
                    raise
                pause_s = wait_s
                continue
            backoff.reset()
            if IN_HAND.listener is not None and time.monotonic() - self._heard >= NOTE_S:
                self._heard = time.monotonic()
                for part, units in notes(self.graph.name).items():  # progress of unfinished parts
                    if part not in self._seen:
                        IN_HAND.listener(part, units)
            pause_s = min(MOST_LOOK_S, max(LOOK_S, LOOKS * (time.monotonic() - start)))
            yield from came
            if not wanted and not halting:
                halting = True
                if self.graph.records is not None:
                    halt(self._store, *self.graph.records, Note(0, ended=SKIPPED).text())
            # Nodes are gone, and no part ended for twice as long as the slowest took.
            still_s = time.monotonic() - self._last
            if still_s > max(STILL_S, 2 * self._slowest) and self.nodes_gone:
                return
        if self._error is not None:
            raise self._error
        for outcome in map(OUTCOME.validate_json, self._sink.outcomes):
            if not isinstance(outcome, str):
                yield outcome
            elif outcome != SKIPPED:
                raise error_of(outcome)

    def recorded(self) -> Iterator[Outcome]:
        """Yields outcomes of parts recorded since the last call. Raises an error that ended the graph."""
        if self.graph.records is None:
            return
        mine = {task.name for task in self.tasks}
        for part, facts in new_parts(self._store, *self.graph.records, self._seen):
            if part not in mine:  # a part of an earlier attempt
                continue
            result = TaskResult.of(part, facts)
            self._last = time.monotonic()
            self._slowest = max([self._slowest, *(share.seconds for share in result.by.values())])
            yield result
        if (why := halted(self._store, *self.graph.records)) is not None:
            note = NOTE.validate_json(why)
            if note.back is not None:
                yield note.back
            elif note.ended != SKIPPED:
                raise error_of(note.ended)

    @property
    def nodes_gone(self) -> bool:
        """True if a node that was alive at the start is dead: unfinished rows are then not to blame."""
        return not self._nodes <= _nodes()


def _nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
