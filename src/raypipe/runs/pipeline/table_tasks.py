"""The tasks that fill one table each: texts, passages and vectors of sources; postings, whose task calls no
model and needs no recipe; answers of questions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.about import about
from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, Question
from raypipe.core.retry import until_available
from raypipe.models.kit import LocalKit
from raypipe.models.products import product_on
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, fine
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.dead_letters import FailedRows, failed_rows, faults_table
from raypipe.runs.pipeline.recipe_tables import AnswerSources
from raypipe.runs.pipeline.recipe_task import Opened, RecipeTask, backoff_of, facts_of, in_order, retried
from raypipe.runs.pipeline.tasks import RunTask, Task, WorkerConfig
from raypipe.store import ANSWERS, Store, with_chunkless, write_part
from raypipe.store.index import IndexSpec, LanceIndex
from raypipe.store.inverter import Inverter
from raypipe.store.memo.disk import StoreMemo


@dataclass(frozen=True, slots=True)
class TextsTask(RecipeTask):
    """Sources through the stages before the split."""

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            rows = in_order(store.rows("sources", "id", ids), "id", ids)
            texts = await corpus.texts(arrow.corpus_table(arrow.source.records(rows)))
            return fine(texts).drop(["fault"]), failed_rows(texts)

        return Opened(corpus.counts, compute, lambda id, step: self.table, kit)


@dataclass(frozen=True, slots=True)
class PassagesTask(RecipeTask):
    """Texts through the split."""

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            texts = in_order(store.rows(self.recipe.texts_table, "source", ids), "source", ids)
            chunks = await corpus.passages(without_faults(texts))
            failed = failed_rows(chunks)
            kept = pa.array([i for i in ids if i not in dict(failed)], pa.string())
            return with_chunkless(fine(chunks).select(SPANS), kept), failed

        return Opened(corpus.counts, compute, lambda id, step: self.table, kit)


@dataclass(frozen=True, slots=True)
class VectorsTask(RecipeTask):
    """Chunks through one embedder. Texts that it ever embedded come from the memo."""

    model: Model
    memo: Mapping[str, int]  # memo table -> pinned version

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        memo = StoreMemo(self.worker.store, self.memo)
        kit.expect(m for s in self.recipe.question for m in asked_models(s.step))  # in this same process
        corpus = CorpusExecutor(self.recipe, kit, memo, kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            vectors = await corpus.vectors(chunks_of(store, self.recipe, ids), self.model)
            return fine(vectors).select([*SPANS, "vector"]), failed_rows(vectors)

        return Opened(corpus.counts, compute, lambda id, step: self.table, kit)


def chunks_of(store: Store, recipe: Recipe, ids: Sequence[str]) -> pa.Table:
    """The chunks of some sources with their text, as the split put them out."""
    texts = store.rows(recipe.texts_table, "source", ids, ["source", "text"])
    text_of = dict(zip(*texts.to_pydict().values(), strict=True))
    spans = store.rows(recipe.passages_table, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    return without_faults(spans.append_column("chunk_text", chunk_text))


def without_faults(rows: pa.Table) -> pa.Table:
    """Rows of the store as a corpus step takes them: with a column of faults, all null."""
    return rows.append_column("fault", arrow.fault_column([None] * rows.num_rows))


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

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Calls no model, so it needs no kit. Raises Unavailable where the store stays so for all tries, and
        StoreError."""

        def opened() -> tuple[Store, Inverter]:
            store = Store.open(self.worker.store)
            return store, Inverter(store, self.texts, self.passages, self.analyzer)

        store, inverter = await until_available(opened, backoff_of(self.worker))
        return retried(self.worker, lambda task: self._invert(store, inverter, task), trials=True)

    def _invert(self, store: Store, inverter: Inverter, task: Task) -> tuple[int, int]:
        """Stores the words of a task's sources; how many rows of lengths, and how many sources failed."""
        left = [i for i in task.with_ids(store).ids if i not in task.failed]
        lengths, postings = inverter.rows(left, self.run, task.name)
        if task.trial:
            return 0, len(task.failed)
        failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
        write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
        write_part(store, self.postings, self.run, task.name, postings, {})
        write_part(store, self.table, self.run, task.name, lengths, facts_of({}))
        return int(lengths.num_rows), len(task.failed)


@dataclass(frozen=True, slots=True)
class AnswersTask(RecipeTask):
    """Questions through the question half."""

    sources: AnswerSources  # what the questions are answered from
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version
    fresh: bool = False  # True: language models are asked again, whatever the memo has of them

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        memo = StoreMemo(self.worker.store, self.memo, self.fresh)
        kit = kit.with_index(LanceIndex(self.index, product_on(self.worker.device)))
        ask = QuestionExecutor(self.recipe, kit, memo, loading_s=kit.loading_s)
        recipe = self.recipe.digest()

        keys: dict[str, str] = {}  # question id -> key of its answer

        def questions_of(ids: tuple[str, ...]) -> list[Question]:
            rows = in_order(store.rows("questions", "id", ids), "id", ids)
            questions = arrow.question.records(rows)
            keys.update({q.id: self.sources.key(recipe, q) for q in questions})
            return questions

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            questions = questions_of(ids)
            limit_s = self.worker.question_timeout_s
            due = None if limit_s is None else time.time() + limit_s
            with about(run=self.run if self.fresh else ""):
                answered = await ask(questions if due is None else [replace(q, due=due) for q in questions])
            # With a transient fault or an omitted stage no answer is stored: the row stays pending.
            complete = [
                q.outcome != "fault" and not q.degraded and not any(f.transient for f in q.faults)
                for q in answered
            ]
            of = [self.sources.row(q) for q in questions]  # steps may narrow the citations
            kept = [(keys[q.id], r, q) for r, q, c in zip(of, answered, complete, strict=True) if c]
            failed = [q for q, c in zip(answered, complete, strict=True) if not c]
            return answers_table(kept, recipe), [(q.id, asdict(f)) for q in failed for f in _faults(q)[:1]]

        def key_of(id: str, step: str) -> str:
            if id not in keys:
                questions_of((id,))
            return keys[id]

        return Opened(ask.counts, compute, key_of, kit)


def _faults(question: Question) -> tuple[Fault, ...]:
    """The faults of an incomplete question; those of an omitted stage are its reply's."""
    known = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    omitted = [Fault(s, "omitted", "a service was unavailable", True) for s in question.degraded]
    return question.faults or tuple(known) or tuple(omitted)


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
