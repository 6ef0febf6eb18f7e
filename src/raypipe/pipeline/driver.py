"""A data set through a recipe over a store: index the corpus, answer the questions; what is missing, no more.

Works out which rows each table lacks, cuts them into tasks, hands these to a runner, and commits. The
runner decides where tasks run: workers on Ray (`cluster`) or this process (`inline`). One driver
at a time; a killed driver's parts are kept and its run is resumed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.errors import CapReached, Unavailable
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, Outcome, Question, digest
from raypipe.core.retry import Backoff
from raypipe.memo.disk import memo_versions, merge_memo
from raypipe.memo.memo import vectors_of
from raypipe.pipeline.answer_sources import AnswerSources, answer_sources
from raypipe.pipeline.approximate import ann_names
from raypipe.pipeline.caps import NO_CAPS, Caps
from raypipe.pipeline.counters import RunCounters
from raypipe.pipeline.ingest_log import driving
from raypipe.pipeline.postings_task import PART_SOURCES, PostingsTask
from raypipe.pipeline.recipe_tables import (
    lacking,
    passages_table,
    postings_tables,
    searched,
    table_names,
    texts_table,
    vectors_table,
)
from raypipe.pipeline.tasks import (
    AnswersTask,
    HandedBack,
    PassagesTask,
    TableTask,
    Task,
    TaskResult,
    TextsTask,
    VectorsTask,
    Verb,
    WorkerConfig,
    Workers,
    stage_counts,
)
from raypipe.pipeline.wall_clock import WallClock
from raypipe.recipes.executor import CorpusExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.report.progress import Progress, ProgressTask
from raypipe.store import (
    ANSWERS,
    PASSAGES,
    AddedMeanwhile,
    Run,
    Store,
    begin,
    begin_rest,
    begun,
    commit,
    committed,
    done_parts,
    end,
    vectors_schema,
)  # fmt: skip
from raypipe.store.corpus_sum import corpus_sum, rows_id
from raypipe.store.disk_space import need
from raypipe.store.leftovers import abandon
from raypipe.store.merged_postings import merge_segments
from raypipe.store.source_ids import SourceIds, all_sources, lacked
from raypipe.store.tables import LENGTHS, POSTINGS

T = TypeVar("T")

ANSWERS_AT_ONCE = 100  # read in one look: some 40 kB each with fifty citations and twenty hits

SNAPSHOT_QUESTIONS = 128  # of a task; over 400,000 x 384 a question takes 1.9 ms at 256 and 3.3 at 50

ROUNDS_IN_VAIN = 2  # of tasks that workers handed back, in none of which another worker could do one

Runner: TypeAlias = Callable[[Verb, TableTask, Sequence[Task]], Iterator[TaskResult | HandedBack]]
"""Runs tasks somewhere and yields the results, in any order. The verb says which pool it is for."""


def inline(verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
    """One task after the other in this process. What was opened is opened again once it is broken."""
    do = None
    with asyncio.Runner() as loop:
        for task in tasks:
            if do is None:
                do = loop.run(work.open())
            result = loop.run(_coroutine(do(task)))
            if isinstance(result, HandedBack) and result.then == "replace":
                do = None
            yield result


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` at a time.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


async def _coroutine(work: Awaitable[T]) -> T:
    return await work


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """How much work one completion record stands for at most; in no digest."""

    sources: int
    questions: int


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
    work: Callable[[Run], TableTask]
    calls_models: bool = False  # True: the memo is merged before it, so that its workers read all of it
    again: tuple[str, ...] = ()  # ids of rows that are made again, though the table may have them
    fresh: bool = False  # True: and language models are asked again for them
    first: tuple[tuple[str, pa.Schema], ...] = ()  # tables that the same tasks fill, committed before it
    spread: bool = True  # False: tasks are as large as they may be, however few that makes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A recipe over a store, and where its tasks run."""

    store: Store
    recipe: Recipe
    worker: WorkerConfig
    sizes: TaskSizes
    runner: Runner
    progress: Progress
    workers: Callable[[Verb], Workers] = alone  # asked only while something is missing: it may connect
    connect: Callable[[], object] = nowhere  # to where tasks run; called before the first thing is done
    clock: WallClock = field(default_factory=WallClock)  # where the time of a run goes
    caps: Caps = NO_CAPS  # what a run may spend; no task begins beyond it

    def index(self, questions: Iterable[Question] | None, done: RunCounters | None = None) -> RunCounters:
        """Brings the tables of the corpus half up to date with every source that these questions may search
        (None: every source in the store), and counts what it does on `done`. Raises what a stage raises;
        whole tasks stay."""
        done = done or RunCounters()
        questions = None if questions is None else list(questions)  # read twice
        wanted = self.sources(questions)
        with driving(self.store, f"index {self.recipe.name}"):
            self.build(self.texts_build(wanted), done)
            self.build(self.passages_build(wanted), done)
            for model in self.recipe.embedders():
                self.build(self.vectors_build(model, wanted), done)
            for analyzer, (postings, lengths) in postings_tables(self.recipe).items():
                # Once they are there, they keep up: a search of the whole store reads them alone.
                if self.store.has(lengths) or self.searches_all(questions):
                    self.build(self.postings_build(analyzer, postings, lengths), done)
                    if not begun(self.store, lengths):
                        merge_segments(self.store, postings, lengths)
        return done

    def answer(
        self,
        questions: Iterable[Question],
        fresh: bool = False,
        done: RunCounters | None = None,
        renew: Collection[str] = (),
    ) -> RunCounters:
        """Answers the questions that have no answer yet from this recipe and this evidence, and counts what
        it does on `done`. `fresh`: all of them, and language models are called again whatever is cached;
        vectors and scores are not computed again. `renew`: ids of those that are answered again, with what is
        cached. Old answers go in the commit that brings the new ones; after a kill the next run, whether it
        says `fresh` or not, does what is left. The questions are gone through more than once."""
        done = done or RunCounters()
        work_id = self.answers_work_id(self.snapshot())
        sources = self.answer_sources(chain(questions, self._begun(work_id, questions)))
        keys = self.keys(questions, sources)
        again = tuple(id for id in keys.values() if fresh or id in renew)
        build = self.answers_build(keys, sources, again, fresh, self._per_answer_task(questions))
        with driving(self.store, f"answer {self.recipe.name}"):
            if fresh:
                for id in (work_id, again_id(work_id)):
                    if (left := begun(self.store, id)) and not left.fresh:  # of cached replies
                        abandon(self.store, id)
                self.store.forget("faults", "digest", list(keys))
            self.build(build, done)
        return done

    def _per_answer_task(self, questions: Iterable[Question]) -> int:
        """How many questions make a task at most: more where all that they cost is a search of the whole
        store, since a product of many costs little more than that of one."""
        kinds = {m.kind for stage in self.recipe.question for m in asked_models(stage.step)}
        if kinds <= {"embedder"} and self.searches_all(questions):
            return max(self.sizes.questions, SNAPSHOT_QUESTIONS)
        return self.sizes.questions

    def searches_all(self, questions: Iterable[Question] | None) -> bool:
        """Whether one of the questions (None: of any) is searched for in the whole store: it brings no
        sources of its own, or the recipe says so."""
        return self.recipe.searches_all() or questions is None or any(q.sources() is None for q in questions)

    def renewing(self) -> Run | None:
        """What a command that answered questions again has left to do: it was killed, or met trouble."""
        return begun(self.store, again_id(self.answers_work_id(self.snapshot())))

    def questions(self, ids: Sequence[str]) -> Iterator[Question]:
        """Stored questions, read a batch at a time."""
        for some in batches(ids, ANSWERS_AT_ONCE):
            yield from arrow.question.records(self.store.rows("questions", "id", some))

    def answers_work_id(self, snapshot: str) -> str:
        """Names the work of answering from one snapshot."""
        return f"answers-{digest(self.recipe.digest(), snapshot)}"

    def answer_sources(self, questions: Iterable[Question]) -> AnswerSources:
        """What these questions are answered from, as the tables are now."""
        asked = list(questions)  # read twice
        lacks = lacking(self.store, self.recipe, self.sources(asked), {}, self.searches_all(asked))
        return answer_sources(self.snapshot(), lacks, self.recipe.searches_all())

    def keys(self, questions: Iterable[Question], sources: AnswerSources) -> dict[str, str]:
        """Key of its answer -> question id."""
        recipe = self.recipe.digest()
        return {sources.key(recipe, q): q.id for q in questions}

    def _begun(self, work_id: str, questions: Iterable[Question]) -> Iterator[Question]:
        """The other questions of killed runs, which are finished first."""
        runs = [run for id in (again_id(work_id), work_id) if (run := begun(self.store, id))]
        if not runs:
            return
        here = {q.id for q in questions}
        yield from self.questions([id for run in runs for id in run.ids if id not in here])

    def unanswered(self, keys: Mapping[str, str]) -> list[str]:
        """Ids of the questions that have no answer under these keys (`keys`) and did not fail for good."""
        left = self.store.missing("answers", "key", list(keys))
        lost = self._failed(lambda row: row["digest"] in keys)
        return [keys[k] for k in left if keys[k] not in lost]

    def answers(
        self, questions: Iterable[Question], sources: AnswerSources | None = None
    ) -> Iterator[Question]:
        """The stored answers of these questions, in order, read a batch at a time. One that failed
        has the outcome fault, one that was not reached yet has none; what stopped it then, if anything did,
        is its fault. `sources`: what they are answered from; None: the questions are gone through once more
        to find it."""
        sources, recipe = sources or self.answer_sources(questions), self.recipe.digest()
        for some in batches(questions, ANSWERS_AT_ONCE):
            keys = [sources.key(recipe, q) for q in some]
            rows = self.store.rows("answers", "key", keys)
            found = dict(zip(rows["key"].to_pylist(), arrow.question.records(rows), strict=True))
            lost = {r["digest"]: r for r in _final_last(self.store.rows("faults", "digest", keys))}
            yield from (found.get(k) or _unanswered(q, lost.get(k)) for k, q in zip(keys, some, strict=True))

    def failed_sources(self, among: set[str] | None) -> list[dict[str, Any]]:
        """The rows of `faults` of sources (None: of all) that the corpus half could not do, the last one of
        each source; one that was done since is not among them."""
        rows = []
        for table in table_names(self.store, self.recipe):
            last = {r["id"]: r for r in _final_last(self.store.rows("faults", "digest", [table]))}
            left = self.store.missing(table, "source", list(last))
            rows += [last[id] for id in left if among is None or id in among]
        return rows

    @property
    def texts_table(self) -> str:
        return texts_table(self.recipe)

    @property
    def passages_table(self) -> str:
        return passages_table(self.recipe)

    def vectors_table(self, model: Model) -> str:
        return vectors_table(self.recipe, model)

    def snapshot(self) -> str:
        """Names all that the store can search: the corpus of a question without citations, and the
        approximate indexes that the recipe searches it by."""
        return digest(corpus_sum(self.store), *ann_names(self.store, self.recipe))

    def sources(self, questions: Iterable[Question] | None) -> Sequence[str]:
        """Ids of the sources to index, of the kinds that the recipe parses: those cited in citation order, or
        all of the store."""
        kinds, cited = self.recipe.source_kinds(), dict[str, None]()
        for q in questions if questions is not None else ():
            if (sources := q.sources()) is None or self.recipe.searches_all():
                return all_sources(self.store, kinds)
            cited.update(dict.fromkeys(sources))
        if questions is None:
            return all_sources(self.store, kinds)
        table = self.store.scan("sources", columns=["id", "kind"])
        here = table.filter(pc.is_in(table["kind"], value_set=pa.array(kinds)))["id"].to_pylist()
        stored = set(here)
        return [s for s in cited if s in stored]

    def texts_build(self, wanted: Sequence[str]) -> TableBuild:
        """Sources to texts."""
        table = self.texts_table
        with asyncio.Runner() as loop:
            empty = loop.run(CorpusExecutor(self.recipe, self.worker.kit(None)).texts(arrow.corpus_table([])))
        return TableBuild(
            table, table, empty.drop(["fault"]).schema, "parse", "parsed", "sources", self.sizes.sources,
            lambda: self.missing(table, wanted),
            lambda run: TextsTask(self.worker, self.recipe, table, run.name),
        )  # fmt: skip

    def passages_build(self, wanted: Sequence[str]) -> TableBuild:
        """Texts to passages."""
        table = self.passages_table

        def missing_ids() -> Sequence[str]:
            without = set(lacked(self.store, self.store.dataset(self.texts_table), self.texts_table, wanted))
            return self.missing(table, [s for s in wanted if s not in without] if without else wanted)

        return TableBuild(
            table, table, PASSAGES, "parse", "split", "texts", self.sizes.sources, missing_ids,
            lambda run: PassagesTask(self.worker, self.recipe, table, run.name, self.texts_table),
        )  # fmt: skip

    def vectors_build(self, model: Model, wanted: Sequence[str]) -> TableBuild:
        """Passages to the vectors of one embedder."""
        table = self.vectors_table(model)

        def missing_ids() -> Sequence[str]:
            here = self.store.sources_with_chunks(self.passages_table)
            if isinstance(wanted, SourceIds):
                at = rows_id(self.store.dataset(self.passages_table))
                return self.missing(table, wanted.among(here, at))
            split = set(here.to_pylist())
            return self.missing(table, [s for s in wanted if s in split])

        def work(run: Run) -> TableTask:
            memo = {k: v for k, v in memo_versions(self.store).items() if k == vectors_of(model).name}
            return VectorsTask(
                self.worker, self.recipe, table, run.name, self.texts_table, self.passages_table, model, memo
            )

        return TableBuild(
            table, table, vectors_schema(model.dim, model.half), "embed", "embedded", "sources",
            self.sizes.sources, missing_ids, work, calls_models=True,
        )  # fmt: skip

    def postings_build(self, analyzer: str, postings: str, lengths: str) -> TableBuild:
        """Words of the passages of all sources, inverted."""

        def missing_ids() -> Sequence[str]:
            here = self.store.scan(self.passages_table, ["source"])["source"].unique().to_pylist()
            return self.missing(lengths, here)

        return TableBuild(
            lengths, lengths, LENGTHS, "parse", "inverted", "sources", PART_SOURCES, missing_ids,
            lambda run: PostingsTask(
                self.worker, analyzer, lengths, postings, self.texts_table, self.passages_table, run.name
            ),
            first=((postings, POSTINGS),), spread=False,
        )  # fmt: skip

    def answers_build(
        self, keys: Mapping[str, str], sources: AnswerSources, again: tuple[str, ...], fresh: bool,
        per_task: int,
    ) -> TableBuild:  # fmt: skip
        """Questions to answers, by the keys of their answers."""

        def work(run: Run) -> TableTask:
            index, memo = searched(self.store, self.recipe), memo_versions(self.store)
            return AnswersTask(self.worker, self.recipe, "answers", run.name, sources, index, memo, run.fresh)

        return TableBuild(
            self.answers_work_id(sources.snapshot), "answers", ANSWERS, "answer", "answered", "questions",
            per_task, lambda: self.unanswered(keys), work, True, again, fresh,
        )  # fmt: skip

    def missing(self, table: str, ids: Sequence[str]) -> Sequence[str]:
        """The ids that a table lacks and that did not fail for good."""
        lost = self.failed(table)
        left = lacked(self.store, self.store.dataset(table), table, ids) if self.store.has(table) else ids
        return [s for s in left if s not in lost] if lost else left

    def failed(self, table: str) -> set[str]:
        """The sources that failed for good for a table of the corpus half."""
        return self._failed(lambda row: row["digest"] == table)

    def _failed(self, chosen: Callable[[Mapping[str, str]], bool]) -> set[str]:
        return {r["id"] for r in self._faults() if chosen(r)}

    def _faults(self) -> list[dict[str, str]]:
        """Rows that failed for good; a row with a transient fault is pending."""
        rows: list[dict[str, str]] = self.store.scan("faults", filter="NOT transient").to_pylist()
        return rows

    def build(self, build: TableBuild, done: RunCounters) -> None:
        """Adds to a table what it lacks: first what killed runs left, then the rest."""
        with self.clock.part("storing"):
            for table, schema in (*build.first, (build.table, build.schema)):
                self.store.ensure(table, schema)
            if build.calls_models:
                done.memo_damaged += merge_memo(self.store).damaged
            self._run_all(build, done)
            if build.calls_models:
                done.memo_damaged += merge_memo(self.store).damaged

    def start(self) -> None:
        """Connects to where tasks run."""
        with self.clock.part("starting"):
            self.connect()

    def _pool(self, verb: Verb) -> Workers:
        with self.clock.part("starting"):  # it may connect
            return self.workers(verb)

    def _run_all(self, build: TableBuild, done: RunCounters) -> None:
        again = dict.fromkeys(build.again)
        for work_id in (again_id(build.work_id), build.work_id):
            if run := begun(self.store, work_id):
                self._finish(run, work_id, build, done)
                for id in run.ids if run.fresh or not build.fresh else ():
                    again.pop(id, None)
        if again:
            self._again(list(again), build, done)
        while ids := build.missing_ids():
            run = begin(self.store, build.work_id, ids, self._per_task(ids, build))
            if self._finish(run, build.work_id, build, done):
                return  # transient failures stay pending, but are not tried again by this run

    def _again(self, ids: list[str], build: TableBuild, done: RunCounters) -> None:
        """Makes rows again, with those that a run before could not do for now."""
        work_id = again_id(build.work_id)
        if (rest := begun(self.store, work_id)) is not None:
            ids = [*rest.ids, *ids]
            begin_rest(self.store, work_id, rest, ids, self._per_task(ids, build))
        per_task = self._per_task(ids, build)
        run = begin(self.store, work_id, ids, per_task, replaces=True, fresh=build.fresh)
        self._finish(run, work_id, build, done)

    def _per_task(self, ids: Sequence[str], build: TableBuild) -> int:
        return self._pool(build.pool).per_task(len(ids), build.max_rows) if build.spread else build.max_rows

    def _finish(self, run: Run, work_id: str, build: TableBuild, done: RunCounters) -> bool:
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
            begin_rest(self.store, work_id, run, rest, build.max_rows)
        else:
            end(self.store, work_id)
        return whole

    def _faults_of(self, run: Run, column: str, transient: bool) -> list[str]:
        """A column of the faults of a run that have passed, or have not."""
        which = f"run = '{run.name}' AND {'' if transient else 'NOT '}transient"
        rows = self.store.scan("faults", columns=[column], filter=which)
        return list(dict.fromkeys(rows[column].to_pylist()))

    def _run(self, run: Run, build: TableBuild, done: RunCounters) -> None:
        """Runs the tasks of a run that no driver finished before."""
        need(self.store, 0, f"what is left of {build.table}")
        here = done_parts(self.store, build.table, run.name)
        for table, _ in build.first:
            if committed(self.store, table, run.name) is None:
                whole = done_parts(self.store, table, run.name)
                here = {part: facts for part, facts in here.items() if part in whole}
        if run.name not in done.tables:
            for facts in here.values():
                done.add(run.name, stage_counts(facts), earlier=True)
        if build.pool == "answer":
            for name, facts in here.items():
                done.share(run.parts[name], stage_counts(facts))
        left = [Task(name, ids) for name, ids in run.parts.items() if name not in here]
        if left:
            self.caps.check(done, self.clock.total())
            self.start()  # what it prints and how long it takes are not the progress's
        backoff = Backoff(ROUNDS_IN_VAIN + 1, self.worker.wait_s)
        rows = sum(len(t.ids) for t in left)
        with self.progress.task(build.done_verb, build.unit, rows) as shown:
            try:
                while left:
                    back = {b.name: b for b in self._round(run, build, done, left, shown)}
                    if len(back) < len(left):
                        backoff.reset()
                    left = [replace(t, suspects=back[t.name].suspects) for t in left if t.name in back]
                    if left:
                        _wait(backoff, back[left[0].name])
                        done.memo_damaged += merge_memo(
                            self.store
                        ).damaged  # what the other worker computed for these rows is cached
            except (CapReached, Unavailable):
                done.save(without=run.name)  # its parts keep their own counts
                raise
        done.save()

    def _round(
        self, run: Run, build: TableBuild, done: RunCounters, tasks: Sequence[Task], shown: ProgressTask
    ) -> Iterator[HandedBack]:
        """Runs tasks once; those that came back."""
        with self.clock.tasks() as busy:
            yield from self._results(run, build, done, tasks, shown, busy)

    def _results(
        self, run: Run, build: TableBuild, done: RunCounters, tasks: Sequence[Task], shown: ProgressTask,
        busy: dict[str, dict[str, float]],
    ) -> Iterator[HandedBack]:  # fmt: skip
        """The same; `busy` gets the seconds of each worker by part of the run."""
        left, results = len(tasks), self.runner(build.pool, build.work(run), tasks)
        ids = {t.name: t.ids for t in tasks}
        try:
            for result in results:
                left -= 1
                if isinstance(result, HandedBack):
                    done.add(f"{run.name} in vain", result.counts, tasks=0)
                    if result.then == "stop":
                        raise Unavailable(result.reason)
                    yield result
                    continue
                done.add(run.name, result.counts)
                if build.pool == "answer":
                    done.share(ids[result.name], result.counts)
                rows = done.rows_by_worker.setdefault(build.pool, {})
                rows[result.worker_name] = rows.get(result.worker_name, 0) + result.ids
                spent = busy.setdefault(result.worker_name, {})
                for part, seconds in result.parts().items():
                    spent[part] = spent.get(part, 0.0) + seconds
                for count in result.counts.values():
                    shown.wrote(count.calls.tokens.generated, count.seconds)
                shown.advance(result.ids)
                if left and (reached := self.caps.reached(done, self.clock.total())):
                    raise CapReached(reached)
        finally:
            getattr(results, "close", nowhere)()  # however it ends, a pool begins no more tasks


def _wait(backoff: Backoff, back: HandedBack) -> None:
    """Waits before another worker gets what one handed back. Raises Unavailable where none could do it."""
    wait_s = backoff.next_s()
    if wait_s is None:
        raise Unavailable(
            f"{back.reason}. {ROUNDS_IN_VAIN + 1} workers tried. What was done is stored, no row of these "
            f"tasks is blamed, and the same command does them when that is put right"
        )
    time.sleep(wait_s)


def _unanswered(question: Question, lost: Mapping[str, Any] | None) -> Question:
    if lost is None:
        return question
    fault = Fault(lost["step"], lost["reason"], lost["detail"], lost["transient"])
    outcome: Outcome = "" if fault.transient else "fault"
    return Question(
        question.id, question.text, outcome=outcome, faults=(fault,), citations=question.citations
    )


def _final_last(faults: pa.Table) -> list[dict[str, Any]]:
    """Rows of `faults`, transient ones first: a row may fail in passing often, and for good once."""
    rows: list[dict[str, Any]] = faults.to_pylist()
    return sorted(rows, key=lambda r: not r["transient"])
