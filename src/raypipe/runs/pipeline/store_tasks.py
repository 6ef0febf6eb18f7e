"""Tasks that call no model: words inverted, the memo merged, tables compacted.

The memo is merged and tables are compacted by tasks where there is much: no value passes through the driver.
A merging task folds some cache files into rows of their memo table, which no version names yet; the driver
adds the rows of all tasks with one commit for each table, and then removes the files. Whatever is killed in
between, the files are there or their values are: the next merge does the rest.
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
from raypipe.store import Store, keep, write_part
from raypipe.store.inverter import Inverter
from raypipe.store.memo.disk import add_folded, cut, ensure_memo, fold, merge_memo, replaces, waiting
from raypipe.store.parts import drop_records, read_record, record_path

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
        """Opens the store and returns the task's function. No model is called: `kit` only names the process.
        Raises Unavailable if the store cannot be reached in any try, and StoreError."""
        store, process = await self.worker.open_store(), kit.process if kit else ""
        inverter = await self.worker.tried(lambda: Inverter(store, self.texts, self.passages, self.analyzer))

        def invert(task: Task) -> tuple[int, int]:
            """Stores the words of a task's sources; how many rows of lengths, and how many sources failed."""
            start = time.perf_counter()
            left = [i for i in task.with_ids(store).ids if i not in task.failed]
            lengths, postings = inverter.rows(left, self.run, task.name)
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
    """Work on files and fragments that one function does, as plain values. Its rows are not tried alone: of
    files whose workers died there is nothing smaller."""

    worker: WorkerConfig
    do: Callable[[Store, Task], tuple[int, int]]  # a function that any process can be handed: rows, faults

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = await self.worker.open_store()
        return retried(self.worker, lambda task: (0, 0) if task.trial else self.do(store, task))


MERGED_HERE = 64 << 20
"""Bytes of cache files that the driver merges itself, and that a task does: less is merged before a worker
has started."""


def _fold(run: str, store: Store, task: Task) -> tuple[int, int]:
    """Cache files of one memo table, the ids of a task, to rows of it. Returns how many values it adds, and
    how many files were damaged."""
    table = task.ids[0].split("/")[-2]
    if read_record(store, table, run, task.name) is not None:  # by a worker that died after it
        return 0, 0
    rows, replaced, damaged = fold(store, table, task.ids)
    if rows.num_columns:
        write_part(store, table, run, task.name, rows, {"replaced": replaced})
    return rows.num_rows, damaged


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
    work = StoreTask(worker, functools.partial(_fold, run))
    for result in results_of(runner, "parse", work, list(tasks.values())):
        damaged += result.faults
    records = {name: r for name in tasks if (r := read_record(store, table, run, name)) is not None}
    fragments = [f for record in records.values() for f in record.fragments]
    replaced = [key for record in records.values() for key in record.facts["replaced"]]
    if records:
        add_folded(store, table, run, fragments, replaced, [n for name in records for n in tasks[name].ids])
        drop_records(store, table, run)
        store.index(table)
    return damaged


def _rewrite(table: str, version: int, run: str, store: Store, task: Task) -> tuple[int, int]:
    """Fragments of a table, a group of them the id of a task, to fewer ones."""
    written = keep.write_group(store, table, version, task.ids[0])
    store.files.write(record_path(table, run, task.name), written.encode())
    return 0, 0


def compact_all(
    store: Store,
    worker: WorkerConfig,
    runner: Runner,
    start: Callable[[], object],
    most: int = keep.FRAGMENTS,
    here: int = MERGED_HERE,
) -> None:
    """Compacts the tables of more than `most` fragments: of up to `here` bytes in this process, others by
    tasks. `start` connects to where tasks run. Raises what a worker raises, and Unavailable."""

    def by_tasks(store: Store, table: str, version: int) -> None:
        if keep.table_bytes(store, table, version) <= here:
            keep.compact_here(store, table, version)
            return
        start()
        run = uuid.uuid4().hex
        work = StoreTask(worker, functools.partial(_rewrite, table, version, run))
        tasks = [Task(f"{i:06d}", (some,)) for i, some in enumerate(keep.groups(store, table, version))]
        done = [r.name for r in results_of(runner, "parse", work, tasks)]
        written = (store.files.read(record_path(table, run, name)) for name in done)
        keep.replace_groups(store, table, version, [w.decode() for w in written if w])
        drop_records(store, table, run)

    for table in keep.tables(store):
        keep.compact(store, table, most, by_tasks)
