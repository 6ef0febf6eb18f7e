"""One pool of workers for a whole run: processes start once and load each model once.

For machines where the pools of all verbs are equal and hold no GPU. A pool of Ray Data lives as long as one
dataset: parse, split, embed and answer would start four generations of processes, each with its imports and
models (measured on two cores with fakes: 15 of 25 CPU seconds of an eval). Elsewhere `pools.py` runs tasks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import ray
from ray.exceptions import RayTaskError

from raypipe.core.protocols import Model
from raypipe.runs.cluster.file import Pool, Timeouts
from raypipe.runs.cluster.worker import DIED, TRIES, Worker, cause_of, row_by_row
from raypipe.runs.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, WorkerConfig, with_worker

AHEAD = 8  # workers that start before it is known how many tasks there are


class Stretches:
    """The tasks of a table that are left, cut into one stretch of neighbours for each worker.

    Tables are cut in the order of the questions. So the worker that embedded a question's pages answers it,
    and still has the token vectors of its passages. Every second worker begins at the end of its stretch,
    and who has done its own takes what the one with the most left would do last: a neighbour of its own.

    >>> left = Stretches([Task(n) for n in "abcdefg"], 2)
    >>> [left.take(worker).name for worker in (0, 1, 1, 1, 1, 1, 0)]
    ['a', 'g', 'f', 'e', 'd', 'c', 'b']
    """

    def __init__(self, tasks: Sequence[Task], workers: int) -> None:
        cuts = [len(tasks) * n // workers for n in range(workers + 1)]
        self._left = [deque(tasks[a:b]) for a, b in pairwise(cuts)]
        for stretch in self._left[1::2]:
            stretch.reverse()

    def __bool__(self) -> bool:
        return any(self._left)

    def take(self, worker: int) -> Task:
        """The next task of this worker."""
        own = self._left[worker % len(self._left)]
        return own.popleft() if own else max(self._left, key=len).pop()


class WarmPool:
    """Workers that stay from table to table. They start with the first task, or before it with `begin`, and
    end with `close`."""

    def __init__(self, pool: Pool, limits: Timeouts) -> None:
        self._pool, self._limits = pool, limits
        self._workers: list[Any] = []  # handles of actors
        self._starting: dict[Any, Any] = {}  # reference to the answer of a worker that has started -> worker
        self._names = itertools.count()

    def begin(self, config: WorkerConfig, models: Sequence[Model]) -> None:
        """Starts workers ahead of the first task, which load these models meanwhile."""
        while len(self._workers) < min(self._pool.size, AHEAD):
            self._start()
        for worker in self._workers:
            worker.load.remote(replace(config, threads=self._threads), models)

    @property
    def _threads(self) -> int:
        return max(1, int(self._pool.cpus))

    def run(self, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        """Does every task and yields the results, in any order; a worker has one task at a time, and of each
        table those of the same stretch (`Stretches`).

        Tasks go to workers that have started: one that finds no room on a full cluster holds none up. A
        worker that hands a task back since it is broken is replaced. A task whose worker dies is tried
        again, TRIES times in all, then row by row, as by `pools.run_tasks`. Raises what a worker raises;
        tasks that were done before stay done. A list of tasks that the caller empties begins no more: those
        that run are finished. A generator that is closed ends them.
        """
        work = with_worker(work, threads=self._threads)
        name, sent = str(next(self._names)), [ray.put(work)]
        lost = list[Task]()
        running: dict[Any, tuple[Any, Task]] = {}  # reference to a result -> worker, task
        while len(self._workers) < min(self._pool.size, len(tasks)):
            self._start()
        left = Stretches(tasks, max(1, len(self._workers)))
        idle = [w for w in self._workers if w not in self._starting.values()]
        try:
            while (tasks and left) or running:
                while tasks and left and idle:
                    worker = idle.pop()
                    task = left.take(self._workers.index(worker))
                    running[worker.take.remote(name, sent, task)] = worker, task
                [done], _ = ray.wait([*running, *self._starting])
                if done in self._starting:
                    idle.append(self._starting.pop(done))
                    continue
                worker, task = running.pop(done)
                try:
                    result: TaskResult | HandedBack = ray.get(done)
                except RayTaskError as e:
                    raise cause_of(e) from e
                except DIED:  # of this task, TRIES times; Ray starts it once more
                    lost.append(task)
                    idle.append(worker)
                    continue
                if isinstance(result, HandedBack) and result.then == "replace":
                    self._end(worker)
                    self._start()
                else:
                    idle.append(worker)
                yield result
            for task in lost:
                if idle:
                    self._end(idle.pop())  # its room is wanted; the next table starts another
                yield row_by_row(work, task, self._pool, self._limits)
        finally:
            for worker, _ in running.values():
                self._end(worker)

    def close(self) -> None:
        while self._workers:
            self._end(self._workers[-1])

    def _start(self) -> None:
        # Restarts without end, as in a pool of Ray Data: how often a task is tried bounds them.
        options = {"num_cpus": self._pool.cpus, "max_restarts": -1, "max_task_retries": TRIES - 1}
        worker = ray.remote(Worker).options(**options).remote(self._limits)
        self._workers.append(worker)
        self._starting[worker.ready.remote()] = worker

    def _end(self, worker: Any) -> None:
        self._workers.remove(worker)
        self._starting = {answer: w for answer, w in self._starting.items() if w is not worker}
        ray.kill(worker)
