"""Brings one table up to date: what it lacks is cut into tasks, handed to a runner, and committed once.

A killed driver's parts are kept, and its run is resumed. What a table lacks and which task computes it is in
`corpus_builds` and `driver`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raypipe.core.calls import Backoff
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

ROUNDS_IN_VAIN = 2  # of tasks that workers handed back, in none of which another worker could do one


def alone(verb: Verb) -> Workers:
    """The workers of a runner that does everything in this process."""
    return Workers()


def again_id(work_id: str) -> str:
    """Names the work of making rows of a table again, next to that of making those that are missing."""
    return f"{work_id}-again"


def nowhere() -> None:
    """Connects to nothing."""


@dataclass(frozen=True, slots=True)
class TableBuild:
    """The work that brings one table up to date: what it lacks, and the task that computes it."""

    work_id: str  # names the work: a digest of its stages
    table: str
    schema: pa.Schema  # that the table is made with
    pool: Verb  # where its tasks run
    done_verb: str  # parsed, split, embedded, answered
    unit: str  # sources, texts, questions
    max_rows: int  # of a task
    missing_ids: Callable[[], Sequence[str]]  # that the table lacks
    work: Callable[[TableRun], TableTask]
    calls_models: bool = False  # True: the memo is merged before it, so that its workers read all of it
    again: tuple[str, ...] = ()  # ids of rows that are made again, though the table may have them
    fresh: bool = False  # True: and language models are asked again for them
    first: tuple[tuple[str, pa.Schema], ...] = ()  # tables that the same tasks fill, committed before it
    spread: bool = True  # False: tasks are as large as they may be, however few that makes
    inside: str = ""  # passages: what is embedded is shown while a task runs
    units: Callable[[Ids], int] = len  # how many units (`unit`) some ids have
    groups: Mapping[str, int] = field(default_factory=dict)  # id -> group, of neighbours in a task

    @property
    def kept(self) -> tuple[Mapping[str, int], int]:
        """Returns the groups of rows, and how many rows of one group a task may have at most."""
        return self.groups, self.max_rows


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """Fills tables of a store by tasks that a runner does."""

    store: Store
    runner: Runner
    progress: Progress
    workers: Callable[[Verb], Workers]  # asked only while something is missing: it may connect
    connect: Callable[[], object]  # to where tasks run; called before the first thing is done
    clock: WallClock
    caps: Caps
    worker: WorkerConfig

    def build(self, build: TableBuild, done: RunCounters) -> None:
        """Adds to a table what it lacks: first what killed runs left, then the rest."""
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
            whole = False  # transient failures stay pending, but are not tried again by this run
            while not whole and (ids := build.missing_ids()):
                per_task = self._per_task(ids, build)
                run = begin(self.store, build.work_id, ids, per_task, False, False, *build.kept)
                whole = self._finish(run, build.work_id, build, done)
            if build.calls_models:
                done.memo_damaged += self.merge_memo()

    def merge_memo(self) -> int:
        """Merges what workers cached, where tasks run if it is much; how many files were damaged."""
        with self.clock.part("storing"):
            return merge(self.store, self.worker, self.runner, self.start)

    def compact(self) -> None:
        """Compacts the tables of many fragments, where tasks run if they are large."""
        with self.clock.part("storing"):
            compact_all(self.store, self.worker, self.runner, self.start)

    def start(self) -> None:
        with self.clock.part("starting"):
            self.connect()

    def _again(self, ids: list[str], build: TableBuild, done: RunCounters) -> None:
        """Makes rows again, with those that a run before could not do for now."""
        work_id = again_id(build.work_id)
        if (rest := begun(self.store, work_id)) is not None:
            ids = [*rest.ids, *ids]
            begin_rest(self.store, work_id, rest, ids, self._per_task(ids, build), *build.kept)
        per_task = self._per_task(ids, build)
        run = begin(self.store, work_id, ids, per_task, True, build.fresh, *build.kept)
        self._finish(run, work_id, build, done)

    def _per_task(self, ids: Sequence[str], build: TableBuild) -> int:
        if not build.spread:
            return build.max_rows
        with self.clock.part("starting"):  # it may connect
            return self.workers(build.pool).per_task(len(ids), build.max_rows)

    def _finish(self, run: TableRun, work_id: str, build: TableBuild, done: RunCounters) -> bool:
        """Runs what is left of a run and commits it. False if others added some of its rows meanwhile: its
        plan is void then, and what is missing is worked out again."""
        if committed(self.store, build.table, run.name) is None:
            self._run(run, build, done)
        try:
            commit(self.store, "faults", run.name, run.parts)
            for table, _ in build.first:
                commit(self.store, table, run.name, run.parts)
            lost = self._faults_of(run, "digest", transient=False) if run.replaces else []
            commit(self.store, build.table, run.name, run.parts, run.replaces, lost)
            whole = True
        except AddedMeanwhile:
            whole = False
        # What was asked afresh and could not be done for now keeps its old answer until it is done.
        rest = self._faults_of(run, "id", transient=True) if run.fresh and whole else []
        if rest:
            begin_rest(self.store, work_id, run, rest, build.max_rows, *build.kept)
        else:
            end(self.store, work_id)
        return whole

    def _faults_of(self, run: TableRun, column: str, transient: bool) -> list[str]:
        """A column of the faults of a run that have passed, or have not."""
        which = f"run = '{run.name}' AND {'' if transient else 'NOT '}transient"
        rows = self.store.scan("faults", columns=[column], filter=which)
        return list(dict.fromkeys(rows[column].to_pylist()))

    def _run(self, run: TableRun, build: TableBuild, done: RunCounters) -> None:
        """Runs the tasks of a run that no driver finished before."""
        need(self.store.files, 0, f"what is left of {build.table}")
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
            self.start()  # what it prints and how long it takes are not the progress's
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
                    if left:
                        self.caps.check(done, self.clock.total())
                        if (wait_s := backoff.next_s()) is None:
                            raise Unavailable(
                                f"{back[left[0].name].reason}. {ROUNDS_IN_VAIN + 1} workers tried. What was "
                                "done is stored, no row of these tasks is blamed, and the same command does "
                                "them when that is put right"
                            )
                        time.sleep(wait_s)
                        done.memo_damaged += self.merge_memo()  # what the other worker computed for these
            except (CapReached, Unavailable):
                done.save(without=run.name)  # its parts keep their own counts
                raise
        done.save()

    def _round(
        self, run: TableRun, build: TableBuild, done: RunCounters, tasks: Sequence[Task], shown: ProgressTask
    ) -> Iterator[HandedBack]:
        """Runs tasks once; those that came back. At a cap no more tasks begin, and it is reached when those
        that run have ended."""
        with self.clock.tasks() as busy, ExitStack() as ending:
            left, waiting = len(tasks), list(tasks)
            results = self.runner(build.pool, build.work(run), waiting)
            # However it ends, a pool begins no more tasks.
            ending.callback(getattr(results, "close", nowhere))
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
                shown.advance(
                    result.rows if build.inside == build.unit else result.ids, result.name, result.rows
                )
                if left and self.caps.reached(done, self.clock.total()):
                    waiting.clear()
            if left:
                self.caps.check(done, self.clock.total())
