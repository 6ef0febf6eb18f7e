"""Operators: what one step of the work on a table does with the rows of a part, and a sink that stores them.

An operator is a frozen record that any process can be handed; `open` makes it ready once, then it takes block
after block. Work is some operators and a sink, in their order: on Ray each may have processes of its own
(`runs.cluster.graph`), `in_turn` does them one after the other in one process. A batch that raises is cut
down to the row; trouble that is no row's fault hands the task back. Knows nothing of Ray, nor of which tasks
there are.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa

from raypipe.core.arrow import id_texts
from raypipe.core.calls import Backoff, until_available
from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.models.kit import LocalKit, compute_once
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.dead_letters import Compute, Failed, Probe, Suspects, Unproven, bisected
from raypipe.runs.pipeline.tasks import (
    TRIES,
    HandedBack,
    Key,
    PartRows,
    RunTask,
    Task,
    TaskResult,
    WorkerConfig,
    facts_of,
    result_of,
)
from raypipe.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """Work made ready in one process."""

    counts: dict[str, StageCounters]  # by stage; they grow while it computes
    compute: Compute[pa.Table]
    digest_of: Callable[[str, str], str]  # id of a row, step of its fault -> what names the work, in `faults`
    kit: LocalKit

    async def computed(
        self, task: Task, recipe: Recipe, backoff: Backoff, witnessed: bool
    ) -> tuple[pa.Table, list[Failed]]:
        """Returns what comes of the rows of a task, and those that failed."""
        probe = _unprobed if task.trial else self._probe(recipe)
        done, broken = await bisected(
            self.compute, task.ids, self.counts, probe, backoff, task.suspects, witnessed or task.trial
        )
        failed = [(id, fault, 1) for _, some in done for id, fault in some]
        failed += [(id, asdict(x.fault), x.attempts) for id, x in broken.items()]
        named = [(id, fault, n, self.digest_of(id, fault["step"])) for id, fault, n in failed]
        return pa.concat_tables([made for made, _ in done], promote_options="default"), named

    def take(self) -> dict[str, StageCounters]:
        """The counts since the last call."""
        return {name: count.take() for name, count in self.counts.items()}

    def back(self, task: Task, e: Unavailable, witnessed: bool) -> HandedBack:
        """A task that comes back through no fault of its rows. `witnessed`: others passed here."""
        counts = self.take()
        for count in counts.values():  # another worker counts the rows
            count.in_vain(StageCounters())
        if isinstance(e, Unproven):
            return HandedBack(task.name, str(e), "keep", Suspects(e.rows, witnessed), counts)
        return unable(task.name, e, Suspects(witnessed=witnessed), counts)

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
    """Returns how often, and after which waits, a worker tries what is unavailable."""
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
    place = {id: i for i, id in enumerate(id_texts(rows[column]))}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))


Operate: TypeAlias = Callable[[PartRows], Awaitable[PartRows]]
Outcome: TypeAlias = TaskResult | HandedBack
Sink: TypeAlias = Callable[[PartRows], Awaitable[Outcome]]


class Operator(Protocol):
    @property
    def name(self) -> str:
        """The verb that Ray's dashboard shows: parse, split, tokenize, embed, rank, rerank, generate."""
        ...

    @property
    def pool(self) -> Literal["parse", "embed", "answer"]:
        """The pool of the cluster file whose needs it has."""
        ...

    @property
    def in_hand(self) -> int:
        """Rows that its processes have in hand at a time, so that others that compute for it are kept busy;
        0: it computes itself, one block at a time in a process."""
        ...

    async def open(self, kit: LocalKit) -> Operate:
        """Returns what does one block at a time. Opened again for each further one that is in hand."""
        ...


@runtime_checkable
class StagedWork(Protocol):
    """The work on some tables in several operators."""

    @property
    def worker(self) -> WorkerConfig: ...

    @property
    def key(self) -> Key: ...

    def operators(self) -> Sequence[Operator]: ...

    async def open_sink(self, process: str) -> Sink: ...


def step(
    operator: Operator,
    recipe: Recipe,
    opened: Opened,
    worker: WorkerConfig,
    take: Callable[[PartRows], None] = lambda block: None,
    keep: Callable[[PartRows, pa.Table], pa.Table] = lambda block, rows: rows,
) -> Operate:
    """The work of an operator over blocks. `take` gets a block before its rows are computed; `keep` stores
    what was made of them, again where the store is unavailable, and returns what goes on."""
    clock, passed = opened.kit.spent, 0  # rows that passed in this process

    async def operate(block: PartRows) -> PartRows:
        nonlocal passed
        if block.note.over:
            return block
        task = Task(block.part, block.ids, trial=block.note.trial, suspects=block.note.suspects)
        with clock.piece():
            start = clock()
            try:
                take(block)
                rows, failed = await opened.computed(task, recipe, backoff_of(worker), passed > 0)
                if not task.trial:
                    made = rows
                    rows = await until_available(lambda: keep(block, made), backoff_of(worker))
            except Unavailable as e:
                return block.handed_back(opened.back(task, e, passed > 0))
            passed += len(task.ids) - len(failed)
            took = clock() - start
        note = block.note.with_share(operator.pool, opened.take(), took, opened.kit.process)
        return replace(block, note=note, rows=rows, failed=[*block.failed, *failed])

    return operate


def storing(
    worker: WorkerConfig, pool: str, process: str, write: Callable[[PartRows, Mapping[str, Any]], None]
) -> Sink:
    """Returns what stores a block and says what came of its part. `write` stores rows and faults under the
    facts of their completion record; again where the store is unavailable."""

    async def store(block: PartRows) -> Outcome:
        if block.note.back is not None:
            return block.note.back
        start = time.perf_counter()

        def stored() -> Mapping[str, Any]:
            note = block.note.with_share(pool, {}, time.perf_counter() - start, process)
            rows = 0 if note.trial else block.rows.num_rows
            facts = facts_of(note.by, note.ids, rows, len(block.failed))
            if not note.trial:
                write(block, facts)
            return facts

        try:
            facts = await until_available(stored, backoff_of(worker))
        except Unavailable as e:
            return block.vain(unable(block.part, e))
        return result_of(block.part, facts)

    return store


async def opened_store(worker: WorkerConfig) -> Store:
    """Raises Unavailable where the store stays so for all tries, and StoreError."""
    return await opened(worker, lambda: Store.open(worker.store))


async def opened(worker: WorkerConfig, make: Callable[[], T]) -> T:
    """Returns what `make` opens of the store. Raises as `opened_store`."""
    return await until_available(make, backoff_of(worker))


async def in_turn(
    work: StagedWork, kit: LocalKit | None, operators: Sequence[Operator] | None = None
) -> RunTask:
    """The operators of some work and its sink, one after the other in this process. `operators` None: its
    own."""
    kit = kit or work.worker.kit(None)
    store = await opened_store(work.worker)
    steps = [await operator.open(kit) for operator in operators or work.operators()]
    sink = await work.open_sink(kit.process)

    async def run_task(task: Task) -> Outcome:
        block = PartRows.of_task(await task_with_ids(store, task, work.worker), work.key)
        for operate in steps:
            block = await operate(block)
        return await sink(block)

    return run_task
