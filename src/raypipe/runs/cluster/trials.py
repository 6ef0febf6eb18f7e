"""A task of which processes died, row by row: how a row is found that takes its process with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from raypipe.core.errors import RaypipeError
from raypipe.core.records import Fault
from raypipe.recipes.executor import StageCounters
from raypipe.runs.cluster.file import Pool, Timeouts
from raypipe.runs.cluster.graph import TRIES
from raypipe.runs.cluster.process import Alarm, worker_name
from raypipe.runs.pipeline.dead_letters import FailedRow, Suspects
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, TableTask, Task, TaskResult
from raypipe.store import Store

DIED = (RayActorError, OutOfMemoryError)  # the second: ended by Ray, whose node had no memory left


class WorkerDied(RaypipeError):
    """A worker died of a task although each of its rows alone is fine: of the machine, or of their sum."""


class TrialWorker:
    """One process: opens its work once, then does task after task under a limit."""

    def __init__(self, limits: Timeouts, work: TableTask) -> None:
        self._limits, self._work, self._alarm = limits, work, Alarm()
        self._do: RunTask | None = None

    async def open(self) -> None:
        """Ready to work: from here on the time of rows counts. The first row that needs a model loads it."""
        if self._do is None:
            self._do = await self._work.open(self._work.worker.kit(None, worker_name()))

    async def do(self, task: Task) -> TaskResult | HandedBack:
        await self.open()
        assert self._do is not None
        with self._alarm.limit(self._limits.task_timeout_s(task.rows)):
            return await self._do(task)


def row_by_row(work: TableTask, task: Task, pool: Pool, limits: Timeouts) -> TaskResult | HandedBack:
    """A task of which workers died: each row alone, then all that can be done; it comes back where no row
    can. Raises what a worker raises, and WorkerDied."""
    worker = ray.remote(TrialWorker).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_restarts=0)
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
