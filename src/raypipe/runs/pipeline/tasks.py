"""Work on a table, its tasks and their results as plain values, and the configuration of a worker.

A `TableTask` is the work on one table: a frozen record, which any process can receive. Its `open` loads
models and tables and returns a function that runs one `Task` (some rows of the work) after another. A task
ends in a `TaskResult`, or is `HandedBack` unfinished.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter

from raypipe.core.backoff import Backoff, until_available
from raypipe.core.digests import own_identity
from raypipe.core.errors import Unavailable
from raypipe.core.index import Index
from raypipe.core.progress import IN_HAND
from raypipe.core.protocols import Model
from raypipe.models.hosts import Backend, EndpointAddress, EngineLimits
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import StageCounters
from raypipe.runs.pipeline.counters import summed
from raypipe.runs.pipeline.dead_letters import FailedRow, Suspects
from raypipe.store import Store
from raypipe.store.parts import PlanRows, planned_ids

T = TypeVar("T")

Verb: TypeAlias = Literal["parse", "embed", "answer", "index"]
"""Work of a pool of workers, named as in a cluster file. `index`: both pools parse and embed, together."""


TRIES = 5  # tries of a call to an unavailable store or service: 15 s with the waits in between


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes of one pool. Each caches its own results in memory."""

    count: int = 1
    min_rows: int = 1  # rows of a small task: fewer fill no batch, or take longer to store than to compute

    def per_task(self, rows: int, most: int) -> int:
        """Returns the number of rows of a task, for `rows` missing rows and at most `most` per task.

        Each worker gets up to four tasks, so that all workers finish at about the same time. A task has at
        least `min_rows`, unless too few tasks for all workers would be left. A single worker takes the
        largest tasks.

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
    """Some rows of the work on one table, given to one worker."""

    name: str
    ids: tuple[str, ...] = ()  # of sources or questions; empty if `planned` locates them
    failed: Mapping[str, FailedRow] = field(default_factory=dict)  # id -> row that is not tried again
    trial: bool = False  # True: tests whether the rows can be computed; caches model replies, stores no rows
    suspects: Suspects | None = None  # rows that may be to blame for a hand-back; None: not handed back yet
    planned: PlanRows | None = None  # place of the ids in the run's plan, sent instead of `ids`

    @property
    def rows(self) -> int:
        return self.planned.count if self.planned is not None else len(self.ids)

    def with_ids(self, store: Store) -> Task:
        """Returns this task with its ids, which are read from the plan if the task has only their place."""
        if self.planned is None:
            return self
        return replace(self, ids=planned_ids(store, self.planned), planned=None)


@dataclass(frozen=True, slots=True)
class Share:
    """Work that one pool did for a task: its counts and its time."""

    counts: Mapping[str, StageCounters]  # by stage
    seconds: float  # wall time
    worker: str = ""  # node, process and GPUs of the worker; "": this process

    def parts(self) -> dict[str, float]:
        """Splits the seconds into `computing`, `loading` and `storing` (`counters.PARTS`)."""
        computing = sum(c.seconds for c in self.counts.values())
        loading = sum(c.loading for c in self.counts.values())
        storing = max(0.0, self.seconds - computing - loading)
        return {"computing": computing, "loading": loading, "storing": storing}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Counts of one finished task, stored in its completion record."""

    name: str
    ids: int  # rows of the task
    rows: int  # rows stored in the table
    faults: int  # ids that failed
    by: Mapping[str, Share] = field(default_factory=dict)  # pool -> its share, in order of work

    @property
    def counts(self) -> dict[str, StageCounters]:
        return summed(*(share.counts for share in self.by.values()))

    def facts(self) -> dict[str, Any]:
        """Returns the counts as the plain values of a completion record; `of` reads them."""
        facts: dict[str, Any] = _RESULT.dump_python(self)
        return facts

    @classmethod
    def of(cls, part: str, facts: Mapping[str, Any]) -> TaskResult:
        return _RESULT.validate_python({**facts, "name": part})


_RESULT = TypeAdapter(TaskResult)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """A task that its worker returns unfinished, because its rows are not proven to be the cause."""

    name: str
    reason: str
    then: Literal["keep", "replace", "stop"]  # keep or replace the worker; stop the run: a service is down
    suspects: Suspects  # rows that may be to blame, for the next worker
    counts: Mapping[str, StageCounters]  # cost of the attempt, by stage


RunTask: TypeAlias = Callable[[Task], Coroutine[Any, Any, TaskResult | HandedBack]]


class TableTask(Protocol):
    """Work on one table, as plain values. Implementations are frozen dataclasses."""

    @property
    def worker(self) -> WorkerConfig: ...

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Returns the function that runs one task in this process. `kit` None: the work makes a kit."""
        ...


Runner: TypeAlias = Callable[[Verb, TableTask, Sequence[Task]], Iterator[TaskResult | HandedBack]]
"""Runs tasks in the pool of the verb and yields the results, in any order. If the caller empties its list of
tasks, no more tasks begin, and the running ones finish."""


def inline(verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
    """Runs one task after another in this process. Opens the work again if a task asks for a new worker."""
    do = None
    with asyncio.Runner() as loop:
        for task in tasks:  # ends if the caller empties the list
            if do is None:
                do = loop.run(work.open())
            with IN_HAND.of(task.name):
                result = loop.run(do(task))
            if isinstance(result, HandedBack) and result.then == "replace":
                do = None
            yield result


def results_of(runner: Runner, verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult]:
    """Runs tasks once and yields their results. Raises Unavailable if a task is handed back."""
    results = runner(verb, work, list(tasks))
    try:
        for result in results:
            if isinstance(result, HandedBack):
                raise Unavailable(result.reason)
            yield result
    finally:
        getattr(results, "close", lambda: None)()


def with_worker(work: TableTask, **changes: Any) -> TableTask:
    """Returns the work with some fields of its worker's configuration changed."""
    changed: TableTask = replace(cast(Any, work), worker=replace(work.worker, **changes))
    return changed


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of a worker process: store, device, engines, endpoints and limits. Part of no digest."""

    store: str  # URI
    backend: Backend
    device: str
    threads: int  # threads of a model on a CPU
    # Model identity -> names of engine actors in Ray; None: this process starts its own engine.
    engines: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    endpoints: Mapping[str, EndpointAddress] = field(default_factory=dict)  # by name in models.yaml
    engine_limits: EngineLimits = field(default_factory=EngineLimits)  # limits of one engine
    question_timeout_s: float | None = None  # limit of a question from the start of its task; None: no limit
    wait_s: float = 1.0  # wait before the second try of an unavailable service, doubled for each further try
    further_engines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # engines that may leave

    async def tried(self, make: Callable[[], Awaitable[T] | T]) -> T:
        """Calls `make` and returns its value. Tries again while a store or service is unavailable, at most
        TRIES times in all. Then raises Unavailable."""
        return await until_available(make, self.backoff())

    def backoff(self) -> Backoff:
        return Backoff(TRIES, self.wait_s)

    async def open_store(self) -> Store:
        """Opens the store. Raises Unavailable if all tries fail, and StoreError."""
        return await self.tried(lambda: Store.open(self.store))

    def at_once(self, model: Model) -> int:
        """Returns the number of chats that the servers or engines of a generator take at a time. A batch API
        counts as 1: it takes the chats as one file, and a cap can stop the run between two files."""
        if (at := self.endpoints.get(model.path)) is not None:
            return 1 if at.batch else at.concurrency * len(at.urls)
        identity = own_identity(model)
        names = [*(self.engines or {}).get(identity, ()), *self.further_engines.get(identity, ())]
        return max(1, self.engine_limits.max_num_seqs * len(names))

    def kit(self, index: Index | None, process: str = "") -> LocalKit:
        """Makes the kit (access to models and index) of a process. Reports name the process `process`."""
        return LocalKit(
            index,
            self.backend,
            self.device,
            self.threads,
            engines=self.engines,
            joining=self.further_engines,
            endpoints=self.endpoints,
            engine_limits=self.engine_limits,
            process=process,
        )


OUTCOME: TypeAdapter[TaskResult | HandedBack | str] = TypeAdapter(TaskResult | HandedBack | str)
"""Outcome of a part. A string is the reason why operators ended the part early (`operators.Note.ended`)."""
