"""Tasks: each reads some rows of a store, runs one half of a recipe over them and stores the results.

Four kinds, one for each table that a recipe fills: texts, passages, vectors, answers. Each is a frozen record
of plain values that any process can be handed; `open` makes it ready once, then it runs task after task.
Knows the store and how a recipe is run; knows nothing of Ray, nor of which tasks there are.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.arrow import SPANS
from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.core.protocols import Index, Model
from raypipe.core.records import Fault, Question
from raypipe.core.retry import Backoff, until_available
from raypipe.memo.disk import StoreMemo
from raypipe.models.kit import LocalKit
from raypipe.models.load import Backend, EndpointAddress, EngineLimits
from raypipe.models.products import product_on
from raypipe.models.warm_up import compute_once
from raypipe.pipeline.answer_sources import AnswerSources
from raypipe.pipeline.dead_letters import (
    Compute,
    FailedRow,
    FailedRows,
    Probe,
    Suspects,
    Unproven,
    bisected,
    failed_rows,
    faults_table,
)
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters, fine
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.store import ANSWERS, Store, with_chunkless, write_part
from raypipe.store.index import IndexSpec, LanceIndex

Verb: TypeAlias = Literal["parse", "embed", "answer"]
"""What a pool of workers does; the names of the pools in a cluster file."""


TRIES = 5  # of what a store or service refuses, in one task: 15 s with the waits between them


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes of one pool, each with its own memory of what it computed."""

    count: int = 1
    min_rows: int = 1  # of a task; one of fewer fills no batch, or takes longer to store than to compute

    def per_task(self, rows: int, most: int) -> int:
        """How many of the missing rows make a task: at most `most`, and few enough for two to four tasks a
        worker, so that all of them end at about the same time. But not fewer than `min_rows`, as long as
        there is one task for each worker. One worker shares with no other and takes the largest tasks.

        >>> [Workers(n).per_task(10, 100) for n in (1, 2, 8)]
        [100, 2, 1]
        >>> Workers(2).per_task(10_000, 100), Workers(2, min_rows=16).per_task(73, 100)
        (100, 16)
        >>> Workers(8, min_rows=32).per_task(40, 1000)
        5
        """
        if self.count == 1:
            return most
        whole = math.ceil(rows / self.count)
        return min(most, max(math.ceil(rows / (4 * self.count)), min(self.min_rows, whole)))


@dataclass(frozen=True, slots=True)
class Task:
    """Some rows of the work on one table."""

    name: str
    ids: tuple[str, ...]  # of sources, or of questions
    failed: Mapping[str, FailedRow] = field(default_factory=dict)  # id -> why it is not tried any more
    trial: bool = False  # True: only to see whether it can be done; nothing is stored but what models said
    suspects: Suspects | None = None  # what a worker knows that could not do it; None: no worker had it


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Counts of one finished task."""

    name: str
    ids: int  # rows of the task
    rows: int  # rows stored in the table
    faults: int  # ids that failed
    counts: Mapping[str, StageCounters] = field(default_factory=dict)  # by stage
    worker_name: str = ""  # node, process and GPUs; "": this process
    seconds: float = 0.0  # that the worker took for it

    def parts(self) -> dict[str, float]:
        """These seconds by part of the run (`wall_clock.PARTS`)."""
        computing = sum(c.seconds for c in self.counts.values())
        loading = sum(c.loading for c in self.counts.values())
        storing = max(0.0, self.seconds - computing - loading)
        return {"computing": computing, "loading": loading, "storing": storing}


@dataclass(frozen=True, slots=True)
class HandedBack:
    """A task that a worker could not do, through no proven fault of its rows."""

    name: str
    reason: str
    then: Literal[
        "keep", "replace", "stop"
    ]  # the worker, the worker, the run: the store or a service is down
    suspects: Suspects
    counts: Mapping[str, StageCounters]  # what the attempt cost, by stage


def stage_counts(facts: Mapping[str, Any]) -> dict[str, StageCounters]:
    """Counters by stage, from the facts of a completion record."""
    return {name: StageCounters.of(tree) for name, tree in facts["counts"].items()}


RunTask: TypeAlias = Callable[[Task], Awaitable[TaskResult | HandedBack]]


class TableTask(Protocol):
    """The work on one table, as plain values: a frozen dataclass."""

    @property
    def worker(self) -> WorkerConfig: ...

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """`kit`: that of the process, made by the worker's configuration; None: the work has its own."""
        ...


def with_worker(work: TableTask, **changes: Any) -> TableTask:
    """The same work with some fields of its worker changed."""
    changed: TableTask = replace(cast(Any, work), worker=replace(work.worker, **changes))
    return changed


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of a worker process: everything that decides speed and no result."""

    store: str  # URI
    backend: Backend
    device: str
    threads: int  # of a model on a CPU
    # Model identity -> names in Ray; None: this process starts an engine of its own.
    engines: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    endpoints: Mapping[str, EndpointAddress] = field(default_factory=dict)  # by the names of models.yaml
    engine_limits: EngineLimits = field(default_factory=EngineLimits)  # of an engine that this process starts
    question_timeout_s: float | None = None  # for each question, from the start of its task; None: none
    wait_s: float = 1.0  # before the second try of what is unavailable, doubling (`TRIES` in all)

    def kit(self, index: Index | None) -> LocalKit:
        return LocalKit(
            index, self.backend, self.device, self.threads,
            engines=self.engines, endpoints=self.endpoints, engine_limits=self.engine_limits,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """A table task made ready in one process."""

    counts: dict[str, StageCounters]  # by stage; they grow while it computes
    compute: Compute
    digest_of: Callable[[str], str]  # id of a row -> what names the work on it, in the table `faults`
    kit: LocalKit


@dataclass(frozen=True, slots=True)
class RecipeTask(ABC):
    """A table task that runs stages of a recipe; each kind says what it computes for some ids."""

    worker: WorkerConfig
    recipe: Recipe
    table: str  # that it fills
    run: str

    @abstractmethod
    def opened(self, store: Store, kit: LocalKit) -> Opened: ...

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Raises Unavailable where the store stays so for all tries, and StoreError."""

        async def opened() -> tuple[Store, Opened]:
            store = Store.open(self.worker.store)
            return store, self.opened(store, kit or self.worker.kit(None))

        store, work = await until_available(opened, self._backoff())
        passed = 0  # rows that this process did

        async def run_task(task: Task) -> TaskResult | HandedBack:
            nonlocal passed
            try:
                done = await self._done(store, work, task, passed > 0)
            except Unavailable as e:
                counts = {name: count.take() for name, count in work.counts.items()}
                for count in counts.values():  # another worker counts the rows
                    count.in_vain(StageCounters())
                if isinstance(e, Unproven):
                    return HandedBack(task.name, str(e), "keep", Suspects(e.rows, passed > 0), counts)
                then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
                return HandedBack(task.name, str(e), then, Suspects(witnessed=passed > 0), counts)
            passed += done.ids - done.faults
            return done

        return run_task

    def _backoff(self) -> Backoff:
        return Backoff(TRIES, self.worker.wait_s)

    async def _done(self, store: Store, work: Opened, task: Task, witnessed: bool) -> TaskResult:
        """Computes a task and stores its part."""
        start = time.perf_counter()
        left = tuple(i for i in task.ids if i not in task.failed)
        probe = _unprobed if task.trial else self._probe(work)
        done, broken = await bisected(
            work.compute, left, work.counts, probe, self._backoff(), task.suspects, witnessed or task.trial
        )
        rows = pa.concat_tables([t for t, _ in done])
        failed = [(id, fault, 1) for _, some in done for id, fault in some]
        failed += [(i, asdict(x.fault), x.attempts) for i, x in {**broken, **task.failed}.items()]
        if not task.trial:

            async def write() -> None:
                of = [(id, fault, attempts, work.digest_of(id)) for id, fault, attempts in failed]
                write_part(store, "faults", self.run, task.name, faults_table(of, self.run), {})
                facts = {"counts": {name: asdict(count) for name, count in work.counts.items()}}
                write_part(store, self.table, self.run, task.name, rows, facts)

            await until_available(write, self._backoff())
        counts = {name: count.take() for name, count in work.counts.items()}
        took = time.perf_counter() - start
        return TaskResult(task.name, len(task.ids), rows.num_rows, len(failed), counts, seconds=took)

    def _probe(self, work: Opened) -> Probe:
        """Sends one small request to each model of a stage, counted like any other, past the memo."""
        steps = {s.name: s.step for s in (*self.recipe.corpus, *self.recipe.question)}

        async def probe(stage: str) -> None:
            for model in asked_models(steps[stage]):
                calls = work.counts[stage].calls
                {"embedder": calls.vectors, "reranker": calls.scores, "generator": calls.replies}[
                    model.kind
                ].computed += 1
                try:
                    await compute_once(work.kit, model)
                except Exception as e:
                    raise WorkerBroken(f"model {model.name!r} computes nothing here any more: {e}") from e

        return probe


async def _unprobed(stage: str) -> None:
    """A row that is tried alone is judged with the others of its task."""


def _without_faults(rows: pa.Table) -> pa.Table:
    """Rows of the store as a corpus step takes them: with a column of faults, all null."""
    return rows.append_column("fault", arrow.fault_column([None] * rows.num_rows))


@dataclass(frozen=True, slots=True)
class TextsTask(RecipeTask):
    """Sources through the stages before the split."""

    def opened(self, store: Store, kit: LocalKit) -> Opened:
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            rows = _in_order(store.rows("sources", "id", ids), "id", ids)
            texts = await corpus.texts(arrow.corpus_table(arrow.source.records(rows)))
            return fine(texts).drop(["fault"]), failed_rows(texts)

        return Opened(corpus.counts, compute, lambda id: self.table, kit)


@dataclass(frozen=True, slots=True)
class PassagesTask(RecipeTask):
    """Texts through the split."""

    texts: str  # table they are read from

    def opened(self, store: Store, kit: LocalKit) -> Opened:
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            texts = _in_order(store.rows(self.texts, "source", ids), "source", ids)
            chunks = await corpus.passages(_without_faults(texts))
            failed = failed_rows(chunks)
            kept = pa.array([i for i in ids if i not in dict(failed)], pa.string())
            return with_chunkless(fine(chunks).select(SPANS), kept), failed

        return Opened(corpus.counts, compute, lambda id: self.table, kit)


@dataclass(frozen=True, slots=True)
class VectorsTask(RecipeTask):
    """Chunks through one embedder. Texts that it ever embedded come from the memo."""

    texts: str  # table
    passages: str  # table
    model: Model
    memo: Mapping[str, int]  # memo table -> pinned version

    def opened(self, store: Store, kit: LocalKit) -> Opened:
        memo = StoreMemo(self.worker.store, self.memo)
        kit.expect(m for s in self.recipe.question for m in asked_models(s.step))  # in this same process
        corpus = CorpusExecutor(self.recipe, kit, memo, kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            vectors = await corpus.vectors(chunks_of(store, self.texts, self.passages, ids), self.model)
            return fine(vectors).select([*SPANS, "vector"]), failed_rows(vectors)

        return Opened(corpus.counts, compute, lambda id: self.table, kit)


def chunks_of(store: Store, texts: str, passages: str, ids: tuple[str, ...]) -> pa.Table:
    """The chunks of some sources with their text, as the split put them out."""
    text_of = dict(
        zip(*store.rows(texts, "source", ids, ["source", "text"]).to_pydict().values(), strict=True)
    )
    spans = store.rows(passages, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    return _without_faults(spans.append_column("chunk_text", chunk_text))


@dataclass(frozen=True, slots=True)
class AnswersTask(RecipeTask):
    """Questions through the question half."""

    sources: AnswerSources  # what the questions are answered from
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version
    fresh: bool = False  # True: language models are asked again, whatever the memo has of them

    def opened(self, store: Store, kit: LocalKit) -> Opened:
        memo = StoreMemo(self.worker.store, self.memo, self.fresh)
        kit = kit.with_index(LanceIndex(self.index, product_on(self.worker.device)))
        ask = QuestionExecutor(self.recipe, kit, memo, loading_s=kit.loading_s)
        recipe = self.recipe.digest()

        keys: dict[str, str] = {}  # question id -> key of its answer

        def questions_of(ids: tuple[str, ...]) -> list[Question]:
            rows = _in_order(store.rows("questions", "id", ids), "id", ids)
            questions = arrow.question.records(rows)
            keys.update({q.id: self.sources.key(recipe, q) for q in questions})
            return questions

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            questions = questions_of(ids)
            answered = await ask(due_within(questions, self.worker.question_timeout_s))
            # With a transient fault or an omitted stage no answer is stored: the row stays pending.
            complete = [_is_complete(q) for q in answered]
            of = [self.sources.row(q) for q in questions]  # steps may narrow the citations
            kept = [(keys[q.id], r, q) for r, q, c in zip(of, answered, complete, strict=True) if c]
            failed = [q for q, c in zip(answered, complete, strict=True) if not c]
            return answers_table(kept, recipe), [(q.id, asdict(f)) for q in failed for f in _faults(q)[:1]]

        def key_of(id: str) -> str:
            if id not in keys:
                questions_of((id,))
            return keys[id]

        return Opened(ask.counts, compute, key_of, kit)


def _is_complete(question: Question) -> bool:
    """Whether its answer may be stored."""
    broken = question.outcome == "fault" or any(f.transient for f in question.faults)
    return not broken and not question.degraded


def _faults(question: Question) -> tuple[Fault, ...]:
    """The faults of an incomplete question; those of an omitted stage are its reply's."""
    known = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    omitted = [Fault(s, "omitted", "a service was unavailable", True) for s in question.degraded]
    return question.faults or tuple(known) or tuple(omitted)


def due_within(questions: list[Question], seconds: float | None) -> list[Question]:
    """The questions with a deadline that many seconds from now."""
    if seconds is None:
        return questions
    due = time.time() + seconds
    return [replace(q, due=due) for q in questions]


def answers_table(rows: list[tuple[str, str, Question]], recipe: str) -> pa.Table:
    """(key, row key, answered question) -> rows of the table `answers`."""
    table = arrow.question.table(q for _, _, q in rows)
    columns = {
        "key": pa.array([k for k, _, _ in rows], pa.string()),
        "recipe": pa.array([recipe] * len(rows), pa.string()),
        "row": pa.array([r for _, r, _ in rows], pa.string()),
        **{name: table[name] for name in table.schema.names},
    }
    return pa.table(columns, schema=ANSWERS)


def _in_order(rows: pa.Table, column: str, ids: tuple[str, ...]) -> pa.Table:
    """The rows in the order of the ids; ids without a row have none."""
    place = {id: i for i, id in enumerate(rows[column].to_pylist())}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))
