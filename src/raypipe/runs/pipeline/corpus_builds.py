"""Builds of the tables that a recipe's corpus steps fill: the missing rows of each, and the task for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.protocols import Model
from raypipe.recipes.executor import CorpusExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.corpus_operators import ALL_STEPS, CorpusStep, CorpusTask
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.pipeline.store_tasks import PART_SOURCES, PostingsTask
from raypipe.runs.pipeline.table_build import TableBuild
from raypipe.runs.pipeline.tasks import TableTask, Verb, WorkerConfig
from raypipe.store import PASSAGES, Store, TableRun, begun, vectors_schema
from raypipe.store.ids import Ids, distinct, sources_with_chunks
from raypipe.store.memo.disk import memo_versions
from raypipe.store.memo.memo import replies_of, vectors_of
from raypipe.store.sources import Chunks, lacked, noted, rows_id
from raypipe.store.tables import LENGTHS, POSTINGS

Shown: TypeAlias = tuple[Verb, str, str]
"""(pool of workers, verb of the progress line, unit of the progress line) of a build."""


@dataclass(frozen=True, slots=True)
class CorpusBuilds:
    """Builds of the tables of texts, passages, vectors and postings that a recipe needs in a store."""

    store: Store
    recipe: Recipe
    worker: WorkerConfig
    max_rows: int  # most sources of a task

    def tables(self, wanted: Ids, streams: Callable[[], bool] | None) -> Iterator[TableBuild]:
        """Yields the builds that bring texts, passages and vectors up to date, in order. `streams` returns
        whether parsing and embedding can run together; None: they cannot. If they can, sources without a row
        in any table take all steps in one pass first (`whole`). A killed run is resumed as it began."""
        single = [self.texts(wanted), self.passages(wanted)]
        single += [self.vectors(model, wanted) for model in self.recipe.embedders()]
        if (whole := self.whole(single, wanted)) is not None:
            one_pass = begun(self.store, whole.work_id) is not None
            if not one_pass and streams and not any(begun(self.store, build.work_id) for build in single):
                one_pass = bool(whole.missing_ids()) and streams()
            if one_pass:
                yield whole
        yield from single

    def texts(self, wanted: Ids) -> TableBuild:
        table = self.recipe.texts_table
        with asyncio.Runner() as loop:
            empty = loop.run(CorpusExecutor(self.recipe, self.worker.kit(None)).texts(arrow.corpus_table([])))
        schema = empty.drop(["fault"]).schema
        shown: Shown = "parse", "parsed", "sources"
        return self._build(table, schema, shown, lambda: self.missing(table, wanted), ("parse",))

    def passages(self, wanted: Ids) -> TableBuild:
        table, texts = self.recipe.passages_table, self.recipe.texts_table

        def missing_ids() -> Ids:
            textless = lacked(self.store, self.store.dataset(texts), texts, wanted)
            return self.missing(table, wanted).without(textless)

        return self._build(table, PASSAGES, ("parse", "split", "texts"), missing_ids, ("split",))

    def vectors(self, model: Model, wanted: Ids) -> TableBuild:
        """Returns the build of the vectors of one embedder, from passages."""
        table, passages = self.recipe.vectors_table(model), self.recipe.passages_table
        schema = vectors_schema(model.dim, model.half)
        shown: Shown = "embed", "embedded", "passages"
        build = self._build(
            table, schema, shown, lambda: self.unembedded(table, wanted), ("embed",), (model,)
        )
        return replace(build, inside="passages", units=lambda ids: Chunks(self.store, passages).total(ids))

    def unembedded(self, table: str, wanted: Ids) -> Ids:
        """Returns wanted sources that have chunks but lack vectors in a table. Leaves out dead letters."""
        passages = self.store.dataset(self.recipe.passages_table)
        at = rows_id(self.store, self.recipe.passages_table, passages)
        if self.store.has(table):
            missing = noted(self.store, self.store.dataset(table), table, wanted.name_among(at))
            if missing is not None:
                return self._unfailed(table, missing)
        return self.missing(table, wanted.among(sources_with_chunks(passages), at))

    def whole(self, single: Sequence[TableBuild], wanted: Ids) -> TableBuild | None:
        """Returns the build that fills all tables in one pass, for sources without rows in any. Returns None
        if the recipe has no embedder, or embeds from stored texts. `single` is a build per table."""
        if not (models := self.recipe.embedders()) or self.recipe.embeds_from_texts:
            return None
        *first, last = ((b.table, b.schema) for b in single)

        def missing_ids() -> Ids:
            ids = wanted
            for table, _ in (*first, last):
                ids = self.missing(table, ids) if ids else ids
            return ids

        shown: Shown = "index", "indexed", "sources"
        build = self._build(*last, shown, missing_ids, ALL_STEPS, tuple(models))
        work_id = whole_corpus(self.recipe)[0]
        return replace(build, work_id=work_id, first=tuple(first), inside="passages embedded")

    def _build(
        self,
        table: str,
        schema: pa.Schema,
        shown: Shown,
        missing_ids: Callable[[], Ids],
        steps: tuple[CorpusStep, ...],
        models: tuple[Model, ...] = (),
    ) -> TableBuild:
        """Returns the build of a table that takes sources through `steps`. `models` are its embedders."""

        def work(run: TableRun) -> TableTask:
            asked = (*models, *self.recipe.writers()) if models else ()
            known = {(vectors_of if m.kind == "embedder" else replies_of)(m).name for m in asked}
            versions = memo_versions(self.store) if models else {}
            # memo table -> version, for those memo tables of the models that exist
            memo = {name: version for name, version in versions.items() if name in known}
            return CorpusTask(self.worker, self.recipe, run.name, steps, models, memo)

        most = self.max_rows
        return TableBuild(table, table, schema, *shown, most, missing_ids, work, calls_models=bool(models))

    def postings(self, analyzer: str, postings: str, lengths: str) -> TableBuild:
        """Returns the build of an analyzer's postings and lengths, from the passages of all sources."""
        texts, passages = self.recipe.texts_table, self.recipe.passages_table
        return TableBuild(
            lengths,
            lengths,
            LENGTHS,
            "parse",
            "inverted",
            "sources",
            PART_SOURCES,
            lambda: self.missing(lengths, Ids(distinct(self.store.dataset(passages), "source"))),
            lambda run: PostingsTask(self.worker, analyzer, lengths, postings, texts, passages, run.name),
            first=((postings, POSTINGS),),
            spread=False,
        )

    def missing(self, table: str, ids: Ids) -> Ids:
        """Returns the ids that have no row in a table, except dead letters."""
        missing = lacked(self.store, self.store.dataset(table), table, ids) if self.store.has(table) else ids
        return self._unfailed(table, missing)

    def _unfailed(self, table: str, ids: Ids) -> Ids:
        return ids.without(failed_ids(self.store, {table})) if ids else ids


def failed_ids(store: Store, work: Container[str]) -> set[str]:
    """Returns the ids of dead letters: rows with a final fault. `work` names the tables, or the keys of the
    answers, in which a row failed. A row with only transient faults is pending, so it is not returned."""
    faults = store.scan("faults", ["id", "digest"], filter="NOT transient")
    rows = zip(faults["id"].to_pylist(), faults["digest"].to_pylist(), strict=True)
    return {id for id, digest in rows if digest in work}
