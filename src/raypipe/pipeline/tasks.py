"""One part of work: reads some rows of a store, runs one half of a recipe over them, stores what came out.

Four kinds, one for each table that a recipe fills: texts, passages, vectors, answers. Each is a frozen record
of plain values that any process can be handed; `open` makes it ready once, then it does part after part.
Knows the store and how a recipe is run; knows nothing of Ray, nor of which parts there are.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.errors import RaypipeError
from raypipe.core.protocols import Index, Model
from raypipe.core.records import Fault, Question, digest
from raypipe.memo.disk import StoreMemo
from raypipe.models.kit import LocalKit
from raypipe.models.load import EndpointAddress, Engine, EngineLimits
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters, StageError, fine
from raypipe.recipes.recipe import Recipe, row_key
from raypipe.store import ANSWERS, FAULTS, Store, with_chunkless, write_part
from raypipe.store.index import IndexSpec, LanceIndex

SPANS = ["source", "start", "end", "parent_start", "parent_end"]


Verb: TypeAlias = Literal["parse", "embed", "answer"]
"""What a pool of workers does; the names of the pools in a cluster file."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes of one pool, each with its own memory of what it asked."""

    count: int = 1
    min_rows: int = 1  # rows of a part; one of fewer fills no batch, or takes longer to store than to compute

    def per_task(self, rows: int, most: int) -> int:
        """How many of the missing rows make a part: at most `most`, and few enough for two to four parts a
        worker, so that all of them end at about the same time. But not fewer than `least`, as long as there
        is one part for each worker. One worker shares with no other and takes the largest parts.

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
    """Some rows of the work to do."""

    name: str
    ids: tuple[str, ...]  # of sources, or of questions
    failed: Mapping[str, FailedRow] = field(default_factory=dict)  # id -> why it is not even tried any more
    trial: bool = False  # True: only to see whether it can be done; nothing is stored but what models said


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that broke whoever worked on it."""

    fault: Fault
    attempts: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What doing a part came to."""

    name: str
    ids: int  # rows that the part was asked to do
    rows: int  # rows stored in the table
    faults: int  # ids that could not be done
    counts: Mapping[str, StageCounters] = field(default_factory=dict)  # by stage
    worker_name: str = ""  # who did it: node, process and GPUs; "": this process

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TaskResult:
        tree = json.loads(text)
        return cls(**{**tree, "counts": stage_counts(tree)})


def stage_counts(facts: Mapping[str, Any]) -> dict[str, StageCounters]:
    """By stage, what was counted while a part was done: from the facts of its completion record."""
    return {name: StageCounters.of(tree) for name, tree in facts["counts"].items()}


RunTask: TypeAlias = Callable[[Task], Awaitable[TaskResult]]


class TableTask(Protocol):
    """One kind of work, as plain values: a frozen dataclass."""

    @property
    def worker(self) -> WorkerConfig: ...

    def open(self) -> RunTask: ...


def with_worker(work: TableTask, **changes: Any) -> TableTask:
    """The same work with some fields of its place changed."""
    elsewhere: TableTask = replace(cast(Any, work), worker=replace(work.worker, **changes))
    return elsewhere


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Where a process works: whatever decides speed and no result."""

    store: str  # URI
    engine: Engine
    device: str
    threads: int  # of a model on a CPU
    # Model identity -> names in Ray; None: this process starts an engine of its own.
    engines: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    endpoints: Mapping[str, EndpointAddress] = field(
        default_factory=dict
    )  # by the names that models.yaml uses
    engine_limits: EngineLimits = field(default_factory=EngineLimits)  # of an engine that this process starts
    question_timeout_s: float | None = None  # for each question, from when its part begins; None: no deadline

    def kit(self, index: Index | None) -> LocalKit:
        return LocalKit(
            index, self.engine, self.device, self.threads,
            engines=self.engines, endpoints=self.endpoints, room=self.engine_limits,
        )  # fmt: skip


FailedRows: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Rows that could not be done: id, fault as `dataclasses.asdict` makes it."""

Compute: TypeAlias = Callable[[tuple[str, ...]], Awaitable[tuple[pa.Table, FailedRows]]]
"""Ids -> rows for the table, and those that could not be done. By the law of batches any cut of the ids gives
the same rows."""


def _doing(
    store: Store, table: str, run: str, stages: CorpusExecutor | QuestionExecutor, compute: Compute,
    digest_of: Callable[[str], str],
) -> RunTask:  # fmt: skip
    """Does parts of one table. `digest_of`: what names the work on a row, by its id."""

    async def do(task: Task) -> TaskResult:
        left = tuple(i for i in task.ids if i not in task.failed)
        done, lost = await bisected(compute, left, stages.counts)
        rows = pa.concat_tables([t for t, _ in done])
        letters = [(id, fault, 1) for _, some in done for id, fault in some]
        letters += [(i, asdict(x.fault), x.attempts) for i, x in {**lost, **task.failed}.items()]
        counts = {name: count.take() for name, count in stages.counts.items()}
        if not task.trial:
            of = [(id, fault, attempts, digest_of(id)) for id, fault, attempts in letters]
            write_part(store, "faults", run, task.name, faults_table(of, run), {})
            facts = {"counts": {name: asdict(count) for name, count in counts.items()}}
            write_part(store, table, run, task.name, rows, facts)
        return TaskResult(task.name, len(task.ids), rows.num_rows, len(letters), counts)

    return do


async def bisected(
    compute: Compute, ids: tuple[str, ...], counts: Mapping[str, StageCounters]
) -> tuple[list[tuple[pa.Table, FailedRows]], dict[str, FailedRow]]:
    """What some ids come to, however many of them break the code that works on them.

    A batch that raises is cut into some that are as many as they are long, those into single rows: whatever
    still raises alone, at its third attempt, is lost. What is no row's matter is raised: a wrong setup, a
    full disk, a step that breaks a law.
    """
    done: list[tuple[pa.Table, FailedRows]] = []
    lost: dict[str, FailedRow] = {}
    waiting = [(ids, 1)]
    while waiting:
        some, attempt = waiting.pop(0)
        try:
            done.append(await compute(some))
        except (RaypipeError, OSError, AssertionError):
            raise
        except Exception as e:
            if len(some) == 1:
                lost[some[0]] = FailedRow(_broke(e, counts), attempt)
                continue
            size = math.isqrt(len(some)) if attempt == 1 else 1
            waiting += [(some[at : at + size], attempt + 1) for at in range(0, len(some), size)]
    if not done:
        done.append(await compute(()))
    return done, lost


def _broke(e: Exception, counts: Mapping[str, StageCounters]) -> Fault:
    """The fault of a row on which a stage raised. Memory may be another's fault: the row stays to do."""
    stage = e.stage if isinstance(e, StageError) else next(iter(counts))
    cause = e.__cause__ if isinstance(e, StageError) and e.__cause__ else e
    counts[stage].faults += 1
    # The second is torch's, which nobody imports here.
    memory = isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError"
    detail = f"expected a result, the stage raised {type(cause).__name__}: {cause}"
    return Fault(stage, "memory" if memory else "raised", detail, transient=memory)


def _letters(table: pa.Table) -> FailedRows:
    """The faulty rows of a corpus table, the first fault of each source."""
    found = [(r["source"], r["fault"]) for r in table.select(["source", "fault"]).to_pylist() if r["fault"]]
    return list(dict(found[::-1]).items())


def faults_table(rows: Sequence[tuple[str, dict[str, Any], int, str]], run: str) -> pa.Table:
    """(id, fault, attempts, digest of the work) -> rows of the table `faults`."""
    out = [{"id": id, **fault, "attempts": n, "digest": of, "run": run} for id, fault, n, of in rows]
    return pa.Table.from_pylist(out, schema=FAULTS)


@dataclass(frozen=True, slots=True)
class TextsTask:
    """Sources through the stages before the split."""

    worker: WorkerConfig
    recipe: Recipe
    table: str
    run: str

    def open(self) -> RunTask:
        store = Store.open(self.worker.store)
        corpora = CorpusExecutor(self.recipe, self.worker.kit(None))

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            rows = _in_order(store.rows("sources", "id", ids), "id", ids)
            texts = await corpora.texts(arrow.corpus_table(arrow.source.records(rows)))
            return fine(texts).drop(["fault"]), _letters(texts)

        return _doing(store, self.table, self.run, corpora, compute, lambda id: self.table)


@dataclass(frozen=True, slots=True)
class PassagesTask:
    """Texts through the split."""

    worker: WorkerConfig
    recipe: Recipe
    table: str
    run: str
    texts: str  # table they are read from

    def open(self) -> RunTask:
        store = Store.open(self.worker.store)
        corpora = CorpusExecutor(self.recipe, self.worker.kit(None))

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            texts = _in_order(store.rows(self.texts, "source", ids), "source", ids)
            chunks = await corpora.passages(
                texts.append_column("fault", arrow.fault_column([None] * texts.num_rows))
            )
            letters = _letters(chunks)
            kept = pa.array([i for i in ids if i not in dict(letters)], pa.string())
            return with_chunkless(fine(chunks).select(SPANS), kept), letters

        return _doing(store, self.table, self.run, corpora, compute, lambda id: self.table)


@dataclass(frozen=True, slots=True)
class VectorsTask:
    """Chunks through one embedder. Texts that were ever embedded by it are not embedded again."""

    worker: WorkerConfig
    recipe: Recipe
    table: str
    run: str
    texts: str  # table
    passages: str  # table
    model: Model
    memo: Mapping[str, int]  # memo table -> pinned version

    def open(self) -> RunTask:
        store = Store.open(self.worker.store)
        memo = StoreMemo(self.worker.store, self.memo)
        corpora = CorpusExecutor(self.recipe, self.worker.kit(None), memo)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            vectors = await corpora.vectors(chunks_of(store, self.texts, self.passages, ids), self.model)
            return fine(vectors).select([*SPANS, "vector"]), _letters(vectors)

        return _doing(store, self.table, self.run, corpora, compute, lambda id: self.table)


def chunks_of(store: Store, texts: str, passages: str, ids: tuple[str, ...]) -> pa.Table:
    """The chunks of some sources with their text, as the split put them out."""
    text_of = dict(
        zip(*store.rows(texts, "source", ids, ["source", "text"]).to_pydict().values(), strict=True)
    )
    spans = store.rows(passages, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    spans = spans.append_column("chunk_text", chunk_text)
    return spans.append_column("fault", arrow.fault_column([None] * spans.num_rows))


@dataclass(frozen=True, slots=True)
class AnswersTask:
    """Questions through the question half."""

    worker: WorkerConfig
    recipe: Recipe
    run: str
    snapshot: str  # names the corpus, for questions that bring no sources
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version

    def open(self) -> RunTask:
        store = Store.open(self.worker.store)
        memo = StoreMemo(self.worker.store, self.memo)
        ask = QuestionExecutor(self.recipe, self.worker.kit(LanceIndex(self.index)), memo)
        recipe = self.recipe.digest()

        keys: dict[str, str] = {}  # question id -> key of its answer

        def asked_of(ids: tuple[str, ...]) -> list[Question]:
            rows = _in_order(store.rows("questions", "id", ids), "id", ids)
            questions = arrow.question.records(rows)
            keys.update({q.id: answer_key(recipe, q, self.snapshot) for q in questions})
            return questions

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            asked = asked_of(ids)
            answered = await ask(due_within(asked, self.worker.question_timeout_s))
            # A transient fault, or a stage left out, is not stored as an answer: its row stays to do.
            whole = [_whole(q) for q in answered]
            of = [row_key(q, self.snapshot) for q in asked]  # steps may narrow the citations
            kept = [(keys[q.id], r, q) for r, q, w in zip(of, answered, whole, strict=True) if w]
            lost = [q for q, w in zip(answered, whole, strict=True) if not w]
            return answers_table(kept, recipe), [(q.id, asdict(f)) for q in lost for f in _why(q)[:1]]

        def key_of(id: str) -> str:
            if id not in keys:
                asked_of((id,))
            return keys[id]

        return _doing(store, "answers", self.run, ask, compute, key_of)


def _whole(question: Question) -> bool:
    """Its answer may be stored."""
    broken = question.outcome == "fault" or any(f.transient for f in question.faults)
    return not broken and not question.degraded


def _why(question: Question) -> tuple[Fault, ...]:
    """The faults of a question that is not whole; those of a stage that was left out are its reply's."""
    known = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    left = [Fault(s, "left_out", "a part was not to be had", True) for s in question.degraded]
    return question.faults or tuple(known) or tuple(left)


def due_within(questions: list[Question], seconds: float | None) -> list[Question]:
    """The questions with a deadline that many seconds from now."""
    if seconds is None:
        return questions
    due = time.time() + seconds
    return [replace(q, due=due) for q in questions]


def answer_key(recipe: str, question: Question, snapshot: str) -> str:
    """Key of an answer: recipe digest, question id, and what it is answered from."""
    return key_of_row(recipe, question.id, row_key(question, snapshot))


def key_of_row(recipe: str, question: str, row: str) -> str:
    """Key of an answer, where the row key is known already."""
    return digest(recipe, question, row)


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
