"""Builder of tables: cuts the missing rows of a table into tasks, has a runner compute them, commits once.

The parts (rows of finished tasks) of a killed driver are kept, and its run is resumed. `corpus_builds` and
`driver` find the missing rows and make the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raypipe.core.backoff import Backoff
from raypipe.core.errors import CapReached, Unavailable
from raypipe.core.progress import IN_HAND, Progress, ProgressTask
from raypipe.runs.pipeline.counters import Caps, RunCounters, WallClock
from raypipe.runs.pipeline.store_tasks import compact_all, merge
from raypipe.runs.pipeline.tasks import (
    HandedBack,
    Runner,
    TableTask,
    Task,
    TaskResult,
    Verb,
    WorkerConfig,
    Workers,
)
from raypipe.store import AddedMeanwhile, Store, TableRun, begin, begun, commit, committed, done_parts, end
from raypipe.store.files import need
from raypipe.store.ids import Ids
from raypipe.store.parts import begin_rest

ROUNDS_IN_VAIN = 2  # further rounds of handed-back tasks without a finished one, before the run stops


def single_worker(verb: Verb) -> Workers:
    """Returns the worker of a runner that runs every task in this process."""
    return Workers()


def again_id(work_id: str) -> str:
    """Returns the name for work that computes stored rows again. `work_id` names the work on missing rows."""
    return f"{work_id}-again"


def no_connection() -> None:
    """Connects to nothing."""


@dataclass(frozen=True, slots=True)
class TableBuild:
    """Work that brings one table up to date: its missing rows, and the task that computes them."""

    work_id: str  # name of the work, which is the same if a command is repeated
    table: str
    schema: pa.Schema  # for creating the table
    pool: Verb  # pool of workers that runs the tasks
    done_verb: str  # for the progress line: parsed, split, embedded, answered
    unit: str  # for the progress line: sources, texts, questions
    max_rows: int  # most rows of a task
    missing_ids: Callable[[], Sequence[str]]  # ids without a row in the table
    work: Callable[[TableRun], TableTask]
    calls_models: bool = False  # True: the memo is merged before the tasks, so that they can read all of it
    again: tuple[str, ...] = ()  # ids of rows to compute again, even if the table has them
    fresh: bool = False  # True: language models are called again for `again`, even for cached replies
    first: tuple[tuple[str, pa.Schema], ...] = ()  # tables of the same tasks, committed before `table`
    spread: bool = True  # False: tasks have `max_rows` rows, even if some workers then get none
    inside: str = ""  # unit of the progress shown while a task runs, such as passages; "": none
    units: Callable[[Ids], int] = len  # ids -> their number of `unit`
    groups: Mapping[str, int] = field(default_factory=dict)  # id -> group; neighbours of a group share a task


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """Builder that fills tables of a store with the results of a runner's tasks."""

    store: Store
    runner: Runner
    progress: Progress
    workers: Callable[[Verb], Workers]  # called only if rows are missing: it may connect to Ray
    connect: Callable[[], object]  # connects to Ray; called before the first task
    clock: WallClock
    caps: Caps
    worker: WorkerConfig

    def build(self, build: TableBuild, done: RunCounters) -> None:
        """Brings a table up to date: finishes its killed runs, computes the rows listed by `build` again,
        then all missing rows. Merges the memo (the cache of calls) before and after, if the work calls
        models."""
        with self.clock.part("storing"):
            for table, schema in (*build.first, (build.table, build.schema)):
                self.store.ensure(table, schema)
            if build.calls_models:
                done.memo_damaged += self.merge_memo()
            again = dict.fromkeys(build.again)
            for work_id in (again_id(build.work_id), build.work_id):
                if run := begun(self.store, work_id):
                    self._finish(run, work_id, build, done)
                    for id in run.ids if again and (run.fresh or not build.fresh) else ():
                        again.pop(id, None)
            if again:
                self._again(list(again), build, done)
            valid = False  # rows with transient faults stay pending: this run does not try them again
            while not valid and (ids := build.missing_ids()):
                per_task = self._per_task(ids, build)
                run = begin(
                    self.store, build.work_id, ids, per_task, False, False, build.groups, build.max_rows
                )
                valid = self._finish(run, build.work_id, build, done)
            if build.calls_models:
                done.memo_damaged += self.merge_memo()

    def merge_memo(self) -> int:
        """Merges workers' cache files into the memo, by tasks if large. Returns how many were damaged."""
        with self.clock.part("storing"):
            return merge(self.store, self.worker, self.runner, self.start)

    def compact(self) -> None:
        """Compacts tables with many fragments, by tasks if they are large."""
        with self.clock.part("storing"):
            compact_all(self.store, self.worker, self.runner, self.start)

    def start(self) -> None:
        with self.clock.part("starting"):
            self.connect()

    def _again(self, ids: list[str], build: TableBuild, done: RunCounters) -> None:
        """Computes rows again, together with rows that an earlier run of this work left undone."""
        work_id = again_id(build.work_id)
        rest = begun(self.store, work_id)
        ids = [*rest.ids, *ids] if rest else ids
        per_task = self._per_task(ids, build)
        if rest is not None:
            begin_rest(self.store, work_id, rest, ids, per_task, build.groups, build.max_rows)
        run = begin(self.store, work_id, ids, per_task, True, build.fresh, build.groups, build.max_rows)
        self._finish(run, work_id, build, done)

    def _per_task(self, ids: Sequence[str], build: TableBuild) -> int:
        if not build.spread:
            return build.max_rows
        with self.clock.part("starting"):  # it may connect to Ray
            return self.workers(build.pool).per_task(len(ids), build.max_rows)

    def _finish(self, run: TableRun, work_id: str, build: TableBuild, done: RunCounters) -> bool:
        """Runs the remaining tasks of a run and commits its rows. Returns False if another run added some of
        these rows meanwhile. The table then gets no row of the run, and the caller must look for missing rows
        again; `faults` and the tables in `first` may have got their rows."""
        if committed(self.store, build.table, run.name) is None:
            self._run(run, build, done)
        try:
            commit(self.store, "faults", run.name, run.parts)
            for table, _ in build.first:
                commit(self.store, table, run.name, run.parts)
            lost = self._faults_of(run, "digest", transient=False) if run.replaces else []
            commit(self.store, build.table, run.name, run.parts, run.replaces, lost)
            valid = True
        except AddedMeanwhile:
            valid = False
        # Rows with a transient fault in a fresh run keep their old answers, and are tried again later.
        rest = self._faults_of(run, "id", transient=True) if run.fresh and valid else []
        if rest:
            begin_rest(self.store, work_id, run, rest, build.max_rows, build.groups, build.max_rows)
        else:
            end(self.store, work_id)
        return valid

    def _faults_of(self, run: TableRun, column: str, transient: bool) -> list[str]:
        """Returns the distinct values of `column` in a run's transient faults, or in its final faults."""
        which = f"run = '{run.name}' AND {'' if transient else 'NOT '}transient"
        rows = self.store.scan("faults", columns=[column], filter=which)
        return list(dict.fromkeys(rows[column].to_pylist()))

    def _run(self, run: TableRun, build: TableBuild, done: RunCounters) -> None:
        """Runs the tasks of a run that are not done yet. Raises CapReached, and Unavailable after
        ROUNDS_IN_VAIN + 1 rounds in turn without a finished task."""
        need(self.store.files, 0, f"the rest of {build.table}")
        here = done_parts(self.store, build.table, run.name)
        for table, _ in build.first:
            if committed(self.store, table, run.name) is None:
                whole = done_parts(self.store, table, run.name)
                here = {part: facts for part, facts in here.items() if part in whole}
        counted = run.name in done.tables
        for name, facts in here.items():
            counts = TaskResult.of(name, facts).counts
            if not counted:
                done.add(run.name, counts, earlier=True)
            if build.pool == "answer":
                done.share(run.part(name), counts)
        left = [Task(name, planned=run.rows(name)) for name in run.parts if name not in here]
        if left:
            self.caps.check(done, self.clock.total())
            self.start()  # before the progress line: its output and time are not part of it
        backoff = Backoff(ROUNDS_IN_VAIN + 1, self.worker.wait_s)
        total = build.units(run.ids_of(t.name for t in left))
        with (
            self.progress.task(build.done_verb, build.unit, total, build.inside) as shown,
            IN_HAND.heard_by(shown.within) if build.inside else nullcontext(),
        ):
            try:
                while left:
                    back = {b.name: b for b in self._round(run, build, done, left, shown)}
                    if len(back) < len(left):
                        backoff.reset()
                    left = [replace(t, suspects=back[t.name].suspects) for t in left if t.name in back]
                    if not left:
                        break
                    self.caps.check(done, self.clock.total())
                    if (wait_s := backoff.next_s()) is None:
                        tried = f"{back[left[0].name].reason}. {ROUNDS_IN_VAIN + 1} workers tried"
                        stored = "Finished work is stored, and no row of these tasks is blamed"
                        raise Unavailable(f"{tried}. {stored}. Correct this, then run the same command again")
                    time.sleep(wait_s)
                    done.memo_damaged += self.merge_memo()  # results that workers cached for these tasks
            except (CapReached, Unavailable):
                done.save(without=run.name)  # the completion records of this run keep its counts
                raise
        done.save()

    def _round(
        self, run: TableRun, build: TableBuild, done: RunCounters, tasks: Sequence[Task], shown: ProgressTask
    ) -> Iterator[HandedBack]:
        """Runs tasks once and yields the tasks handed back. Once a cap is reached, no more tasks begin; after
        the running tasks have ended, CapReached is raised. Raises Unavailable if a task must stop the run."""
        with self.clock.tasks() as busy, ExitStack() as ending:
            left, waiting = len(tasks), list(tasks)
            results = self.runner(build.pool, build.work(run), waiting)
            # Also after an error the pool begins no more tasks.
            ending.callback(getattr(results, "close", no_connection))
            for result in results:
                left -= 1
                if isinstance(result, HandedBack):
                    done.add(f"{run.name} in vain", result.counts, tasks=0)
                    if result.then == "stop":
                        raise Unavailable(result.reason)
                    yield result
                    continue
                if build.pool == "answer":
                    done.share(run.part(result.name), result.counts)
                done.add(run.name, result.counts)
                for pool, share in result.by.items():
                    rows = done.rows_by_worker.setdefault(pool, {})
                    rows[share.worker] = rows.get(share.worker, 0) + result.ids
                    spent = busy.setdefault(share.worker, {})
                    for part, seconds in share.parts().items():
                        spent[part] = spent.get(part, 0.0) + seconds
                for count in result.counts.values():
                    shown.wrote(count.calls.tokens.generated, count.seconds)
                units = result.rows if build.inside == build.unit else result.ids
                shown.advance(units, result.name, result.rows)
                if left and self.caps.reached(done, self.clock.total()):
                    waiting.clear()
            if left:
                self.caps.check(done, self.clock.total())
