"""The task that inverts the words of some sources: segments of `postings`, and the rows of `lengths`.

Calls no model, so it needs no recipe: two tables of the corpus half in, two out.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.core.retry import Backoff, until_available
from raypipe.models.kit import LocalKit
from raypipe.pipeline.dead_letters import Suspects, faults_table
from raypipe.pipeline.tasks import TRIES, HandedBack, RunTask, Task, TaskResult, WorkerConfig
from raypipe.store import Store, write_part
from raypipe.store.inverter import Inverter

PART_SOURCES = 50_000  # of a part at most: a second of work, and all that a kill loses


@dataclass(frozen=True, slots=True)
class PostingsTask:
    """Words of sources to `postings` and, last, `lengths`: a part is done when both have it."""

    worker: WorkerConfig
    analyzer: str
    table: str  # of lengths
    postings: str  # table
    texts: str  # table they are read from
    passages: str  # table
    run: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Calls no model, so it needs no kit. Raises Unavailable where the store stays so for all tries, and
        StoreError."""

        async def opened() -> tuple[Store, Inverter]:
            store = Store.open(self.worker.store)
            return store, Inverter(store, self.texts, self.passages, self.analyzer)

        store, inverter = await until_available(opened, self._backoff())

        async def run_task(task: Task) -> TaskResult | HandedBack:
            start = time.perf_counter()

            async def done() -> int:
                left = [i for i in task.with_ids(store).ids if i not in task.failed]
                lengths, postings = inverter.rows(left, self.run, task.name)
                return 0 if task.trial else self._write(store, task, lengths, postings)

            try:
                rows = await until_available(done, self._backoff())
            except Unavailable as e:
                then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
                return HandedBack(task.name, str(e), then, Suspects(), {})
            return TaskResult(
                task.name, task.rows, rows, len(task.failed), seconds=time.perf_counter() - start
            )

        return run_task

    def _backoff(self) -> Backoff:
        return Backoff(TRIES, self.worker.wait_s)

    def _write(self, store: Store, task: Task, lengths: pa.Table, postings: pa.Table) -> int:
        failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
        write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
        write_part(store, self.postings, self.run, task.name, postings, {})
        facts: dict[str, Any] = {"counts": {}}
        write_part(store, self.table, self.run, task.name, lengths, facts)
        return int(lengths.num_rows)
