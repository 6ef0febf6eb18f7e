"""A data set through a recipe over a store: index the corpus, answer the questions; what is missing, no more.

Which rows a table lacks is in `corpus_builds` and here; `table_build` has tasks run and commits. The runner
decides where: workers on Ray (`cluster`) or this process (`tasks.inline`). One driver at a time.
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
from raypipe.runs.pipeline.recipe_tables import AnswerSources, ann_names, answer_sources
from raypipe.runs.pipeline.table_build import TableBuild, TableBuilder, again_id, alone, nowhere
from raypipe.runs.pipeline.tasks import Runner, TableTask, Verb, WorkerConfig, Workers
from raypipe.store import ANSWERS, Store, TableRun, begun
from raypipe.store.ids import Ids, stand_in
from raypipe.store.inverter import Inverter, merge_segments
from raypipe.store.keep import abandon
from raypipe.store.memo.disk import memo_versions
from raypipe.store.sources import all_sources, by_source, corpus_sum

ANSWERS_AT_ONCE = 100  # read in one look: some 40 kB each with fifty citations and twenty hits

SNAPSHOT_QUESTIONS = 128  # of a task; over 400,000 x 384 a question takes 1.9 ms at 256 and 3.3 at 50


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """Work that one completion record stands for at most; in no digest."""

    sources: int
    questions: int


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
    # Whether workers that parse and workers that embed run at the same time; asked only while something is
    # missing, since it may connect. None: they never do.
    streams: Callable[[], bool] | None = None
    ahead: Callable[[], object] = nowhere  # starts workers for tasks that are still to be found
    stats: Sequence[str] = ()  # of each graph that ran, as Ray Data says it
    twice: int = 0  # questions of a run whose chats engines are asked again, alone

    def index(self, questions: Iterable[Question] | None, done: RunCounters | None = None) -> RunCounters:
        """Brings the tables of the corpus half up to date with every source that these questions may search
        (None: every source in the store), and counts what it does on `done`. Raises what a stage raises;
        whole tasks stay."""
        done = done or RunCounters()
        questions = None if questions is None else list(questions)  # read twice
        recipe_tables.require_fields(self.store, self.recipe, questions)
        wanted, build = self.sources(questions), self.builder.build

        def streams() -> bool:
            with self.clock.part("starting"):  # it may connect
                return self.streams is not None and self.streams()

        for line in self.recipe.unread():
            self.progress.say(line)
        with driving(self.store, f"index {self.recipe.name}"):
            for table in self.corpus.tables(wanted, streams if self.streams else None):
                build(table, done)
            for analyzer, (postings, lengths) in recipe_tables.postings_tables(self.recipe).items():
                # Once they are there, they keep up: a search of the whole store reads them alone.
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
        """Answers the questions that have no answer yet from this recipe and this evidence, and counts what
        it does on `done`. `fresh`: all of them, and language models are called again whatever is cached;
        vectors and scores are not computed again. `renew`: ids of those that are answered again, with what is
        cached. Old answers go in the commit that brings the new ones; after a kill the next run, whether it
        says `fresh` or not, does what is left. `questions` is iterated several times."""
        done = done or RunCounters()
        work_id = self.answers_work_id(self.snapshot())
        # Killed runs are finished first: these questions are theirs, too.
        runs = [run for id in (again_id(work_id), work_id) if (run := begun(self.store, id))]
        here = {q.id for q in questions} if runs else ()
        others = self.questions([id for run in runs for id in run.ids if id not in here])
        sources = self.answer_sources(chain(questions, others))
        # Questions of one text make equal calls, so one task has them all.
        numbers = dict[int, int]()
        groups = {q.id: numbers.setdefault(hash(q.text), len(numbers)) for q in questions}
        keys = self.keys(questions, sources)
        keys = dict(sorted(keys.items(), key=lambda item: groups[item[1]]))

        def work(run: TableRun) -> TableTask:
            index, memo = recipe_tables.searched(self.store, self.recipe), memo_versions(self.store)
            twice = frozenset(run.ids[: self.twice])
            return AnswersTask(
                self.worker, self.recipe, "answers", run.name, sources, index, memo, run.fresh, twice
            )

        build = TableBuild(
            work_id,
            "answers",
            ANSWERS,
            "answer",
            "answered",
            "questions",
            self._per_answer_task(questions),
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
                    if (left := begun(self.store, id)) and not left.fresh:  # of cached replies
                        abandon(self.store, id)
                self.store.forget("faults", "digest", list(keys))
            self.builder.build(build, done)
        return done

    @property
    def corpus(self) -> CorpusBuilds:
        return CorpusBuilds(self.store, self.recipe, self.worker, self.sizes.sources)

    def start(self) -> None:
        self.builder.start()

    def start_ahead(self) -> None:
        """As `start`. Workers start, and load models, while files are read and the work is planned."""
        self.start()
        self.ahead()

    @property
    def builder(self) -> TableBuilder:
        how = self.workers, self.connect, self.clock, self.caps, self.worker
        return TableBuilder(self.store, self.runner, self.progress, *how)

    def _per_answer_task(self, questions: Iterable[Question]) -> int:
        """Returns how many questions make a task at most: more where all that they cost is a search of the
        whole store, since a product of many costs little more than that of one."""
        kinds = {m.kind for stage in self.recipe.question for m in asked_models(stage.step)}
        if kinds <= {"embedder"} and self.searches_all(questions):
            return max(self.sizes.questions, SNAPSHOT_QUESTIONS)
        return self.sizes.questions

    def searches_all(self, questions: Iterable[Question] | None) -> bool:
        """Returns whether one of the questions (None: of any) is searched for in the whole store: it brings
        no sources of its own, or the recipe says so."""
        return self.recipe.searches_all() or questions is None or any(q.sources() is None for q in questions)

    def renewing(self) -> TableRun | None:
        """Returns what a command that answered questions again has left: it was killed, or met trouble."""
        return begun(self.store, again_id(self.answers_work_id(self.snapshot())))

    def questions(self, ids: Sequence[str]) -> Iterator[Question]:
        for some in batches(ids, ANSWERS_AT_ONCE):
            yield from arrow.question.records(self.store.rows("questions", "id", some))

    def answers_work_id(self, snapshot: str) -> str:
        """Names the work of answering from one snapshot."""
        return f"answers-{digest(self.recipe.digest(), snapshot)}"

    def answer_sources(self, questions: Iterable[Question]) -> AnswerSources:
        """Returns what these questions are answered from, as the tables are now."""
        asked = list(questions)  # read twice
        lacks = recipe_tables.lacking(
            self.store, self.recipe, self.sources(asked), {}, self.searches_all(asked)
        )
        return answer_sources(self.snapshot(), by_source(lacks), self.recipe)

    def keys(self, questions: Iterable[Question], sources: AnswerSources) -> dict[str, str]:
        """Key of its answer -> question id."""
        recipe = self.recipe.digest()
        return {sources.key(recipe, q): q.id for q in questions}

    def unanswered(self, keys: Mapping[str, str]) -> list[str]:
        """Ids of the questions that have no answer under these keys (`keys`) and did not fail for good."""
        left = self.store.missing("answers", "key", list(keys))
        lost = failed_ids(self.store, keys)
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
            found = dict(zip(arrow.id_texts(rows["key"]), arrow.question.records(rows), strict=True))
            lost = {r["digest"]: r for r in final_last(self.store.rows("faults", "digest", keys))}
            yield from (found.get(k) or _unanswered(q, lost.get(k)) for k, q in zip(keys, some, strict=True))

    def failed_sources(self, among: set[str] | None) -> list[dict[str, Any]]:
        """The rows of `faults` of sources (None: of all) that the corpus half could not do, the last one of
        each source; one that was done since is not among them."""
        rows = []
        for table in recipe_tables.table_names(self.store, self.recipe):
            last = {r["id"]: r for r in final_last(self.store.rows("faults", "digest", [table]))}
            left = self.store.missing(table, "source", list(last))
            rows += [last[id] for id in left if among is None or id in among]
        return rows

    def snapshot(self) -> str:
        """Names all that the store can search: the corpus of a question without citations, the approximate
        indexes that the recipe searches it by, the files whose dates it reads, and the fields it tests."""
        of = self.store, self.recipe
        read = ann_names(*of) + recipe_tables.files_read(*of) + recipe_tables.fields_read(*of)
        return digest(corpus_sum(self.store), *read)

    def sources(self, questions: Iterable[Question] | None) -> Ids:
        """Ids of the sources to index, of the kinds that the recipe parses: those cited in citation order, or
        all of the store."""
        kinds, cited = self.recipe.source_kinds(), dict[str, None]()
        for q in questions if questions is not None else ():
            if (sources := q.sources()) is None or self.recipe.searches_all():
                return all_sources(self.store, kinds)
            cited.update(dict.fromkeys(sources))
        if questions is None:
            return all_sources(self.store, kinds)
        named = Ids.of(cited)
        return named.where(stand_in(named.array, all_sources(self.store, kinds).array))


def _unanswered(question: Question, lost: Mapping[str, Any] | None) -> Question:
    if lost is None:
        return question
    fault = Fault(lost["step"], lost["reason"], lost["detail"], lost["transient"])
    outcome: Outcome = "" if fault.transient else "fault"
    kept = {name: getattr(question, name) for name in ("id", "text", "citations", "turns")}
    return Question(**kept, faults=(fault,), outcome=outcome)
