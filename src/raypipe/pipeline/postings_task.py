"""The task that inverts the words of some sources: segments of `postings`, and the rows of `lengths`.

Calls no model, so it needs no recipe: two tables of the corpus half in, two out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from raypipe.core.retry import until_available
from raypipe.models.kit import LocalKit
from raypipe.pipeline.dead_letters import faults_table
from raypipe.pipeline.recipe_task import backoff_of, facts_of, retried
from raypipe.pipeline.tasks import RunTask, Task, WorkerConfig
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

        def opened() -> tuple[Store, Inverter]:
            store = Store.open(self.worker.store)
            return store, Inverter(store, self.texts, self.passages, self.analyzer)

        store, inverter = await until_available(opened, backoff_of(self.worker))
        return retried(self.worker, lambda task: self._invert(store, inverter, task), trials=True)

    def _invert(self, store: Store, inverter: Inverter, task: Task) -> tuple[int, int]:
        """Stores the words of a task's sources; how many rows of lengths, and how many sources failed."""
        left = [i for i in task.with_ids(store).ids if i not in task.failed]
        lengths, postings = inverter.rows(left, self.run, task.name)
        if task.trial:
            return 0, len(task.failed)
        failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
        write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
        write_part(store, self.postings, self.run, task.name, postings, {})
        write_part(store, self.table, self.run, task.name, lengths, facts_of({}))
        return int(lengths.num_rows), len(task.failed)
