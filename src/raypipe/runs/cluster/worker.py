"""The process that does tasks under a limit of time, and how a row is found that takes its process with it.

A worker opens the work on a table once, then does task after task of it. Which worker gets which task is the
matter of `pools.py` (Ray Data) and `warm_pool.py` (one pool for a whole run).
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from raypipe.core.errors import RaypipeError
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit
from raypipe.models.warm_up import warm_up
from raypipe.recipes.executor import StageCounters
from raypipe.runs.cluster.file import Pool, Timeouts
from raypipe.runs.pipeline.dead_letters import FailedRow, Suspects
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, TableTask, Task, TaskResult, WorkerConfig
from raypipe.store import Store


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


DIED = (RayActorError, OutOfMemoryError)  # the second: ended by Ray, whose node had no memory left
TRIES = 2  # of a task whose worker dies: Ray's own default is without end. A row alone has one more


class WorkerDied(RaypipeError):
    """A worker died of a task although each of its rows alone is fine: of the machine, or of their sum."""


def worker_name() -> str:
    """Says which process this is: its node, and its GPUs where it has some."""
    context = ray.get_runtime_context()
    gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
    node = f"node {context.get_node_id()[:8]}"  # several may stand on one host
    return f"{node} gpu {gpus}" if gpus else f"{node} process {os.getpid()}"


class Worker:
    """One process: opens its work once, then does task after task under a limit.

    `take` may change the work; the models that the process has loaded stay.
    """

    def __init__(self, limits: Timeouts, work: TableTask | None = None) -> None:
        self._limits, self._work = limits, work
        self._alarm = Alarm()
        self._name_of_work = ""
        self._do: RunTask | None = None
        self._kit: tuple[WorkerConfig, LocalKit] | None = None
        self._name = worker_name()

    async def take(self, name: str, work: list[Any], task: Task) -> TaskResult | HandedBack:
        """A task of the work that bears this name. `work` holds the reference to it, which is fetched if it
        is another than the last."""
        if name != self._name_of_work:
            self._work, self._do = await work[0], None
            self._name_of_work = name
        return await self.do(task)

    async def ready(self) -> None:
        """Answers when this process has started."""

    async def load(self, config: WorkerConfig, models: Sequence[Model]) -> None:
        """Loads models before a row needs them. One that cannot be loaded is left to the task that asks it
        first, which says why."""
        with suppress(Exception):
            await warm_up(await self._kit_for(config), models)

    async def do(self, task: Task) -> TaskResult | HandedBack:
        await self.open()
        assert self._do is not None
        with self._alarm.limit(self._limits.task_timeout_s(task.rows)):
            result = await self._do(task)
        return result if isinstance(result, HandedBack) else replace(result, worker_name=self._name)

    async def open(self) -> None:
        """Ready to work: from here on the time of rows counts. The first row that needs a model loads it."""
        if self._do is None:
            assert self._work is not None
            self._do = await self._work.open(await self._kit_for(self._work.worker))

    async def _kit_for(self, config: WorkerConfig) -> LocalKit:
        if self._kit is None or self._kit[0] != config:
            if self._kit is not None:
                await self._kit[1].close()
            self._kit = (config, config.kit(None))
        return self._kit[1]


def row_by_row(work: TableTask, task: Task, pool: Pool, limits: Timeouts) -> TaskResult | HandedBack:
    """A task of which workers died: each row alone, then all that can be done; it comes back where no row
    can. Raises what a worker raises, and WorkerDied."""
    worker = ray.remote(Worker).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_restarts=0)
    task = task.with_ids(Store.open(work.worker.store))
    lost: dict[str, FailedRow] = {}
    asked: dict[str, StageCounters] = {}
    actor = worker.remote(limits, work)
    try:
        for id in task.ids:
            try:
                ray.get(actor.open.remote())
            except DIED:  # it died between two rows: of something else
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
            why = f"each of the {len(lost)} rows of a task ends its worker alone, so no row is blamed"
            return HandedBack(task.name, why, "replace", Suspects(), asked)
        done: TaskResult | HandedBack = ray.get(actor.do.remote(replace(task, failed=lost)))
        for name, count in done.counts.items():  # what the trials computed is cached now, and was computed
            count.calls.add(asked.get(name, StageCounters()).calls)
        return done
    except RayTaskError as e:
        raise cause_of(e) from e
    except DIED as e:
        raise WorkerDied(
            f"task {task.name}: its worker died {TRIES + 1} times, and not of one of its {len(task.ids)} "
            f"rows alone ({len(lost)} are lost). Make sources_per_task or questions_per_task smaller, or "
            f"give a worker more memory. Ray says: {e}"
        ) from e
    finally:
        ray.kill(actor)


def cause_of(error: RayError) -> Exception:
    """What a worker raised; Ray's own error where that could not be sent."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def _tried(actor: Any, task: Task, limits: Timeouts) -> TaskResult | HandedBack | Fault:
    """The result of one row alone, or why it failed: its worker died of it, or it takes too long."""
    start = time.monotonic()
    late = Fault(
        "worker", "timeout", f"expected at most {limits.row_timeout_s:g} s, it took more", transient=False
    )
    try:
        done: TaskResult | HandedBack = ray.get(actor.do.remote(task), timeout=limits.task_timeout_s(1))
    except GetTimeoutError:
        return late
    except DIED:
        if time.monotonic() - start >= limits.task_timeout_s(1):  # its own alarm was faster
            return late
        return Fault(
            "worker", "crash", "expected a result, found its worker dead, three times", transient=False
        )
    return done
