"""Tables compacted: large ones by tasks, so that no row of them passes through the driver."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from raypipe.models.kit import LocalKit
from raypipe.pipeline.merge_task import MERGED_HERE
from raypipe.pipeline.recipe_task import retried
from raypipe.pipeline.tasks import Runner, RunTask, Task, WorkerConfig, results_of
from raypipe.store import Store
from raypipe.store.compaction import compact_here, groups, replace_groups, table_bytes, write_group
from raypipe.store.keep import FRAGMENTS, compact, tables
from raypipe.store.parts import drop_records, record_path


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Fragments of a table to fewer ones. The id of a task is a group of them."""

    worker: WorkerConfig
    table: str
    version: int
    run: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = Store.open(self.worker.store)
        return retried(self.worker, lambda task: self._rewrite(store, task))

    def _rewrite(self, store: Store, task: Task) -> tuple[int, int]:
        written = write_group(store, self.table, self.version, task.ids[0])
        store.files.write(record_path(self.table, self.run, task.name), written.encode())
        return 0, 0


def compact_all(
    store: Store, worker: WorkerConfig, runner: Runner, start: Callable[[], object],
    most: int = FRAGMENTS, here: int = MERGED_HERE,
) -> None:  # fmt: skip
    """Compacts the tables of more than `most` fragments: of up to `here` bytes in this process, others by
    tasks. `start` connects to where tasks run. Raises what a worker raises, and Unavailable."""

    def by_tasks(store: Store, table: str, version: int) -> None:
        if table_bytes(store, table, version) <= here:
            compact_here(store, table, version)
            return
        start()
        work = CompactTask(worker, table, version, uuid.uuid4().hex)
        tasks = [Task(f"{i:06d}", (some,)) for i, some in enumerate(groups(store, table, version))]
        done = [r.name for r in results_of(runner, "parse", work, tasks)]
        written = (store.files.read(record_path(table, work.run, name)) for name in done)
        replace_groups(store, table, version, [w.decode() for w in written if w])
        drop_records(store, table, work.run)

    for table in tables(store):
        compact(store, table, most, by_tasks)
