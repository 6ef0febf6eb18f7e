"""Tasks without models: they make postings of words, merge cache files into the memo, and compact tables.

A merging task writes the values of some cache files as fragments of their memo table. No version of the table
contains the fragments yet. The driver adds the fragments of all tasks with one commit per table, and then
removes the files. After a kill each value is still in its file or already in the table, and the next merge
finishes the work. Only a merge of few bytes (MERGED_HERE) is done by the driver itself.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.dead_letters import faults_table
from raypipe.runs.pipeline.operators import retried
from raypipe.runs.pipeline.tasks import Runner, RunTask, Share, Task, TaskResult, WorkerConfig, results_of
from raypipe.store import Store, housekeeping, write_part
from raypipe.store.inverter import Inverter
from raypipe.store.memo.disk import add_folded, cut, ensure_memo, fold, merge_memo, replaces, waiting
from raypipe.store.parts import drop_records, read_record, record_path

PART_SOURCES = 50_000  # most sources of a part (one task): a second of work, and the most that a kill loses


@dataclass(frozen=True, slots=True)
class PostingsTask:
    """Work that stores words of sources in `postings`, then their lengths, which complete the part."""

    worker: WorkerConfig
    analyzer: str
    table: str  # name of the table of lengths
    postings: str  # name of the table
    texts: str  # name of the table to read
    passages: str  # name of the table to read
    run: str

    @property
    def records(self) -> tuple[str, str]:
        return self.table, self.run

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Returns the task's function. `kit` only names the process. Raises Unavailable and StoreError."""
        store, process = await self.worker.open_store(), kit.process if kit else ""
        inverter = await self.worker.tried(lambda: Inverter(store, self.texts, self.passages, self.analyzer))

        def invert(task: Task) -> tuple[int, int]:
            """Stores words of a task's sources. Returns the numbers of lengths and of failed sources."""
            start = time.perf_counter()
            sources = [i for i in task.with_ids(store).ids if i not in task.failed]
            lengths, postings = inverter.rows(sources, self.run, task.name)
            if task.trial:
                return 0, len(task.failed)
            failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
            write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
            write_part(store, self.postings, self.run, task.name, postings, {})
            by = {"parse": Share({}, time.perf_counter() - start, process)}
            facts = TaskResult(task.name, task.rows, lengths.num_rows, len(failed), by).facts()
            write_part(store, self.table, self.run, task.name, lengths, facts)
            return int(lengths.num_rows), len(task.failed)

        return retried(self.worker, invert, process)


@dataclass(frozen=True, slots=True)
class StoreTask:
    """Work that one function does on files or fragments of tables. The ids of its tasks name files or work,
    not rows. So if workers die, a trial of a single id does nothing."""

    worker: WorkerConfig
    do: Callable[[Store, Task], tuple[int, int]]  # returns a number of rows and of faults; can be pickled

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = await self.worker.open_store()
        return retried(self.worker, lambda task: (0, 0) if task.trial else self.do(store, task))


MERGED_HERE = 64 << 20
"""Most bytes of cache files that the driver merges itself, sooner than a worker starts; also of a task."""


def _fold(run: str, store: Store, task: Task) -> tuple[int, int]:
    """Writes the values of some cache files as a part of their memo table. The ids of the task are names of
    files, all of one table. Returns the number of added values, and the number of damaged files."""
    table = task.ids[0].split("/")[-2]
    if read_record(store, table, run, task.name) is not None:  # written by a worker that died afterwards
        return 0, 0
    rows, replaced, damaged = fold(store, table, task.ids)
    if rows.num_columns:
        write_part(store, table, run, task.name, rows, {"replaced": replaced})
    return rows.num_rows, damaged


def merge(
    store: Store, worker: WorkerConfig, runner: Runner, start: Callable[[], object], here: int = MERGED_HERE
) -> int:
    """Merges the cache files of workers into the memo tables: in this process up to `here` bytes, else by
    tasks of that size. Returns the number of damaged files. `start` connects to Ray. Raises the errors of
    workers, and Unavailable if a task is handed back."""
    files = waiting(store)
    if sum(sum(sizes.values()) for sizes in files.values()) <= here:
        return merge_memo(store).damaged
    start()
    damaged = 0
    for table, sizes in files.items():
        # Files whose replies replace older replies go first: readers take the first value of a key.
        newer = {n: s for n, s in sizes.items() if table.startswith("replies-") and replaces(store, n)}
        for some in (newer, {n: s for n, s in sizes.items() if n not in newer}):
            if some:
                ensure_memo(store, table, list(some))
                damaged += _merged(store, worker, runner, table, cut(some, here))
    return damaged


def _merged(
    store: Store, worker: WorkerConfig, runner: Runner, table: str, groups: Sequence[Sequence[str]]
) -> int:
    """Merges groups of cache files of one table, a task per group. Returns the number of damaged files."""
    run = uuid.uuid4().hex
    tasks = [Task(f"{i:06d}", tuple(names)) for i, names in enumerate(groups)]
    work = StoreTask(worker, functools.partial(_fold, run))
    damaged = sum(result.faults for result in results_of(runner, "parse", work, tasks))
    written = [(t, r) for t in tasks if (r := read_record(store, table, run, t.name)) is not None]
    if written:
        fragments = [f for _, record in written for f in record.fragments]
        replaced = [key for _, record in written for key in record.facts["replaced"]]
        add_folded(store, table, run, fragments, replaced, [file for task, _ in written for file in task.ids])
        drop_records(store, table, run)
        store.index(table)
    return damaged


def _rewrite(table: str, version: int, run: str, store: Store, task: Task) -> tuple[int, int]:
    """Rewrites a group of a table's fragments, which the task's id names, as fewer. Returns (0, 0)."""
    written = housekeeping.write_group(store, table, version, task.ids[0])
    store.files.write(record_path(table, run, task.name), written.encode())
    return 0, 0


def compact_all(
    store: Store,
    worker: WorkerConfig,
    runner: Runner,
    start: Callable[[], object],
    most: int = housekeeping.FRAGMENTS,
    here: int = MERGED_HERE,
) -> None:
    """Compacts tables with more than `most` fragments: in this process up to `here` bytes, larger tables by
    tasks. `start` connects to Ray. Raises the errors of workers, and Unavailable if a task is handed back."""

    def by_tasks(store: Store, table: str, version: int) -> None:
        if housekeeping.table_bytes(store, table, version) <= here:
            housekeeping.compact_here(store, table, version)
            return
        start()
        run = uuid.uuid4().hex
        work = StoreTask(worker, functools.partial(_rewrite, table, version, run))
        tasks = [
            Task(f"{i:06d}", (some,)) for i, some in enumerate(housekeeping.groups(store, table, version))
        ]
        done = [r.name for r in results_of(runner, "parse", work, tasks)]
        written = (store.files.read(record_path(table, run, name)) for name in done)
        housekeeping.replace_groups(store, table, version, [w.decode() for w in written if w])
        drop_records(store, table, run)

    for table in housekeeping.tables(store):
        housekeeping.compact(store, table, most, by_tasks)
