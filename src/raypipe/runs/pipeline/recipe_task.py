"""Stages of a recipe over the rows of a task: a batch that raises is cut down to the row.

Trouble that is no row's fault hands the task back. Knows nothing of Ray, nor of which tasks there are.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from raypipe.core.calls import Backoff, until_available
from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.models.kit import LocalKit
from raypipe.models.warm_up import compute_once
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.dead_letters import (
    Compute,
    Failed,
    Probe,
    Suspects,
    Unproven,
    bisected,
)
from raypipe.runs.pipeline.tasks import TRIES, HandedBack, RunTask, Task, TaskResult, WorkerConfig
from raypipe.store import Store

R = TypeVar("R")
P = ParamSpec("P")


class _Counted(Protocol):
    """What came of a task, or of a part of it."""

    @property
    def ids(self) -> int: ...
    @property
    def faults(self) -> int: ...


Done = TypeVar("Done", bound=_Counted)


@dataclass(frozen=True, slots=True)
class Opened(Generic[R]):
    """Work made ready in one process."""

    counts: dict[str, StageCounters]  # by stage; they grow while it computes
    compute: Compute[R]
    digest_of: Callable[[str, str], str]  # id of a row, step of its fault -> what names the work, in `faults`
    kit: LocalKit

    async def computed(
        self, task: Task, recipe: Recipe, backoff: Backoff, witnessed: bool
    ) -> tuple[list[R], list[Failed]]:
        """What comes of the rows of a task, in pieces, and those that failed."""
        left = tuple(i for i in task.ids if i not in task.failed)
        probe = _unprobed if task.trial else self._probe(recipe)
        done, broken = await bisected(
            self.compute, left, self.counts, probe, backoff, task.suspects, witnessed or task.trial
        )
        failed = [(id, fault, 1) for _, some in done for id, fault in some]
        failed += [(i, asdict(x.fault), x.attempts) for i, x in {**broken, **task.failed}.items()]
        named = [(id, fault, n, self.digest_of(id, fault["step"])) for id, fault, n in failed]
        return [made for made, _ in done], named

    def take(self) -> dict[str, StageCounters]:
        """The counts since the last call."""
        return {name: count.take() for name, count in self.counts.items()}

    def handing_back(
        self, do: Callable[Concatenate[bool, Task, P], Awaitable[Done]]
    ) -> Callable[Concatenate[Task, P], Coroutine[Any, Any, Done | HandedBack]]:
        """`do` (witnessed, task, ...) as a worker does it: what it cannot do through no fault of the rows
        comes back. Witnessed: other rows passed here before."""
        passed = 0

        async def run(task: Task, /, *more: P.args, **named: P.kwargs) -> Done | HandedBack:
            nonlocal passed
            try:
                done = await do(passed > 0, task, *more, **named)
            except Unavailable as e:
                counts = self.take()
                for count in counts.values():  # another worker counts the rows
                    count.in_vain(StageCounters())
                if isinstance(e, Unproven):
                    return HandedBack(task.name, str(e), "keep", Suspects(e.rows, passed > 0), counts)
                return unable(task.name, e, Suspects(witnessed=passed > 0), counts)
            passed += done.ids - done.faults
            return done

        return run

    def _probe(self, recipe: Recipe) -> Probe:
        """Sends one small request to each model of a stage, counted like any other, past the memo."""
        steps = {s.name: s.step for s in (*recipe.corpus, *recipe.question)}

        async def probe(stage: str) -> None:
            for model in asked_models(steps[stage]):
                calls = self.counts[stage].calls
                {"embedder": calls.vectors, "reranker": calls.scores, "generator": calls.replies}[
                    model.kind
                ].computed += 1
                try:
                    await compute_once(self.kit, model)
                except Exception as e:
                    raise WorkerBroken(f"model {model.name!r} computes nothing here any more: {e}") from e

        return probe


async def task_with_ids(store: Store, task: Task, worker: WorkerConfig) -> Task:
    """A task with its ids (`Task.with_ids`). Raises Unavailable where the store stays so for all tries."""
    return await until_available(lambda: task.with_ids(store), backoff_of(worker))


def backoff_of(worker: WorkerConfig) -> Backoff:
    """How often, and after which waits, a worker tries what is unavailable."""
    return Backoff(TRIES, worker.wait_s)


def retried(worker: WorkerConfig, do: Callable[[Task], tuple[int, int]], trials: bool = False) -> RunTask:
    """Does a task that calls no model, again where the store is unavailable. `do` returns rows and faults.
    `trials`: whether it can be tried row by row; of files whose workers died there is nothing smaller."""

    async def run_task(task: Task) -> TaskResult | HandedBack:
        start = time.perf_counter()
        if task.trial and not trials:
            return TaskResult(task.name, task.rows, 0, 0)
        try:
            rows, faults = await until_available(lambda: do(task), backoff_of(worker))
        except Unavailable as e:
            return unable(task.name, e)
        took = time.perf_counter() - start
        return TaskResult(task.name, task.rows, rows, faults, seconds=took)

    return run_task


def unable(
    part: str,
    e: Unavailable,
    suspects: Suspects | None = None,
    counts: Mapping[str, StageCounters] | None = None,
) -> HandedBack:
    """A task that comes back: what is broken is the worker, or the run is to stop."""
    then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
    return HandedBack(part, str(e), then, suspects or Suspects(), counts or {})


async def _unprobed(stage: str) -> None:
    """A row that is tried alone is judged with the others of its task."""


def in_order(rows: pa.Table, column: str, ids: tuple[str, ...]) -> pa.Table:
    """The rows in the order of the ids; ids without a row have none."""
    place = {id: i for i, id in enumerate(rows[column].to_pylist())}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))
