"""Ray Data: tables of a store as Datasets, and steps of recipes for `Dataset.map_batches`.

docs/formats.md has examples of both. The caller starts and configures Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.api.pipelines import offline_pipeline, worker_and_sizes
from raypipe.api.session import Named, Place, Session, endpoint_addresses
from raypipe.core import arrow
from raypipe.core.arrow import QUESTIONS, SPANS
from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.protocols import CorpusStep
from raypipe.core.records import Question, chunk_id, source_id
from raypipe.evaluation.golds import stored_questions
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.read_recipe import stages
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.resolve import resolvers
from raypipe.recipes.step_contract import decides, embedder_of, models_of, table_of
from raypipe.recipes.wiring import HALVES
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.pipeline.tasks import WorkerConfig
from raypipe.store import Store
from raypipe.store.ids import rows
from raypipe.store.index import IndexSpec, LanceIndex

if TYPE_CHECKING:
    from ray.data import Dataset

Rows: TypeAlias = Literal["texts", "passages", "vectors", "answers"]
OpenedStep: TypeAlias = Callable[[pa.Table], Awaitable[pa.Table]]
BLOCK_ROWS = 1024
"""Rows of a block that Lance returns. The text of a CRAG page is some 20 kB, so a block of texts is 20 MB: a
sixth of Ray Data's target size of a block."""


def dataset(
    table: Rows,
    recipe: Named,
    store: Place = None,
    columns: Sequence[str] | None = None,
    model: str | None = None,
    session: Session | None = None,
) -> Dataset:
    """Opens a table of a recipe in a store as a `ray.data.Dataset`, which reads it from Lance by fragments.

    `table` is "texts" (parsed sources), "passages" (chunks with ids and texts), "vectors" (the same chunks
    with vectors) or "answers" (stored answers that an eval would reuse). The vectors are those of the
    embedder `model`; None means the recipe's only embedder. `columns` names the columns to read; None means
    all. The call fixes the table's version, so later commits are not visible. Deleted rows are not read.
    Raises StoreError for a table that the store lacks, and ConfError for an unknown table, column or model.
    """
    if table not in get_args(Rows):
        raise ConfError(f"dataset {table!r}: {did_you_mean(table, get_args(Rows))}")
    session = (session or Session()).over(store)
    opened, found = session.store(store), session.recipe(recipe)
    if table == "answers":  # only answers that an eval would reuse: those from the sources as they are now
        pipeline, questions = offline_pipeline(session, opened, found), stored_questions(opened)
        keys = arrow.id_column(pipeline.keys(questions, pipeline.answer_sources(questions)))

        def present(block: pa.Table, more: tuple[str, ...]) -> pa.Table:
            return block.filter(pc.is_in(block["key"], value_set=keys))

        shown = _TableView((), ("key",), present, f"recipe = X'{found.digest()}'")
        return _read(opened, "answers", columns, shown)
    if table == "texts":
        return _read(opened, found.texts_table, columns)
    if table == "passages":
        name = found.passages_table
    else:
        models = {m.name: m for m in found.embedders()}
        model = next(iter(models)) if model is None and len(models) == 1 else model
        if model not in models:
            known = f"expected model, one of {', '.join(models) or 'none'}; found {model!r}"
            raise ConfError(f"vectors of recipe {found.name!r}: {known}")
        name = found.vectors_table(models[model])
    texts = partial(_with_texts, opened.uri, found.texts_table, opened.version(found.texts_table))
    return _read(opened, name, columns, _TableView(("chunk", "text"), SPANS, texts, "end > start"))


@dataclass(frozen=True, slots=True)
class _TableView:
    """Rows of a stored table that a Dataset shows, and columns that are added to them."""

    added: tuple[str, ...]  # columns that `change` adds
    reads: tuple[str, ...]  # columns that `change` reads
    change: Callable[[pa.Table, tuple[str, ...]], pa.Table]  # changes a block; adds the named columns
    where: str  # filter in Lance's syntax


def _read(
    store: Store, table: str, columns: Sequence[str] | None, shown: _TableView | None = None
) -> Dataset:
    """Returns a Dataset over the newest version of a table. Raises ConfError for an unknown column."""
    import ray.data  # its import takes seconds, and only a Dataset needs it

    version = store.version(table)
    added, reads = (shown.added, shown.reads) if shown else ((), ())
    names = store.dataset(table, version).schema.names
    wanted = list(columns) if columns is not None else [*added, *names]
    for name in wanted:
        if name not in (known := [*added, *names]):
            raise ConfError(f"column {name!r} of table {table}: {did_you_mean(name, known)}")
    read = [n for n in names if n in wanted or n in reads]
    made = ray.data.read_lance(
        store.table_uri(table),
        version=version,
        columns=read,
        scanner_options={"batch_size": BLOCK_ROWS, **({"filter": shown.where} if shown else {})},
    )
    if shown is None:
        return made.select_columns(wanted) if wanted != read else made
    more = tuple(n for n in added if n in wanted)

    def show(block: pa.Table) -> pa.Table:
        return shown.change(block, more).select(wanted)

    return made.map_batches(show, batch_format="pyarrow", batch_size=None)


def _with_texts(store: str, table: str, version: int, chunks: pa.Table, more: tuple[str, ...]) -> pa.Table:
    """Adds the id of each chunk as the column `chunk`, and its text as the column `text`. A column that
    `more` does not name is not added. `table` is the stored table of texts, from which the chunks are cut."""
    sources, starts, ends, begins, stops = (arrow.id_texts(chunks[n]) for n in SPANS)
    if "chunk" in more:
        ids = [chunk_id(s, (a, b)) for s, a, b in zip(sources, begins, stops, strict=True)]
        chunks = chunks.append_column("chunk", pa.array(ids, pa.string()))
    if "text" in more:
        texts, distinct = Store.open(store).dataset(table, version), list(dict.fromkeys(sources))
        found = rows(texts, "source", distinct, ["source", "text"])
        by_source = dict(zip(arrow.id_texts(found["source"]), found["text"].to_pylist(), strict=True))
        cut = [by_source[s][a:b] for s, a, b in zip(sources, starts, ends, strict=True)]
        chunks = chunks.append_column("text", pa.array(cut, pa.large_string()))
    return chunks


class RowStep:
    """Base of the classes that `raypipe.step` makes for `Dataset.map_batches(..., batch_format="pyarrow")`.

    A question step returns each row with changed columns. A corpus step returns any number of rows for an
    input row, and drops the columns that it reads, such as `content`.
    """

    stage: Stage[Any]
    half: str  # corpus or question
    worker: WorkerConfig  # settings by which a worker process opens the step
    index: IndexSpec | None  # index that the step searches; None: the step does not search

    def __init__(self) -> None:
        self._loop = asyncio.Runner()  # models of an endpoint and engines belong to one event loop
        self._change: OpenedStep | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Runs the step on a batch. Raises ConfError if the batch is no pyarrow table or lacks a column, and
        raises the step's errors."""
        if not isinstance(batch, pa.Table):
            found = f'found {type(batch).__name__}: set batch_format="pyarrow"'
            raise ConfError(f"step {self.stage.name}: expected a pyarrow.Table, {found}")
        return self._loop.run(self._changed(batch))

    async def _changed(self, batch: pa.Table) -> pa.Table:
        if self._change is None:  # a model is loaded at the first row that needs it
            kit = self.worker.kit(LanceIndex(self.index) if self.index else None)
            opened = _of_sources if self.half == "corpus" else _of_questions
            self._change = opened(self.stage, kit)
        return await self._change(batch)


def step(
    verb: str,
    /,
    recipe: Named | None = None,
    store: Place = None,
    session: Session | None = None,
    **fields: Any,
) -> type[RowStep]:
    """Makes a class that runs a step in `Dataset.map_batches(..., batch_format="pyarrow")`.

    `fields` are the fields of the step `verb`, as in a recipe's file. With a `recipe` and no fields, `verb`
    is the name of a step in this recipe, such as rerank or generate:web. A step that searches needs a
    `recipe`, and searches the newest version of the recipe's tables in `store`. Ray's worker process loads
    the models, with the settings of the session's cluster file, or calls a model's server. Results are not
    cached. Raises ConfError, ModelMissing, and StoreError if a searched table is missing.
    """
    session = (session or Session()).over(store)
    found = None if recipe is None else session.recipe(recipe)
    half, stage = _stage(session, verb, found, fields)
    index = None
    if any(name.startswith("index.") for name in stage.step.reads()):
        if found is None:
            raise ConfError(f"step {verb} searches: expected a recipe and a store, found no recipe")
        index = searched(session.store(store), found)
    uri = index.store if index else ""
    file, models = session.cluster_file(), models_of(stage.step)
    worker, _ = worker_and_sizes(session, file, uri, models)
    endpoints = endpoint_addresses(file, models, session.settings.keys)  # no batch API: a request per chat
    worker = replace(worker, engines=None, endpoints=endpoints)
    from raypipe.runs.cluster.connection import carry  # imports Ray

    carry(Recipe(verb, "", (), (stage,)))
    made = {"stage": stage, "half": half, "worker": worker, "index": index}
    return type(stage.name, (RowStep,), {**made, "__doc__": type(stage.step).__doc__})


def _stage(
    session: Session, verb: str, recipe: Recipe | None, fields: dict[str, Any]
) -> tuple[str, Stage[Any]]:
    """Returns the step as a stage, and the half of a recipe (corpus or question) to which it belongs. With
    `fields`, or without a recipe, a step of the kind `verb` is made. Otherwise the recipe's step with the
    name `verb` is taken. Raises ConfError for an unknown verb."""
    if recipe is not None and not fields:
        known = {s.name: (half, s) for half in HALVES for s in getattr(recipe, half)}
        if verb not in known:
            raise ConfError(f"step {verb!r} of recipe {recipe.name!r}: {did_you_mean(verb, known)}")
        return known[verb]
    half = next((half for half, verbs in HALVES.items() if verb in verbs), None)
    if half is None:
        near = did_you_mean(verb, [v for table in HALVES.values() for v in table])
        raise ConfError(f"step {verb!r}: {near}; a step of your own is one of a recipe")
    resolve = resolvers(session.settings.conf, session.catalog(), session.graphs)
    [stage] = stages({half: [{verb: fields}]}, half, Where("step"), resolve)
    return half, stage


def _of_sources(stage: Stage[CorpusStep], kit: LocalKit) -> OpenedStep:
    """Returns a function that runs a corpus step on a batch of sources, texts or chunks. If a source gives
    several chunks, its row becomes several rows. A step that embeds returns one row per input row."""
    executor = CorpusExecutor(Recipe(stage.name, "", (stage,), ()), kit)
    fills = table_of(stage.step)

    async def change(batch: pa.Table) -> pa.Table:
        batch = _with_sources(stage, batch)
        if fills == "vectors":  # one output row per input row
            return await executor.vectors(batch, embedder_of(stage.step))
        sources = batch["source"].to_pylist()
        first = {source: i for i, source in reversed(list(enumerate(sources)))}
        distinct = batch.take(pa.array(sorted(first.values()), pa.int64()))
        made = await (executor.texts if fills == "texts" else executor.passages)(distinct)
        of: dict[Any, list[int]] = {}
        for i, source in enumerate(made["source"].to_pylist()):
            of.setdefault(source, []).append(i)
        pairs = [(row, i) for row, source in enumerate(sources) for i in of.get(source, ())]
        out = made.take(pa.array([i for _, i in pairs], pa.int64()))
        read = {*arrow.PARSED.names, "content", "fault", *made.column_names}  # replaced by the step's output
        own = [n for n in batch.column_names if n not in read and not n.startswith(("words_", "starts_"))]
        kept = batch.select(own).take(pa.array([row for row, _ in pairs], pa.int64()))
        for name in kept.column_names:
            out = out.append_column(name, kept[name])
        return out

    return change


def _with_sources(stage: Stage[CorpusStep], batch: pa.Table) -> pa.Table:
    """Adds missing columns: `kind` is "page", `fault` is empty, `source` is the digest of `content`. Decodes
    `content` if it is bytes. Raises ConfError for other missing columns, and for ids not of 16 bytes."""
    _require(stage, batch, stage.step.reads() - {"source", "kind", "fault"})
    columns = dict(zip(batch.column_names, batch.columns, strict=True))
    count = batch.num_rows
    columns.setdefault("kind", pa.array(["page"] * count, pa.string()))
    columns.setdefault("fault", arrow.fault_column([None] * count))
    if "content" in columns:  # pages may have been read as bytes
        read = columns["content"].to_pylist()
        content = [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in read]
        columns["content"] = pa.array(content, pa.large_string())
        named = zip(columns["kind"].to_pylist(), content, strict=True)
        columns.setdefault("source", arrow.id_column(source_id(k, c or "") for k, c in named))
    made = pa.table(columns)
    _require(stage, made, {"source"})
    try:
        ids = made["source"].cast(arrow.DIGEST)
    except pa.ArrowException as e:
        why = f"expected ids of 16 bytes, found {made['source'].type} ({e}). Give `bytes.fromhex(id)` of each"
        raise ConfError(f"step {stage.name}: column source: {why}, or leave it out") from e
    return made.set_column(made.column_names.index("source"), "source", ids)


def _of_questions(stage: Stage[Any], kit: LocalKit) -> OpenedStep:
    """Returns a function that runs a question step on a batch of questions. It returns the rows in order,
    with all columns of a question. The batch needs `id`, `text`, and the hits, order and replies that the
    step reads."""
    executor = QuestionExecutor(Recipe(stage.name, "", (), (stage,)), kit)
    read = {name.partition(".")[0] for name in stage.step.reads() | stage.gate_reads()}
    required = {"id", "text"} | (read & {"hits", "order", "replies"})  # without these it would do nothing

    async def change(batch: pa.Table) -> pa.Table:
        _require(stage, batch, required)
        blank = arrow.question.table([Question("", "")] * batch.num_rows)
        given = set(batch.column_names)
        columns = [(batch if n in given else blank)[n] for n in QUESTIONS.names]
        questions = arrow.question.records(pa.table(columns, names=QUESTIONS.names))
        after = await executor(questions)
        if not decides(stage.step):  # the executor takes the step for a whole recipe, and sets an outcome
            after = [replace(q, outcome=b.outcome) for q, b in zip(after, questions, strict=True)]
        out = arrow.question.table(after)
        for name in batch.column_names:
            if name not in QUESTIONS.names:
                out = out.append_column(name, batch[name])
        return out

    return change


def _require(stage: Stage[Any], batch: pa.Table, columns: set[str] | frozenset[str]) -> None:
    if lacking := sorted(columns - set(batch.column_names)):
        found = ", ".join(batch.column_names)
        raise ConfError(f"step {stage.name}: expected column {', '.join(lacking)}, found {found}")
