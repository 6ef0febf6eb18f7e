"""Operators: what one step of the work on a table does with the rows of a part, and a sink that stores them.

An operator is a frozen record that any process can be handed; `open` makes it ready once, then it takes block
after block. Work is some operators and a sink, in their order: on Ray each may have processes of its own
(`runs.cluster.graph`), `in_turn` does them one after the other in one process. Knows nothing of Ray.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa

from raypipe.core.calls import until_available
from raypipe.core.errors import Unavailable
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.blocks import Key, PartRows, facts_of, result_of
from raypipe.runs.pipeline.recipe_task import Opened, backoff_of, unable
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, Task, TaskResult, WorkerConfig
from raypipe.store import Store

T = TypeVar("T")
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


@dataclass(frozen=True, slots=True)
class _Made:
    """A block as an operator makes it, and its rows as they are counted."""

    ids: int
    faults: int
    block: PartRows


def step(
    operator: Operator,
    recipe: Recipe,
    opened: Opened[pa.Table],
    worker: WorkerConfig,
    take: Callable[[PartRows], None] = lambda block: None,
    keep: Callable[[PartRows, pa.Table], pa.Table] = lambda block, rows: rows,
) -> Operate:
    """The work of an operator over blocks. `take` gets a block before its rows are computed; `keep` stores
    what was made of them, again where the store is unavailable, and returns what goes on."""
    clock = opened.kit.spent

    async def do(witnessed: bool, task: Task, block: PartRows) -> _Made:
        start = clock()
        take(block)
        made, failed = await opened.computed(task, recipe, backoff_of(worker), witnessed)
        rows = pa.concat_tables(made, promote_options="default")
        if not task.trial:
            rows = await until_available(lambda: keep(block, rows), backoff_of(worker))
        took = clock() - start
        note = block.note.with_share(operator.pool, opened.take(), took, opened.kit.process)
        after = replace(block, note=note, rows=rows, failed=[*block.failed, *failed])
        return _Made(len(task.ids), len(failed), after)

    back = opened.handing_back(do)

    async def operate(block: PartRows) -> PartRows:
        if block.note.over:
            return block
        task = Task(block.part, block.ids, trial=block.note.trial, suspects=block.note.suspects)
        with clock.piece():
            done = await back(task, block)
        return block.handed_back(done) if isinstance(done, HandedBack) else done.block

    return operate


def storing(
    worker: WorkerConfig, pool: str, process: str, write: Callable[[PartRows, Mapping[str, Any]], None]
) -> Sink:
    """What stores a block and says what came of its part. `write` stores rows and faults under the facts of
    their completion record; again where the store is unavailable."""

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
    """What `make` opens of the store. Raises as `opened_store`."""
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
        task = await until_available(lambda: task.with_ids(store), backoff_of(work.worker))
        block = PartRows.of_task(task, work.key)
        for operate in steps:
            block = await operate(block)
        return await sink(block)

    return run_task
