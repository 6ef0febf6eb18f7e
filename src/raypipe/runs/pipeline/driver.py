"""Driver of a recipe over a store: indexes the corpus and answers questions, for missing rows only.

`corpus_builds` and this module find the missing rows; `table_build` has tasks compute them, then commits. The
runner decides where tasks run: in workers on Ray (`runs.cluster`) or in this process (`tasks.inline`). Each
store has one driver at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.progress import Progress
from raypipe.core.records import Fault, Outcome, Question, digest
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline import recipe_tables
from raypipe.runs.pipeline.answer_operators import AnswersTask
from raypipe.runs.pipeline.corpus_builds import CorpusBuilds, failed_ids
from raypipe.runs.pipeline.counters import NO_CAPS, Caps, RunCounters, WallClock
from raypipe.runs.pipeline.dead_letters import final_last
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.recipe_tables import AnswerSources, answer_sources
from raypipe.runs.pipeline.table_build import TableBuild, TableBuilder, again_id, no_connection, single_worker
from raypipe.runs.pipeline.tasks import Runner, TableTask, Verb, WorkerConfig, Workers
from raypipe.store import ANSWERS, Store, TableRun, begun
from raypipe.store.housekeeping import abandon
from raypipe.store.ids import Ids, stand_in
from raypipe.store.inverter import Inverter, merge_segments
from raypipe.store.memo.disk import memo_versions
from raypipe.store.sources import all_sources, by_source

ANSWERS_AT_ONCE = 100  # answers per read; an answer of fifty citations and twenty hits has some 40 kB

SNAPSHOT_QUESTIONS = 128
"""Lower bound on `TaskSizes.questions` if a recipe calls only embedders and searches the whole store. A
question over 400,000 vectors of 384 numbers takes 1.9 ms in batches of 256, 3.3 ms in batches of 50."""


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """Most rows of a task. Each task gets one completion record. The sizes are part of no digest."""

    sources: int  # most sources of a task
    questions: int  # most questions of a task


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A recipe, the store that it fills, and the place where its tasks run."""

    store: Store
    recipe: Recipe
    worker: WorkerConfig
    sizes: TaskSizes
    runner: Runner
    progress: Progress
    workers: Callable[[Verb], Workers] = single_worker  # called only if rows are missing: may connect to Ray
    connect: Callable[[], object] = no_connection  # connects to Ray; called before the first task
    clock: WallClock = field(default_factory=WallClock)  # wall time by part of the run
    caps: Caps = NO_CAPS  # no task begins once a cap is reached
    # Returns whether workers that parse and workers that embed run at the same time. Called only if rows are
    # missing, since it may connect to Ray. None: they never do.
    streams: Callable[[], bool] | None = None
    prestart: Callable[[], object] = no_connection  # starts workers before the missing rows are known
    stats: Sequence[str] = ()  # Ray Data's statistics of each graph that ran
    twice: int = 0  # questions whose chats are sent again, one by one, to count replies that differ

    def index(self, questions: Iterable[Question] | None, done: RunCounters | None = None) -> RunCounters:
        """Fills the tables of texts, passages and vectors for every source that the questions may search.
        `questions` None: for every source in the store, of the kinds that the recipe parses. Also fills
        postings (the index of words) for the whole store, if they exist or a question searches the whole
        store. Adds the counts to `done`. Raises errors of stages; finished tasks are kept."""
        done = done or RunCounters()
        questions = None if questions is None else list(questions)  # iterated twice
        recipe_tables.require_fields(self.store, self.recipe, questions)
        wanted, build = self.sources(questions), self.builder.build

        def streams() -> bool:
            with self.clock.part("starting"):  # it may connect to Ray
                return self.streams is not None and self.streams()

        for line in self.recipe.unread():
            self.progress.say(line)
        with driving(self.store, f"index {self.recipe.name}"):
            for table in self.corpus.tables(wanted, streams if self.streams else None):
                build(table, done)
            for analyzer, (postings, lengths) in recipe_tables.postings_tables(self.recipe).items():
                # Existing postings are kept complete: if some are missing, a search by words reads all texts.
                if self.store.has(lengths) or self.searches_all(questions):
                    build(self.corpus.postings(analyzer, postings, lengths), done)
                    if not begun(self.store, lengths):
                        texts, passages = self.recipe.texts_table, self.recipe.passages_table
                        inverter = Inverter(self.store, texts, passages, analyzer)
                        merge_segments(self.store, postings, lengths, inverter)
        return done

    def answer(
        self,
        questions: Iterable[Question],
        fresh: bool = False,
        done: RunCounters | None = None,
        renew: Collection[str] = (),
    ) -> RunCounters:
        """Answers each question that has no stored answer by this recipe with the same evidence (all that a
        question may search). Leaves out dead letters: questions that failed for good. Adds the counts of the
        work to `done`. `questions` is iterated several times.

        With `fresh`, answers all questions, and calls language models even for cached replies; cached vectors
        and scores are used. `renew` has ids of questions to answer again, with the cache. The commit of new
        answers removes the old answers. After a kill the next run finishes the work, even without `fresh`."""
        done = done or RunCounters()
        work_id = self.answers_work_id(self.snapshot())
        # Killed runs are finished first, so the evidence of their questions is needed, too.
        runs = [run for id in (again_id(work_id), work_id) if (run := begun(self.store, id))]
        given = {q.id for q in questions} if runs else ()
        others = self.questions([id for run in runs for id in run.ids if id not in given])
        sources = self.answer_sources(chain(questions, others))
        # Questions with the same text make equal calls, so they go into the same task.
        numbers = dict[int, int]()
        groups = {q.id: numbers.setdefault(hash(q.text), len(numbers)) for q in questions}
        keys = self.keys(questions, sources)
        keys = dict(sorted(keys.items(), key=lambda item: groups[item[1]]))

        def work(run: TableRun) -> TableTask:
            searched = recipe_tables.searched(self.store, self.recipe), memo_versions(self.store)
            twice = frozenset(run.ids[: self.twice])
            return AnswersTask(self.worker, self.recipe, run.name, sources, *searched, run.fresh, twice)

        kinds = {m.kind for stage in self.recipe.question for m in asked_models(stage.step)}
        most = self.sizes.questions
        # The matrix product of many questions costs little more than that of one.
        if kinds <= {"embedder"} and self.searches_all(questions):
            most = max(most, SNAPSHOT_QUESTIONS)
        build = TableBuild(
            work_id,
            "answers",
            ANSWERS,
            "answer",
            "answered",
            "questions",
            most,
            lambda: self.unanswered(keys),
            work,
            calls_models=True,
            again=tuple(id for id in keys.values() if fresh or id in renew),
            fresh=fresh,
            groups=groups,
        )
        with driving(self.store, f"answer {self.recipe.name}"):
            if fresh:
                for id in (work_id, again_id(work_id)):
                    if (unfinished := begun(self.store, id)) and not unfinished.fresh:  # uses cached replies
                        abandon(self.store, id)
                self.store.forget("faults", "digest", list(keys))
            self.builder.build(build, done)
        return done

    @property
    def corpus(self) -> CorpusBuilds:
        return CorpusBuilds(self.store, self.recipe, self.worker, self.sizes.sources)

    def start(self) -> None:
        self.builder.start()

    def start_early(self) -> None:
        """Connects to Ray and starts workers. They load models while files are read and work is planned."""
        self.start()
        self.prestart()

    @property
    def builder(self) -> TableBuilder:
        how = self.workers, self.connect, self.clock, self.caps, self.worker
        return TableBuilder(self.store, self.runner, self.progress, *how)

    def searches_all(self, questions: Iterable[Question] | None) -> bool:
        """Returns whether the recipe or a question searches the whole store. `questions` None: True."""
        return self.recipe.searches_all() or questions is None or any(q.sources() is None for q in questions)

    def unfinished_again(self) -> TableRun | None:
        """Returns the run of a killed or failed command that answered questions again; None: no such run."""
        return begun(self.store, again_id(self.answers_work_id(self.snapshot())))

    def questions(self, ids: Sequence[str]) -> Iterator[Question]:
        for some in batches(ids, ANSWERS_AT_ONCE):
            yield from arrow.question.records(self.store.rows("questions", "id", some))

    def answers_work_id(self, snapshot: str) -> str:
        """Returns a name for the work of answering from the sources that have the digest `snapshot`."""
        return f"answers-{digest(self.recipe.digest(), snapshot)}"

    def answer_sources(self, questions: Iterable[Question]) -> AnswerSources:
        """Returns the present evidence of questions: sources to search, and sources missing in a table."""
        questions = list(questions)  # iterated twice
        wanted, whole = self.sources(questions), self.searches_all(questions)
        lacks = recipe_tables.lacking(self.store, self.recipe, wanted, {}, whole)
        return answer_sources(self.snapshot(), by_source(lacks), self.recipe)

    def keys(self, questions: Iterable[Question], sources: AnswerSources) -> dict[str, str]:
        """Maps the key of each question's answer to the question's id."""
        recipe = self.recipe.digest()
        return {sources.key(recipe, q): q.id for q in questions}

    def unanswered(self, keys: Mapping[str, str]) -> list[str]:
        """Returns those ids in `keys` (answer key -> id) that have no answer. Leaves out dead letters."""
        missing = self.store.missing("answers", "key", list(keys))
        lost = failed_ids(self.store, keys)
        return [keys[k] for k in missing if keys[k] not in lost]

    def answers(
        self, questions: Iterable[Question], sources: AnswerSources | None = None
    ) -> Iterator[Question]:
        """Yields the stored answers of these questions, in order. A dead letter (a question with a final
        fault) has the outcome fault. A question without an answer has the outcome "", with its last transient
        fault if there is one. `sources` is the evidence; None: iterates `questions` first, to compute it."""
        sources, recipe = sources or self.answer_sources(questions), self.recipe.digest()
        for some in batches(questions, ANSWERS_AT_ONCE):
            keys = [sources.key(recipe, q) for q in some]
            rows = self.store.rows("answers", "key", keys)
            found = dict(zip(arrow.id_texts(rows["key"]), arrow.question.records(rows), strict=True))
            lost = {r["digest"]: r for r in final_last(self.store.rows("faults", "digest", keys))}
            yield from (found.get(k) or _unanswered(q, lost.get(k)) for k, q in zip(keys, some, strict=True))

    def failed_sources(self, among: set[str] | None) -> list[dict[str, Any]]:
        """Returns rows of `faults` for sources that are missing in a table of the recipe: one fault per table
        and source, a final fault if there is one. `among` has the ids of the sources to report; None: all."""
        rows = []
        for table in recipe_tables.table_names(self.store, self.recipe):
            faults = {r["id"]: r for r in final_last(self.store.rows("faults", "digest", [table]))}
            missing = self.store.missing(table, "source", list(faults))
            rows += [faults[id] for id in missing if among is None or id in among]
        return rows

    def snapshot(self) -> str:
        return recipe_tables.snapshot_digest(self.store, self.recipe)

    def sources(self, questions: Iterable[Question] | None) -> Ids:
        """Returns the ids of the sources to index, of the kinds that the recipe parses: all sources in the
        store if a question searches it or `questions` is None, else the cited sources in citation order."""
        every = all_sources(self.store, self.recipe.source_kinds())
        if questions is None:
            return every
        cited = dict[str, None]()
        for q in questions:
            if (sources := q.sources()) is None or self.recipe.searches_all():
                return every
            cited.update(dict.fromkeys(sources))
        named = Ids.of(cited)
        return named.where(stand_in(named.array, every.array))


def _unanswered(question: Question, lost: Mapping[str, Any] | None) -> Question:
    if lost is None:
        return question
    fault = Fault(lost["step"], lost["reason"], lost["detail"], lost["transient"])
    outcome: Outcome = "" if fault.transient else "fault"
    kept = {name: getattr(question, name) for name in ("id", "text", "citations", "turns")}
    return Question(**kept, faults=(fault,), outcome=outcome)
