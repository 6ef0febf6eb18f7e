"""The tasks of the corpus half, one kind for each table: texts, passages, vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Model
from raypipe.memo.disk import StoreMemo
from raypipe.models.kit import LocalKit
from raypipe.pipeline.dead_letters import FailedRows, failed_rows
from raypipe.pipeline.recipe_task import Opened, RecipeTask, in_order
from raypipe.recipes.executor import CorpusExecutor, fine
from raypipe.recipes.step_contract import asked_models
from raypipe.store import Store, with_chunkless


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

    texts: str  # table they are read from

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            texts = in_order(store.rows(self.texts, "source", ids), "source", ids)
            chunks = await corpus.passages(without_faults(texts))
            failed = failed_rows(chunks)
            kept = pa.array([i for i in ids if i not in dict(failed)], pa.string())
            return with_chunkless(fine(chunks).select(SPANS), kept), failed

        return Opened(corpus.counts, compute, lambda id, step: self.table, kit)


@dataclass(frozen=True, slots=True)
class VectorsTask(RecipeTask):
    """Chunks through one embedder. Texts that it ever embedded come from the memo."""

    texts: str  # table
    passages: str  # table
    model: Model
    memo: Mapping[str, int]  # memo table -> pinned version

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        memo = StoreMemo(self.worker.store, self.memo)
        kit.expect(m for s in self.recipe.question for m in asked_models(s.step))  # in this same process
        corpus = CorpusExecutor(self.recipe, kit, memo, kit.loading_s)

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            vectors = await corpus.vectors(chunks_of(store, self.texts, self.passages, ids), self.model)
            return fine(vectors).select([*SPANS, "vector"]), failed_rows(vectors)

        return Opened(corpus.counts, compute, lambda id, step: self.table, kit)


def chunks_of(store: Store, texts: str, passages: str, ids: tuple[str, ...]) -> pa.Table:
    """The chunks of some sources with their text, as the split put them out."""
    text_of = dict(
        zip(*store.rows(texts, "source", ids, ["source", "text"]).to_pydict().values(), strict=True)
    )
    spans = store.rows(passages, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    return without_faults(spans.append_column("chunk_text", chunk_text))


def without_faults(rows: pa.Table) -> pa.Table:
    """Rows of the store as a corpus step takes them: with a column of faults, all null."""
    return rows.append_column("fault", arrow.fault_column([None] * rows.num_rows))
