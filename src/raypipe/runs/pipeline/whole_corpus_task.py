"""The corpus half in one task: texts, passages and vectors of some sources, in two parts.

`prepare` parses, splits and tokenizes, and needs CPUs alone; `embed` needs the models. Each may run in a
process of its own, or both in one, with equal tables. A part is done when the table of the last embedder has
its record. What one part loses of a row, the tasks of the single tables find missing and do.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Build, Model
from raypipe.core.retry import until_available
from raypipe.models.kit import LocalKit
from raypipe.models.token_arrays import (
    FirstAsked,
    FirstAskedKit,
    TokenKit,
    TokenMaker,
    arrays_of,
    takes_tokens,
)
from raypipe.recipes.executor import CorpusExecutor, StageCounters, fine
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import embedder_of, table_of
from raypipe.runs.pipeline.dead_letters import FailedRows, failed_rows, faults_table
from raypipe.runs.pipeline.recipe_task import Failed, Opened, backoff_of, facts_of, in_order, task_with_ids
from raypipe.runs.pipeline.table_tasks import without_faults
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, Task, TaskResult, WorkerConfig
from raypipe.store import Store, with_chunkless, write_part
from raypipe.store.memo.disk import StoreMemo
from raypipe.store.parts import read_record, staged


@dataclass(frozen=True, slots=True)
class Prepared:
    """Some sources parsed, split and tokenized: what a process with a GPU needs of them."""

    ids: int  # sources of the task
    faults: int  # of these that failed so far
    chunks: pa.Table  # `SPANS`, chunk_text and fault (null), a row for each chunk
    tokens: Mapping[str, pa.Table]  # name of an embedder -> `token_arrays.SCHEMA`
    failed: Sequence[Failed]
    counts: Mapping[str, StageCounters]
    seconds: float  # that it took
    worker_name: str = ""  # who did it; "": this process

    def result(self, name: str) -> TaskResult:
        """The same as the first part of a task's result."""
        return TaskResult(name, self.ids, 0, self.faults, self.counts, self.worker_name, self.seconds)

    @property
    def nbytes(self) -> int:
        return int(self.chunks.nbytes + sum(table.nbytes for table in self.tokens.values()))


Prepare: TypeAlias = Callable[[Task], Awaitable[Prepared | HandedBack]]
EmbedTask: TypeAlias = Callable[[Task, Prepared], Awaitable[TaskResult | HandedBack]]


class _Pieces(NamedTuple):
    """What parsing and splitting some sources gives."""

    texts: pa.Table
    passages: pa.Table
    chunks: pa.Table


@dataclass(frozen=True, slots=True)
class WholeCorpusTask:
    """Sources to all tables of the corpus half."""

    worker: WorkerConfig
    recipe: Recipe
    run: str
    memo: Mapping[str, int]  # memo table -> pinned version

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        """Both parts in this process."""
        kit = kit or self.worker.kit(None)
        prepare, embed = await self.open_prepare(kit), await self.open_embed(kit)

        async def run_task(task: Task) -> TaskResult | HandedBack:
            prepared = await prepare(task)
            return prepared if isinstance(prepared, HandedBack) else await embed(task, prepared)

        return run_task

    async def open_prepare(self, kit: LocalKit) -> Prepare:
        """Parses, splits and tokenizes, and stores texts and passages. Raises as `RecipeTask.open`."""
        store = await self._store()
        corpus = CorpusExecutor(self.recipe, kit, loading_s=kit.loading_s)
        failed_in: dict[str, str] = {}  # id -> the table that it failed for
        asking = [
            s.step.open(FirstAskedKit(kit)) for s in self.recipe.corpus if table_of(s.step) == "vectors"
        ]
        makers: dict[Model, TokenMaker] = {}

        async def compute(ids: tuple[str, ...]) -> tuple[_Pieces, FailedRows]:
            rows = in_order(store.rows("sources", "id", ids), "id", ids)
            texts = await corpus.texts(arrow.corpus_table(arrow.source.records(rows)))
            parsed = fine(texts).drop(["fault"])
            chunks = await corpus.passages(without_faults(parsed))
            lost, unsplit = failed_rows(texts), failed_rows(chunks)
            failed_in.update(dict.fromkeys(dict(lost), self.recipe.texts_table))
            failed_in.update(dict.fromkeys(dict(unsplit), self.recipe.passages_table))
            kept = [i for i in parsed["source"].to_pylist() if i not in dict(unsplit)]
            passages = with_chunkless(fine(chunks).select(SPANS), pa.array(kept, pa.string()))
            cut = fine(chunks).select([*SPANS, "chunk_text", "fault"])
            return _Pieces(parsed, passages, cut), [*lost, *unsplit]

        work = Opened(corpus.counts, compute, self._table_of(failed_in), kit)

        async def do(witnessed: bool, task: Task) -> Prepared:
            start = time.perf_counter()
            failed_in.clear()
            task = await task_with_ids(store, task, self.worker)
            made, failed = await work.computed(task, self.recipe, backoff_of(self.worker), witnessed)
            pieces = _Pieces(*(pa.concat_tables(tables) for tables in zip(*made, strict=True)))
            if not task.trial:
                pieces = await self._stored(store, task.name, pieces)
            chunks = pieces.chunks.sort_by([(c, "ascending") for c in SPANS])
            tokens = await _tokens(asking, chunks, makers)
            took = time.perf_counter() - start
            return Prepared(len(task.ids), len(failed), chunks, tokens, failed, work.take(), took)

        return work.handing_back(do)

    async def open_embed(self, kit: LocalKit) -> EmbedTask:
        """Embeds what another part prepared, and stores vectors and faults. Raises as `RecipeTask.open`."""
        store, tokens = await self._store(), TokenKit(kit)
        corpus = CorpusExecutor(self.recipe, tokens, StoreMemo(self.worker.store, self.memo), kit.loading_s)
        failed_in: dict[str, str] = {}
        table_of_model = {m: self.recipe.vectors_table(m) for m in self.recipe.embedders()}
        chunks: list[pa.Table] = []  # of the task that is done now

        async def compute(ids: tuple[str, ...]) -> tuple[dict[Model, pa.Table], FailedRows]:
            some = chunks[0].filter(pc.is_in(chunks[0]["source"], value_set=pa.array(ids, pa.string())))
            made: dict[Model, pa.Table] = {}
            lost: FailedRows = []
            for model, table in table_of_model.items():
                vectors = await corpus.vectors(some, model)
                made[model] = fine(vectors).select([*SPANS, "vector"])
                failed = [(id, fault) for id, fault in failed_rows(vectors) if id not in dict(lost)]
                failed_in.update({id: table for id, _ in failed})
                lost += failed
            return made, lost

        work = Opened(corpus.counts, compute, self._table_of(failed_in), kit)

        async def do(witnessed: bool, task: Task, prepared: Prepared) -> TaskResult:
            start = time.perf_counter()
            failed_in.clear()
            chunks[:] = [prepared.chunks]
            tokens.tokens = {m: arrays_of(t) for m in table_of_model if (t := prepared.tokens.get(m.name))}
            task = await task_with_ids(store, task, self.worker)
            gone = {id for id, *_ in prepared.failed}
            left = replace(task, ids=tuple(i for i in task.ids if i not in gone), failed={})
            made, failed = await work.computed(left, self.recipe, backoff_of(self.worker), witnessed)
            failed, rows = [*prepared.failed, *failed], 0
            vectors = {m: pa.concat_tables([piece[m] for piece in made]) for m in table_of_model}
            facts = facts_of(_summed(prepared.counts, work.counts))

            def write() -> None:
                write_part(store, "faults", self.run, task.name, faults_table(failed, self.run), {})
                for model, table in table_of_model.items():
                    write_part(store, table, self.run, task.name, vectors[model], facts)

            if not task.trial:
                await until_available(write, backoff_of(self.worker))
                rows = sum(table.num_rows for table in vectors.values())
            took = time.perf_counter() - start
            return TaskResult(
                task.name, len(task.ids), rows, len(failed), work.take(), seconds=took,
                before=prepared.result(task.name),
            )  # fmt: skip

        embed = work.handing_back(do)

        async def embed_task(task: Task, prepared: Prepared) -> TaskResult | HandedBack:
            done = await embed(task, prepared)
            if not isinstance(done, HandedBack):
                return done
            cost = _summed(prepared.counts)
            for count in cost.values():
                count.in_vain(StageCounters())
            return replace(done, counts=_summed(cost, done.counts))

        return embed_task

    def _table_of(self, failed_in: Mapping[str, str]) -> Callable[[str, str], str]:
        """Id of a row that failed, step of its fault -> the table that it failed for: the one that is known,
        else that which the stage fills; what is no stage, as a worker, counts for the first one."""
        texts, passages = self.recipe.texts_table, self.recipe.passages_table
        filled = {
            s.name: self.recipe.vectors_table(embedder_of(s.step))
            if (kind := table_of(s.step)) == "vectors"
            else {"passages": passages, "texts": texts}[kind]
            for s in self.recipe.corpus
        }
        return lambda id, step: failed_in.get(id) or filled.get(step, texts)

    async def _store(self) -> Store:
        return await until_available(lambda: Store.open(self.worker.store), backoff_of(self.worker))

    async def _stored(self, store: Store, part: str, pieces: _Pieces) -> _Pieces:
        """Stores a part of texts and of passages, and returns what both have: an earlier attempt may have
        stored one of them, in which other rows had failed for now."""

        texts = self.recipe.texts_table

        def write() -> _Pieces:
            left = pieces
            for table in (texts, self.recipe.passages_table):
                earlier = read_record(store, table, self.run, part) is not None
                rows = left.texts if table == texts else left.passages
                write_part(store, table, self.run, part, rows, {})
                if earlier:
                    here = pa.array(sorted(staged(store, table, self.run, [part], "source")), pa.string())
                    left = _Pieces(*(t.filter(pc.is_in(t["source"], value_set=here)) for t in left))
            return left

        return await until_available(write, backoff_of(self.worker))


async def _tokens(
    asking: Sequence[Build], chunks: pa.Table, makers: dict[Model, TokenMaker]
) -> dict[str, pa.Table]:
    """What each embedder would be asked of these chunks, tokenized; none for those that take texts alone.

    A step that raises is no matter of this part: it raises again where it embeds, and its rows are found."""
    tables: dict[str, pa.Table] = {}
    for build in asking:
        try:
            await build(chunks)
        except Exception as asked:
            if isinstance(asked, FirstAsked) and asked.texts and takes_tokens(asked.model):
                if asked.model not in makers:
                    makers[asked.model] = TokenMaker(asked.model)
                tables[asked.model.name] = makers[asked.model].table(asked.texts, asked.role)
    return tables


def _summed(*counted: Mapping[str, StageCounters]) -> dict[str, StageCounters]:
    """Counts by stage, added up."""
    out: dict[str, StageCounters] = {}
    for counts in counted:
        for name, count in counts.items():
            out.setdefault(name, StageCounters()).add(count)
    return out
