"""Operators of a recipe's corpus steps, which turn sources into texts, passages and vectors.

    after        rows
    the start    one per source: its id, `source`; the first operator reads the source by this id
    parse        one per source: the columns of the table of texts
    split        one per chunk: `SPANS`, `chunk_text`
    tokenize     the rows of split, with `tokens NAME` per embedder that takes tokens; only with GPUs
    embed        one per row of a table of vectors: `SPANS`, and `vector NAME` of its embedder

`parse` and `split` store their rows themselves, unless they are the last operator. The sink stores the rows
of the last operator. A part (the rows of one task) is done once the last table that the sink writes has the
part's completion record. If a table then lacks a source, the next build of the table computes the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.arrow import SPANS, id_column
from raypipe.core.protocols import Model
from raypipe.models import token_arrays
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, fine, with_texts
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import embedder_of, table_of
from raypipe.runs.pipeline import operators
from raypipe.runs.pipeline.dead_letters import FailedRows, failed_rows
from raypipe.runs.pipeline.operators import BlockWork, Operate, Operator, PartRows, Sink, ordered
from raypipe.runs.pipeline.tasks import RunTask, WorkerConfig
from raypipe.store import Store, with_chunkless, write_part
from raypipe.store.memo.disk import StoreMemo
from raypipe.store.parts import read_record, staged

TOKENS, VECTOR = "tokens ", "vector "  # prefixes of column names, before the name of an embedder


CorpusStep: TypeAlias = Literal["parse", "split", "embed"]
CorpusVerb: TypeAlias = Literal["parse", "split", "tokenize", "embed"]
ALL_STEPS: tuple[CorpusStep, ...] = ("parse", "split", "embed")


@dataclass(frozen=True, slots=True)
class CorpusTask:
    """Work that takes sources through some consecutive corpus steps: parse, split, embed."""

    worker: WorkerConfig
    recipe: Recipe
    run: str
    steps: tuple[CorpusStep, ...] = ALL_STEPS
    models: tuple[Model, ...] = ()  # embedders; (): no step embeds
    memo: Mapping[str, int] = field(default_factory=dict)  # memo table -> pinned version

    key: ClassVar[Literal["source"]] = "source"

    @property
    def records(self) -> tuple[str, str]:
        """Table and run of the completion records. A part (the rows of one task) with a record is done."""
        return self.tables(self.steps[-1])[-1], self.run

    def tables(self, step: CorpusStep) -> Sequence[str]:
        """Returns the tables that a step fills."""
        if step == "embed":
            return [self.recipe.vectors_table(model) for model in self.models]
        return [self.recipe.texts_table if step == "parse" else self.recipe.passages_table]

    def operators(self) -> Sequence[Operator]:
        names: list[CorpusVerb] = [*self.steps]
        if self.worker.device.startswith("cuda") and {"split", "embed"} <= set(names):
            names.insert(-1, "tokenize")  # so that no thread that feeds a GPU tokenizes
        return [CorpusOperator(self, name) for name in names]

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        return await operators.in_turn(self, kit)

    async def open_sink(self, process: str) -> Sink:
        """Opens the sink, which follows the last operator. It stores the rows of the last step and faults."""
        tables = self.tables(self.steps[-1])

        def made(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
            if self.steps[-1] != "embed":
                yield tables[0], rows
                return
            for table, name in zip(tables, [VECTOR + model.name for model in self.models], strict=True):
                some = rows.filter(pc.is_valid(rows[name])).select([*SPANS, name])
                yield table, some.rename_columns([*SPANS, "vector"])

        pool = "embed" if self.steps[-1] == "embed" else "parse"
        return await operators.sink_function(self.worker, self.run, pool, process, made)


@dataclass(frozen=True, slots=True)
class CorpusOperator:
    """Operator of one corpus step, or of tokenizing before `embed`."""

    work: CorpusTask
    name: CorpusVerb
    in_hand: ClassVar[int] = 0

    @property
    def pool(self) -> Literal["parse", "embed"]:
        return "embed" if self.name == "embed" else "parse"

    async def open(self, kit: LocalKit) -> Operate:
        opens = {"parse": self._parse, "split": self._split, "tokenize": self._tokenize, "embed": self._embed}
        return await opens[self.name](kit)

    async def _parse(self, kit: LocalKit) -> Operate:
        """Opens `parse`: sources to texts, by the stages before the split."""
        work, store = self.work, await self.work.worker.open_store()
        corpus, table = CorpusExecutor(work.recipe, kit, loading_s=kit.loading_s), work.recipe.texts_table

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            rows = ordered(store.rows("sources", "id", ids), "id", ids)
            texts = await corpus.texts(arrow.corpus_table(arrow.source.records(rows)))
            return fine(texts).drop(["fault"]), failed_rows(texts)

        def begin(block: PartRows) -> BlockWork:
            def keep(texts: pa.Table) -> pa.Table:
                return self._kept(store, table, block.part, texts, texts)

            return BlockWork(compute, lambda id, stage: table, keep)

        return operators.block_function(self.pool, work.worker, work.recipe, kit, corpus.counts, begin)

    async def _split(self, kit: LocalKit) -> Operate:
        """Opens `split`: texts to chunks."""
        work, store = self.work, await self.work.worker.open_store()
        corpus = CorpusExecutor(work.recipe, kit, loading_s=kit.loading_s)
        read, table = work.recipe.texts_table, work.recipe.passages_table

        def begin(block: PartRows) -> BlockWork:
            with_text = "text" in block.rows.column_names  # else texts are read from the store
            split = list[str]()  # sources of the block that did not fail

            async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
                texts = block.rows if with_text else store.rows(read, "source", ids)
                chunks = await corpus.passages(without_faults(ordered(texts, "source", ids)))
                lost = failed_rows(chunks)
                split.extend(i for i in ids if i not in dict(lost))
                return fine(chunks).select([*SPANS, "chunk_text"]), lost

            def keep(chunks: pa.Table) -> pa.Table:
                chunks = chunks.sort_by([(c, "ascending") for c in SPANS])
                passages = with_chunkless(chunks.select(SPANS), id_column(split))
                return self._kept(store, table, block.part, passages, chunks)

            return BlockWork(compute, lambda id, stage: table, keep)

        return operators.block_function(self.pool, work.worker, work.recipe, kit, corpus.counts, begin)

    def _kept(self, store: Store, table: str, part: str, rows: pa.Table, on: pa.Table) -> pa.Table:
        """Returns `rows` if this operator is the last: the sink stores them. Else stores them as a part of a
        table, and returns the rows of `on` for the next operator. If an earlier attempt stored the part, its
        rows remain, and may lack sources that failed then. `on` then loses these sources."""
        run = self.work.run
        if self.work.steps[-1] == self.name:
            return rows
        earlier = read_record(store, table, run, part) is not None
        write_part(store, table, run, part, rows, {})
        if not earlier:
            return on
        stored = id_column(staged(store, table, run, [part], "source"))
        return on.filter(pc.is_in(on["source"], value_set=stored))

    async def _tokenize(self, kit: LocalKit) -> Operate:
        """Opens `tokenize`, which turns the texts to embed into tokens, so that no thread that feeds a GPU
        has to. It adds a column for each embedder that takes tokens. Each cell is a list of token arrays; all
        cells together hold the tokens of all texts, in order."""
        stages = [s for s in self.work.recipe.corpus if table_of(s.step) == "vectors"]
        asking = [s.step.open(token_arrays.FirstAskedKit(kit)) for s in stages]
        makers: dict[Model, token_arrays.TokenMaker] = {}

        async def operate(block: PartRows) -> PartRows:
            if block.note.over or not block.rows.num_rows:
                return block
            rows = block.rows
            chunks, made = without_faults(rows), dict[str, pa.Table]()
            for build in asking:
                try:
                    await build(chunks)
                except token_arrays.FirstAsked as asked:
                    # Embedders that take only texts get no tokens.
                    if asked.texts and token_arrays.takes_tokens(asked.model):
                        if asked.model not in makers:
                            makers[asked.model] = token_arrays.TokenMaker(asked.model)
                        made[asked.model.name] = makers[asked.model].table(asked.texts, asked.role)
                except Exception:  # the step raises it again in `embed`, which finds the failing rows
                    continue
            for name, tokens in made.items():
                offsets = np.minimum(np.arange(rows.num_rows + 1), tokens.num_rows)
                offsets[-1] = tokens.num_rows
                items = tokens.to_struct_array().combine_chunks()
                lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
                rows = rows.append_column(TOKENS + name, lists)
            return replace(block, rows=rows)

        return operate

    async def _embed(self, kit: LocalKit) -> Operate:
        """Opens `embed`: chunks to vectors of each embedder. The memo (cache) has vectors of known texts."""
        work, recipe, store = self.work, self.work.recipe, await self.work.worker.open_store()
        tokens = token_arrays.TokenKit(kit)
        memo = await work.worker.tried(lambda: StoreMemo(work.worker.store, work.memo))
        corpus = CorpusExecutor(recipe, tokens, memo, kit.loading_s)
        embedding = [s for s in recipe.corpus if table_of(s.step) == "vectors"]
        tables = {s.name: recipe.vectors_table(embedder_of(s.step)) for s in embedding}
        of_first = recipe.vectors_table(work.models[0])

        def begin(block: PartRows) -> BlockWork:
            failed_in = dict[str, str]()  # id -> table that it failed for
            split = "chunk_text" in block.rows.column_names  # else chunks are read from the store
            held = without_faults(block.rows.select([*SPANS, "chunk_text"])) if split else None
            with_tokens = [m for m in work.models if TOKENS + m.name in block.rows.column_names]
            flat = {m: _flat(block.rows[TOKENS + m.name]) for m in with_tokens}
            tokens.tokens = {m: token_arrays.arrays_of(rows) for m, rows in flat.items()}

            async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
                if held is None:
                    some = chunks_of(store, recipe, ids)
                else:
                    some = held.filter(pc.is_in(held["source"], value_set=id_column(ids)))
                made, lost = [], dict[str, dict[str, Any]]()
                for model in work.models:
                    vectors = await corpus.vectors(some, model)
                    rows = fine(vectors).select([*SPANS, "vector"])
                    made.append(rows.rename_columns([*SPANS, VECTOR + model.name]))
                    for id, fault in failed_rows(vectors):
                        if lost.setdefault(id, fault) is fault:
                            failed_in[id] = recipe.vectors_table(model)
                return pa.concat_tables(made, promote_options="default"), list(lost.items())

            return BlockWork(compute, lambda id, stage: failed_in.get(id) or tables.get(stage, of_first))

        return operators.block_function(self.pool, work.worker, recipe, kit, corpus.counts, begin)


def chunks_of(store: Store, recipe: Recipe, ids: Sequence[str]) -> pa.Table:
    """Reads the chunks of some sources with their text, in the form in which `split` returns them."""
    texts = store.rows(recipe.texts_table, "source", ids, ["source", "text"])
    text_of = dict(zip(*texts.to_pydict().values(), strict=True))
    spans = store.rows(recipe.passages_table, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    chunks = without_faults(spans.append_column("chunk_text", chunk_text))
    return with_texts(chunks, texts) if recipe.embeds_from_texts else chunks


def without_faults(rows: pa.Table) -> pa.Table:
    """Adds the column `fault`, which corpus steps expect, to rows of the store. All its values are null."""
    return rows.append_column("fault", arrow.fault_column([None] * rows.num_rows))


def _flat(column: pa.ChunkedArray) -> pa.Table:
    """Flattens a column with a list of token arrays per cell into a table with a token array per row."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(c.flatten()) for c in column.chunks], schema=token_arrays.SCHEMA
    )
