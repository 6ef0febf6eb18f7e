"""Tasks as plain values: some rows of the work on one table, what came of them, and what a worker is told.

A `TableTask` is a frozen record that any process can be handed; `open` makes it ready once, then it runs task
after task. Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter

from raypipe.core.calls import Backoff, until_available
from raypipe.core.digests import own_identity
from raypipe.core.errors import Unavailable
from raypipe.core.index import Index
from raypipe.core.progress import IN_HAND
from raypipe.core.protocols import Model
from raypipe.models.hosts import Backend, EndpointAddress, EngineLimits
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import StageCounters
from raypipe.runs.pipeline.dead_letters import FailedRow, Suspects
from raypipe.store import Store
from raypipe.store.parts import PlanRows, planned_ids

T = TypeVar("T")

Verb: TypeAlias = Literal["parse", "embed", "answer", "index"]
"""What a pool of workers does; the names of the pools in a cluster file. `index`: those of parse and embed at
the same time."""


TRIES = 5  # of what a store or service refuses, in one task: 15 s with the waits between them


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes of one pool, each with its own memory of what it computed."""

    count: int = 1
    min_rows: int = 1  # of a task; one of fewer fills no batch, or takes longer to store than to compute

    def per_task(self, rows: int, most: int) -> int:
        """Returns how many of the missing rows make a task: at most `most`, and few enough for two to four
        tasks a worker, so that all of them end at about the same time. But not fewer than `min_rows`, as
        long as there is one task for each worker. One worker shares with no other and takes the largest
        tasks.

        >>> [Workers(n).per_task(10, 100) for n in (1, 2, 8)]
        [100, 2, 1]
        >>> Workers(2).per_task(10_000, 100), Workers(2, min_rows=16).per_task(73, 100)
        (100, 16)
        >>> Workers(8, min_rows=32).per_task(40, 1000)
        5
        """
        if self.count == 1:
            return most
        whole = math.ceil(rows / self.count)
        return min(most, max(math.ceil(rows / (4 * self.count)), min(self.min_rows, whole)))


@dataclass(frozen=True, slots=True)
class Task:
    """Some rows of the work on one table."""

    name: str
    ids: tuple[str, ...] = ()  # of sources, or of questions; none where `planned` says where they are
    failed: Mapping[str, FailedRow] = field(default_factory=dict)  # id -> why it is not tried any more
    trial: bool = False  # True: only to see whether it can be done; nothing is stored but what models said
    suspects: Suspects | None = None  # what a worker knows that could not do it; None: no worker had it
    planned: PlanRows | None = None  # where the plan of the run has its ids: the driver hands on no others

    @property
    def rows(self) -> int:
        return self.planned.count if self.planned is not None else len(self.ids)

    def with_ids(self, store: Store) -> Task:
        """The same task with its ids, read from the plan."""
        if self.planned is None:
            return self
        return replace(self, ids=planned_ids(store, self.planned), planned=None)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one pool in a task."""

    counts: Mapping[str, StageCounters]  # by stage
    seconds: float
    worker: str = ""  # node, process and GPUs; "": this process

    def parts(self) -> dict[str, float]:
        """These seconds by part of the run (`counters.PARTS`)."""
        computing = sum(c.seconds for c in self.counts.values())
        loading = sum(c.loading for c in self.counts.values())
        storing = max(0.0, self.seconds - computing - loading)
        return {"computing": computing, "loading": loading, "storing": storing}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Counts of one finished task. Its completion record has them."""

    name: str
    ids: int  # rows of the task
    rows: int  # rows stored in the table
    faults: int  # ids that failed
    by: Mapping[str, Share] = field(default_factory=dict)  # pool -> what its workers did, the last one last

    @property
    def counts(self) -> dict[str, StageCounters]:
        return summed(*(share.counts for share in self.by.values()))

    def facts(self) -> dict[str, Any]:
        """Returns what a completion record says; `of` reads it."""
        facts: dict[str, Any] = _RESULT.dump_python(self)
        return facts

    @classmethod
    def of(cls, part: str, facts: Mapping[str, Any]) -> TaskResult:
        return _RESULT.validate_python({**facts, "name": part})


_RESULT = TypeAdapter(TaskResult)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """A task that a worker could not do, through no proven fault of its rows."""

    name: str
    reason: str
    then: Literal["keep", "replace", "stop"]  # the worker, the worker, the run: a store or service is down
    suspects: Suspects
    counts: Mapping[str, StageCounters]  # what the attempt cost, by stage


RunTask: TypeAlias = Callable[[Task], Coroutine[Any, Any, TaskResult | HandedBack]]


class TableTask(Protocol):
    """The work on one table, as plain values: a frozen dataclass."""

    @property
    def worker(self) -> WorkerConfig: ...

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """`kit`: that of the process, made by the worker's configuration; None: the work has its own."""
        ...


Runner: TypeAlias = Callable[[Verb, TableTask, Sequence[Task]], Iterator[TaskResult | HandedBack]]
"""Runs tasks somewhere and yields the results, in any order. The verb says which pool it is for. Once the
caller has emptied its list of tasks, no more begin, and those that run come to their end."""


def inline(verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
    """Does one task after the other in this process. What was opened is opened again once it is broken."""
    do = None
    with asyncio.Runner() as loop:
        for task in tasks:  # none more once the caller has emptied it
            if do is None:
                do = loop.run(work.open())
            with IN_HAND.of(task.name):
                result = loop.run(do(task))
            if isinstance(result, HandedBack) and result.then == "replace":
                do = None
            yield result


def results_of(runner: Runner, verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult]:
    """The results of tasks that do not belong to a run. Raises Unavailable where one comes back."""
    results = runner(verb, work, list(tasks))
    try:
        for result in results:
            if isinstance(result, HandedBack):
                raise Unavailable(result.reason)
            yield result
    finally:
        getattr(results, "close", lambda: None)()


def with_worker(work: TableTask, **changes: Any) -> TableTask:
    """The same work with some fields of its worker changed."""
    changed: TableTask = replace(cast(Any, work), worker=replace(work.worker, **changes))
    return changed


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of a worker process: everything that decides speed and no result."""

    store: str  # URI
    backend: Backend
    device: str
    threads: int  # of a model on a CPU
    # Model identity -> names in Ray; None: this process starts an engine of its own.
    engines: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    endpoints: Mapping[str, EndpointAddress] = field(default_factory=dict)  # by the names of models.yaml
    engine_limits: EngineLimits = field(default_factory=EngineLimits)  # of an engine that this process starts
    question_timeout_s: float | None = None  # for each question, from the start of its task; None: none
    wait_s: float = 1.0  # before the second try of what is unavailable, doubling (`TRIES` in all)
    passing_engines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # those that come and go

    async def tried(self, make: Callable[[], Awaitable[T] | T]) -> T:
        """Returns what `make` does, again where something is unavailable. Raises Unavailable where it stays
        so for all tries."""
        return await until_available(make, self.backoff())

    def backoff(self) -> Backoff:
        return Backoff(TRIES, self.wait_s)

    async def open_store(self) -> Store:
        """Raises as `tried`, and StoreError."""
        return await self.tried(lambda: Store.open(self.store))

    def at_once(self, model: Model) -> int:
        """Counts the chats that a generator takes at a time. A batch API takes them as one file, and a cap
        stops between two of these."""
        if (at := self.endpoints.get(model.path)) is not None:
            return 1 if at.batch else at.concurrency * len(at.urls)
        identity = own_identity(model)
        names = [*(self.engines or {}).get(identity, ()), *self.passing_engines.get(identity, ())]
        return max(1, self.engine_limits.max_num_seqs * len(names))

    def kit(self, index: Index | None, process: str = "") -> LocalKit:
        """The kit of a process, which `process` names."""
        return LocalKit(
            index,
            self.backend,
            self.device,
            self.threads,
            engines=self.engines,
            passing=self.passing_engines,
            endpoints=self.endpoints,
            engine_limits=self.engine_limits,
            process=process,
        )


def summed(*counted: Mapping[str, StageCounters]) -> dict[str, StageCounters]:
    """Counts by stage, added up."""
    out: dict[str, StageCounters] = {}
    for counts in counted:
        for name, count in counts.items():
            out.setdefault(name, StageCounters()).add(count)
    return out


OUTCOME: TypeAdapter[TaskResult | HandedBack | str] = TypeAdapter(TaskResult | HandedBack | str)
"""Outcome of a part; a text says why it did not come to its end (`Note.ended`)."""
