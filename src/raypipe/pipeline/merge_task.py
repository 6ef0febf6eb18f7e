"""The memo merged: where there is much of it by tasks, so that no value of it passes through the driver.

A task folds some cache files into rows of their memo table, which no version names yet; the driver adds the
rows of all tasks with one commit for each table, and then removes the files. Whatever is killed in between,
the files are there or their values are: the next merge does the rest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raypipe.memo.disk import add_folded, cut, ensure_memo, fold, merge_memo, replaces, waiting
from raypipe.models.kit import LocalKit
from raypipe.pipeline.recipe_task import retried
from raypipe.pipeline.tasks import Runner, RunTask, Task, WorkerConfig, results_of
from raypipe.store import Store, write_part
from raypipe.store.parts import drop_records, read_record

MERGED_HERE = 64 << 20
"""Bytes of cache files that the driver merges itself, and that a task does: less is merged before a worker
has started."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Cache files to rows of their memo table. The ids of a task are files of one table."""

    worker: WorkerConfig
    run: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = Store.open(self.worker.store)
        return retried(self.worker, lambda task: self._merge(store, task))

    def _merge(self, store: Store, task: Task) -> tuple[int, int]:
        """How many values it adds, and how many files were damaged."""
        table = task.ids[0].split("/")[-2]
        if read_record(store, table, self.run, task.name) is not None:  # by a worker that died after it
            return 0, 0
        some = fold(store, table, task.ids)
        if some.rows.num_columns:
            facts = {"replaced": some.replaced}
            write_part(store, table, self.run, task.name, some.rows, facts)
        return some.rows.num_rows, some.damaged


def merge(
    store: Store, worker: WorkerConfig, runner: Runner, start: Callable[[], object], here: int = MERGED_HERE
) -> int:
    """Merges the cache files of workers into the memo tables: up to `here` bytes in this process, more by
    tasks of as much each. Returns how many files were damaged. `start` connects to where tasks run.

    Raises what a worker raises, and Unavailable."""
    files = waiting(store)
    if sum(sum(sizes.values()) for sizes in files.values()) <= here:
        return merge_memo(store).damaged
    start()
    damaged = 0
    for table, sizes in files.items():
        # Replies that take the place of others first: of two values of a key the first one counts.
        newer = {n: s for n, s in sizes.items() if table.startswith("replies-") and replaces(store, n)}
        for some in (newer, {n: s for n, s in sizes.items() if n not in newer}):
            if some:
                ensure_memo(store, table, list(some))
                damaged += _merged(store, worker, runner, table, cut(some, here))
    return damaged


def _merged(
    store: Store, worker: WorkerConfig, runner: Runner, table: str, groups: Sequence[Sequence[str]]
) -> int:
    """Merges groups of files of one table; returns how many were damaged."""
    run, damaged = uuid.uuid4().hex, 0
    tasks = {f"{i:06d}": Task(f"{i:06d}", tuple(names)) for i, names in enumerate(groups)}
    for result in results_of(runner, "parse", MergeTask(worker, run), list(tasks.values())):
        damaged += result.faults
    records = {name: r for name in tasks if (r := read_record(store, table, run, name)) is not None}
    fragments = [f for record in records.values() for f in record.fragments]
    replaced = [key for record in records.values() for key in record.facts["replaced"]]
    if records:
        add_folded(store, table, run, fragments, replaced, [n for name in records for n in tasks[name].ids])
        drop_records(store, table, run)
        store.index(table)
    return damaged
