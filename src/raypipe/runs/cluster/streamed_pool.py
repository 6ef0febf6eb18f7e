"""Parsing and embedding at the same time: workers with CPUs prepare tasks, workers with GPUs embed them.

For clusters whose embedders have GPUs, which would wait while all pages are parsed first. Token arrays go
through Ray's object store, a bounded number of bytes at a time; texts, passages and vectors are stored by the
worker that made them, and the driver commits as ever. Plain actors, not a graph of Ray Data: a bound in
bytes, tasks that a worker hands back, and nodes that go for good are the driver's to decide
(docs/scale.md has both, measured). What goes where is in `stream_schedule.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from raypipe.runs.cluster.file import Pool, Timeouts
from raypipe.runs.cluster.stream_schedule import DEPTH, Assignment, Part, StreamSchedule
from raypipe.runs.cluster.worker import DIED, TRIES, Alarm, WorkerDied, cause_of, row_by_row, worker_name
from raypipe.runs.pipeline.tasks import HandedBack, Task, TaskResult, with_worker
from raypipe.runs.pipeline.whole_corpus_task import Prepared, WholeCorpusTask

STORE_SHARE = 0.25
"""Of the nodes' object stores, for blocks between the two parts: one that is embedded on another node is
there twice, and half of a store is what Ray Data takes at most, too."""

BORN_DEAD = 3  # workers in a row, for each that there are to be, that may die before they are ready


def most_bytes() -> int:
    """What may be between the two parts on the joined cluster."""
    return int(STORE_SHARE * ray.cluster_resources().get("object_store_memory", 0.0))


class StreamWorker:
    """One process that does one of the two parts."""

    def __init__(self, part: Part, work: WholeCorpusTask, limits: Timeouts) -> None:
        self._part, self._work, self._limits = part, work, limits
        self._alarm, self._name = Alarm(), worker_name()
        self._free: list[Any] = []  # the part, opened once for each task at a time
        self._rows = 0  # of the tasks in hand

    async def ready(self) -> None:
        """Answers when this process can work."""
        kit = self._work.worker.kit(None)
        for _ in range(DEPTH[self._part]):
            prepares = self._part == "prepare"
            self._free.append(
                await (self._work.open_prepare(kit) if prepares else self._work.open_embed(kit))
            )

    async def prepare(self, task: Task) -> tuple[int | HandedBack, Prepared | None]:
        """The bytes of what was prepared, or the task handed back; and what was prepared."""
        done: Prepared | HandedBack = await self._do(task)
        if isinstance(done, HandedBack):
            return done, None
        return done.nbytes, replace(done, worker_name=self._name)

    async def embed(self, task: Task, prepared: Prepared) -> TaskResult | HandedBack:
        done: TaskResult | HandedBack = await self._do(task, prepared)
        return done if isinstance(done, HandedBack) else replace(done, worker_name=self._name)

    async def _do(self, task: Task, *more: Prepared) -> Any:
        self._rows += task.rows
        do = self._free.pop()
        try:
            with self._alarm.limit(self._limits.task_timeout_s(self._rows)):  # it may wait for the others
                return await do(task, *more)
        finally:
            self._free.append(do)
            self._rows -= task.rows


@dataclass(frozen=True, slots=True)
class StreamedPools:
    prepare: Pool
    embed: Pool
    most_bytes: Callable[[], int]  # asked whenever a worker joins: with its node the stores grow
    limits: Timeouts

    def run(self, work: WholeCorpusTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        """Does every task and yields the results, in any order.

        A worker that dies is replaced, and its tasks go to the others; a task whose workers die is tried
        TRIES times in all, then row by row. Workers that wait for room get it when a node joins. Raises
        what a worker raises, and WorkerDied; tasks that were done before stay done. A generator that is
        closed, or a list of tasks that the caller empties, ends all workers.
        """
        run = _StreamedRun(self, work, tasks)
        try:
            for result in run.results():
                yield result
                if not tasks:
                    return
        finally:
            run.close()
        for task in run.failed:
            yield row_by_row(with_worker(work, threads=_threads(self.embed)), task, self.embed, self.limits)


def _threads(pool: Pool) -> int:
    return max(1, int(pool.cpus))


class _StreamedRun:
    def __init__(self, pools: StreamedPools, work: WholeCorpusTask, tasks: Sequence[Task]) -> None:
        self._pools = pools
        self._schedule: StreamSchedule[int] = StreamSchedule(tasks, pools.most_bytes(), TRIES)
        self._pool_of: dict[Part, Pool] = {"embed": pools.embed, "prepare": pools.prepare}
        self._work = {
            part: ray.put(with_worker(work, threads=_threads(pool))) for part, pool in self._pool_of.items()
        }
        self._numbers = itertools.count()
        self._workers: dict[int, tuple[Part, Any]] = {}  # number -> part, handle of the actor
        self._starting: dict[Any, int] = {}  # reference to the answer of a worker that has started -> number
        self._running: dict[Any, tuple[Assignment[int], Any]] = {}  # reference to a result -> what, block
        self._born_dead = 0
        for part, pool in self._pool_of.items():  # those with GPUs first: the others leave them room
            for _ in range(min(pool.size, len(tasks))):
                self._start(part)

    @property
    def failed(self) -> list[Task]:
        return self._schedule.failed

    def results(self) -> Iterator[TaskResult | HandedBack]:
        while not self._schedule.done:
            for assigned in self._schedule.next():
                self._send(assigned)
            [ref], _ = ray.wait([*self._running, *self._starting])
            if ref in self._starting:
                self._joined(ref)
            elif (result := self._result(ref)) is not None:
                yield result

    def close(self) -> None:
        for number in list(self._workers):
            self._end(number)

    def _start(self, part: Part) -> None:
        pool, number = self._pool_of[part], next(self._numbers)
        options: dict[str, Any] = {"num_cpus": pool.cpus, "max_restarts": 0, "max_task_retries": 0}
        if part == "embed":
            options["num_gpus"] = pool.gpus
        else:  # the tokenizers' threads are as many as the machine has cores, in each process
            options["runtime_env"] = {"env_vars": {"RAYON_NUM_THREADS": str(_threads(pool))}}
        worker = (
            ray.remote(StreamWorker).options(**options).remote(part, self._work[part], self._pools.limits)
        )
        self._workers[number] = part, worker
        self._starting[worker.ready.remote()] = number

    def _joined(self, ref: Any) -> None:
        number = self._starting.pop(ref)
        part, _ = self._workers[number]
        try:
            ray.get(ref)
        except RayTaskError as e:
            raise cause_of(e) from e
        except DIED as e:
            self._born_dead += 1
            if self._born_dead > BORN_DEAD * len(self._workers):
                raise WorkerDied(
                    f"{self._born_dead} workers one after the other died before they were ready, the last "
                    f"to {part}. Look at the memory of their nodes. Ray says: {e}"
                ) from e
            del self._workers[number]
            self._start(part)
            return
        self._born_dead = 0
        self._schedule.joins(number, part)
        self._schedule.most_bytes = self._pools.most_bytes()

    def _send(self, assigned: Assignment[int]) -> None:
        _, worker = self._workers[assigned.worker]
        if assigned.block is None:
            ref, block = worker.prepare.options(num_returns=2).remote(assigned.task)
        else:
            ref, block = worker.embed.remote(assigned.task, assigned.block.handle), None
        self._running[ref] = assigned, block

    def _result(self, ref: Any) -> TaskResult | HandedBack | None:
        """What came of a task; None where it is not through with both parts, or will be tried again."""
        assigned, block = self._running.pop(ref)
        number, task = assigned.worker, assigned.task
        try:
            done: int | TaskResult | HandedBack = ray.get(ref)
        except DIED:
            self._died(number)
            return None
        except (ObjectLostError, RayTaskError) as e:
            if not isinstance(getattr(e, "cause", e), ObjectLostError):
                raise cause_of(e) from e
            self._schedule.block_lost(number, task)
            return None
        if isinstance(done, int):
            self._schedule.prepared(number, task, done, block)
            return None
        self._schedule.finished(number, task)
        if isinstance(done, HandedBack) and done.then == "replace":
            self._schedule.retire(number)
            self._start(self._workers[number][0])
        if self._schedule.is_empty(number):
            self._schedule.dies(number)
            self._end(number)
        return done

    def _died(self, number: int) -> None:
        """A worker is gone: each of its tasks says so, the first one counts."""
        if number in self._workers:
            part, _ = self._workers[number]
            replaced = self._schedule.is_retired(number)
            self._schedule.dies(number)
            self._end(number)
            if not replaced:
                self._start(part)

    def _end(self, number: int) -> None:
        _, worker = self._workers.pop(number)
        self._starting = {ref: n for ref, n in self._starting.items() if n != number}
        self._running = {ref: (a, b) for ref, (a, b) in self._running.items() if a.worker != number}
        ray.kill(worker)
