"""Tables compacted: large ones by tasks, so that no row of them passes through the driver.

Lance says which neighbouring fragments become one. A task writes them again as a file that no version names
yet, and the driver puts all such files in the place of the old ones with one commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import lance
from lance.optimize import Compaction, CompactionTask, RewriteResult

from raypipe.models.kit import LocalKit
from raypipe.pipeline.merge_task import MERGED_HERE
from raypipe.pipeline.recipe_task import retried
from raypipe.pipeline.tasks import Runner, RunTask, Task, WorkerConfig, results_of
from raypipe.store import Store
from raypipe.store.errors import reaching
from raypipe.store.keep import COMPACTION, FRAGMENTS, compact, compact_here, tables
from raypipe.store.parts import drop_records, record_path


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Fragments of a table to fewer ones. The id of a task is Lance's own description of it."""

    worker: WorkerConfig
    table: str
    version: int
    run: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = Store.open(self.worker.store)
        return retried(self.worker, lambda task: self._rewrite(store, task))

    def _rewrite(self, store: Store, task: Task) -> tuple[int, int]:
        with reaching(store.table_uri(self.table)):
            dataset = store.dataset(self.table, self.version)
            rewritten = CompactionTask.from_json(task.ids[0]).execute(dataset)
        store.files.write(record_path(self.table, self.run, task.name), rewritten.json().encode())
        return 0, 0


def compact_all(
    store: Store, worker: WorkerConfig, runner: Runner, start: Callable[[], object],
    most: int = FRAGMENTS, here: int = MERGED_HERE,
) -> None:  # fmt: skip
    """Compacts the tables of more than `most` fragments: of up to `here` bytes in this process, others by
    tasks. `start` connects to where tasks run. Raises what a worker raises, and Unavailable."""

    def by_tasks(dataset: lance.LanceDataset, table: str) -> None:
        if sum(f.file_size_bytes for x in dataset.get_fragments() for f in x.metadata.files) <= here:
            compact_here(dataset, table)
            return
        if not (groups := Compaction.plan(dataset, COMPACTION).tasks):
            return
        start()
        work = CompactTask(worker, table, dataset.version, uuid.uuid4().hex)
        tasks = [Task(f"{i:06d}", (group.json(),)) for i, group in enumerate(groups)]
        names = [result.name for result in results_of(runner, "parse", work, tasks)]
        notes = [store.files.read(record_path(table, work.run, name)) for name in names]
        Compaction.commit(dataset, [RewriteResult.from_json(n.decode()) for n in notes if n], COMPACTION)
        drop_records(store, table, work.run)

    for table in tables(store):
        compact(store, table, most, by_tasks)
