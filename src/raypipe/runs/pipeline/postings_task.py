"""The task that inverts passages: their words to postings. It calls no model and needs no recipe."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from raypipe.core.calls import until_available
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.blocks import Share, facts_of
from raypipe.runs.pipeline.dead_letters import faults_table
from raypipe.runs.pipeline.recipe_task import backoff_of, retried
from raypipe.runs.pipeline.tasks import RunTask, Task, WorkerConfig
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

    @property
    def records(self) -> tuple[str, str]:
        return self.table, self.run

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Calls no model: the kit only names the process. Raises Unavailable where the store stays so for all
        tries, and StoreError."""

        def opened() -> tuple[Store, Inverter]:
            store = Store.open(self.worker.store)
            return store, Inverter(store, self.texts, self.passages, self.analyzer)

        store, inverter = await until_available(opened, backoff_of(self.worker))
        process = kit.process if kit else ""
        return retried(self.worker, lambda task: self._invert(store, inverter, task, process), trials=True)

    def _invert(self, store: Store, inverter: Inverter, task: Task, process: str) -> tuple[int, int]:
        """Stores the words of a task's sources; how many rows of lengths, and how many sources failed."""
        start = time.perf_counter()
        left = [i for i in task.with_ids(store).ids if i not in task.failed]
        lengths, postings = inverter.rows(left, self.run, task.name)
        if task.trial:
            return 0, len(task.failed)
        failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
        write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
        write_part(store, self.postings, self.run, task.name, postings, {})
        share = Share({}, time.perf_counter() - start, process)
        facts = facts_of({"": share}, task.rows, lengths.num_rows, len(failed))
        write_part(store, self.table, self.run, task.name, lengths, facts)
        return int(lengths.num_rows), len(task.failed)
