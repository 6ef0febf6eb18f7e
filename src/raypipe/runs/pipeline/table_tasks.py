"""The tasks that fill one table each: texts, passages and vectors of sources; postings, whose task calls no
model and needs no recipe; answers of questions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Model
from raypipe.core.retry import until_available
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, fine
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.blocks import Share, facts_of
from raypipe.runs.pipeline.dead_letters import FailedRows, failed_rows, faults_table
from raypipe.runs.pipeline.recipe_task import Opened, RecipeTask, backoff_of, in_order, retried
from raypipe.runs.pipeline.tasks import RunTask, Task, WorkerConfig
from raypipe.store import Store, with_chunkless, write_part
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

    @property
    def records(self) -> tuple[str, str]:
        return self.table, self.run

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Calls no model: the kit only names the process. Raises Unavailable where the store stays so for all
        tries, and StoreError."""

        def opened() -> tuple[Store, Inverter]:
            store = Store.open(self.worker.store)
            return store, Inverter(store, self.texts, self.passages, self.analyzer)

        store, inverter = await until_available(opened, backoff_of(self.worker))
        process = kit.process if kit else ""
        return retried(self.worker, lambda task: self._invert(store, inverter, task, process), trials=True)

    def _invert(self, store: Store, inverter: Inverter, task: Task, process: str) -> tuple[int, int]:
        """Stores the words of a task's sources; how many rows of lengths, and how many sources failed."""
        start = time.perf_counter()
        left = [i for i in task.with_ids(store).ids if i not in task.failed]
        lengths, postings = inverter.rows(left, self.run, task.name)
        if task.trial:
            return 0, len(task.failed)
        failed = [(i, asdict(x.fault), x.attempts, self.table) for i, x in task.failed.items()]
        write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
        write_part(store, self.postings, self.run, task.name, postings, {})
        share = Share({}, time.perf_counter() - start, process)
        facts = facts_of({"": share}, task.rows, lengths.num_rows, len(failed))
        write_part(store, self.table, self.run, task.name, lengths, facts)
        return int(lengths.num_rows), len(task.failed)
