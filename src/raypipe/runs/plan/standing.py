"""Earlier work of a store that still stands for a recipe: its answers, what a killed run has left, and the
cached values that stored answers were made from.

Which questions an eval has to answer follows, as far as a plan can know, from the evidence after indexing. A
source that is parsed, split or embedded before the questions are answered may fail again, and then an answer
that was made without it still stands: such questions are planned whether or not they have one.

A stage asks nothing about a row that a run answered with the same chain, if what it asked then is still
cached. That is so unless a memo table has lost values (`store.memo.disk`), or replies of a graph expire. Then
the stage is run over the stored answer with what is cached alone. Sends no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.protocols import Step
from raypipe.core.records import FAULT, Question
from raypipe.core.references import domain_of
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import asked_models, requested_by
from raypipe.runs.pipeline import recipe_tables
from raypipe.runs.pipeline.corpus_builds import failed_ids
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.store import Store, begun, committed, done_parts
from raypipe.store.ids import Ids, rows, stand_in
from raypipe.store.index import LanceIndex
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, has_lost, memo_versions
from raypipe.store.memo.lookup import CacheOnlyKit, NoReply, NotCached
from raypipe.store.memo.memo import replies_of, request_replies_of, scores_of, vectors_of
from raypipe.store.parts import staged
from raypipe.store.sources import by_source


def left(store: Store, what: str, table: str, missing: Ids) -> Ids:
    """Ids of the parts that a killed run did not do, then the missing ids that it did not mean to do."""
    run = begun(store, what)
    if run is None:
        return missing
    if store.has(table) and committed(store, table, run.name) is not None:
        return missing.without(run.ids)
    here = done_parts(store, table, run.name)
    return run.ids_of(part for part in run.parts if part not in here).joined(missing.without(run.ids))


def left_answers(store: Store, work_id: str, keys: Mapping[str, str], missing: Sequence[str]) -> list[str]:
    """Ids of the questions in the parts that a killed run did not do, then of those missing that its other
    parts do not answer from the present evidence. `keys`: key of its answer -> question id."""
    run = begun(store, work_id)
    if run is None or committed(store, "answers", run.name) is not None:
        return list(missing)
    here = done_parts(store, "answers", run.name)
    undone = run.ids_of(part for part in run.parts if part not in here)
    done = {keys.get(k) for k in staged(store, "answers", run.name, here, "key")}
    return [*undone, *(i for i in missing if i not in done and i not in set(undone))]


def answered_by(
    store: Store, recipe: str, evidence: Mapping[str, tuple[str, str]]
) -> tuple[set[str], set[str]]:
    """Ids of questions that have a stored answer by a recipe, from the evidence they have now; and of those
    without a fault that kept a stage from its row, and without a reply that broke: it may not be cached.
    `evidence`: question id -> its row key, and what is absent (`AnswerSources`)."""
    keys = {recipe_tables.answer_key(recipe, id, *of): id for id, of in evidence.items()}
    table = rows(store.dataset("answers"), "key", list(keys), ["key", "faults", "replies"])
    fine = table.filter(pc.equal(pc.list_value_length(table["faults"]), 0))
    replies = fine["replies"]
    column = pa.concat_arrays(replies.chunks) if replies.num_chunks else pa.array([], replies.type)
    broke = pc.equal(pc.struct_field(column.items, "label"), FAULT).to_numpy(zero_copy_only=False)
    before, offsets = np.concatenate([[0], np.cumsum(broke)]), column.offsets.to_numpy()
    fine = fine.filter(pa.array(before[offsets[1:]] == before[offsets[:-1]]))
    of_any, of_fine = ({keys[k] for k in arrow.id_texts(t["key"])} for t in (table, fine))
    return of_any, of_fine


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The questions that an eval may have to answer."""

    sources: (
        recipe_tables.AnswerSources
    )  # what they are answered from, if no source fails that did not fail for good
    ids: tuple[str, ...]
    pending: frozenset[str]  # questions some of whose sources are still to be parsed, split or embedded
    again: frozenset[str]  # of `ids`: answered before by this recipe, from other evidence


def unanswered(
    pipeline: Pipeline, questions: Sequence[Question], wanted: Ids, snapshot: str, fresh: bool
) -> Unanswered:
    """`wanted`: the sources that these questions may search, those to be ingested included. `fresh`: every
    question is answered again."""
    store, tables = pipeline.store, recipe_tables.table_labels(pipeline.recipe)
    stays: dict[str, Ids] = {}  # what will be lacking still, since it failed for good
    coming: list[Ids] = []  # sources that will have more
    lacks = recipe_tables.lacking(store, pipeline.recipe, wanted, {}, pipeline.searches_all(questions))
    for label, lack in lacks.items():
        failed = Ids.of(failed_ids(store, {tables[label]}))
        if len(mine := lack.where(stand_in(lack.array, failed.array))):
            stays[label] = mine
        if len(more := lack.without(failed)):
            coming.append(more)
    sources = recipe_tables.answer_sources(snapshot, by_source(stays), pipeline.recipe)
    cited = {q.id: None if sources.everything else q.sources() for q in questions}
    named = Ids.of(dict.fromkeys(s for own in cited.values() for s in own or ()))
    soon = {s for some in coming for s in named.where(stand_in(named.array, some.array))}
    search = ((q, coming if own is None else soon.intersection(own)) for q, own in cited.items())
    pending = frozenset(q for q, more in search if more)
    ids = [q.id for q in questions]
    if not fresh:
        keys = pipeline.keys(questions, sources)
        due = left_answers(store, pipeline.answers_work_id(snapshot), keys, pipeline.unanswered(keys))
        ids = list(dict.fromkeys([*due, *(i for i in ids if i in pending)]))
    recipe, again = pipeline.recipe.digest(), frozenset[str]()
    if ids and store.count("answers", f"recipe = X'{recipe}'"):
        found = arrow.with_id_texts(store.rows("answers", "id", ids, ["id", "row", "recipe"]).to_pylist())
        before = {(r["id"], r["row"]) for r in found if r["recipe"] == recipe}
        again = frozenset(q.id for q in questions if (q.id, sources.row(q)) in before)
    return Unanswered(sources, tuple(ids), pending, again)


AHEAD_S = 3600.0
"""A graph's reply that expires within that time counts as expired: a run may take as long. One that takes
longer, over the end of a period, can ask more than was planned."""

AT_ONCE = 100  # answers that are followed at once


def in_doubt(store: Store, step: Step) -> bool:
    """Tells by the memo whether a request of the step may have to be made again."""
    if any(ref.periods() for ref in requested_by(step)):
        return True
    of = {"embedder": vectors_of, "reranker": scores_of, "generator": replies_of}
    tables = [of[m.kind](m) for m in asked_models(step)]
    tables += [request_replies_of(ref.version) for ref in requested_by(step)]
    return any(has_lost(store, table.name) for table in tables)


def lost_answers(pipeline: Pipeline, stage: Stage[Step], keys: Sequence[str]) -> dict[str, str]:
    """`uncached` of the stored answers with these keys."""
    rows = (pipeline.store.rows("answers", "key", some) for some in batches(keys, AT_ONCE))
    stored = (q for some in rows for q in arrow.question.records(some))
    return uncached(pipeline, stage, stored, lambda: time.time() + AHEAD_S)


def uncached(
    pipeline: Pipeline, stage: Stage[Step], answered: Iterable[Question], clock: Callable[[], float]
) -> dict[str, str]:
    """Question id -> why, for answered questions about which the stage would need what is not cached by this
    clock: expired, for a graph's reply whose period is over, else lost."""
    here = pipeline.worker.kit(LanceIndex(recipe_tables.tables_now(pipeline.store, pipeline.recipe)))
    memo = StoreMemo(pipeline.store.uri, memo_versions(pipeline.store))
    ask = stage.step.open(cached(CacheOnlyKit(here), memo, CallCounts(), clock=clock))
    refreshed = {d for ref in requested_by(stage.step) for d in ref.periods() or ()}

    async def lacks(question: Question) -> str:
        try:
            await ask([question])
        except NotCached as e:
            return "expired" if isinstance(e, NoReply) and domain_of(e.path) in refreshed else "lost"
        return ""

    async def found() -> dict[str, str]:
        whys = dict[str, str]()
        for some in batches(filter(stage.admits, answered), AT_ONCE):
            each = await asyncio.gather(*map(lacks, some))
            whys |= {q.id: why for q, why in zip(some, each, strict=True) if why}
        await here.close()
        return whys

    return asyncio.run(found())


def kept_inputs(stage: Stage[Step], written: Iterable[Iterable[str]]) -> bool:
    """Returns whether a stored answer still has what the stage read: neither it nor a later stage, each by
    what it writes, wrote over it.

    >>> from raypipe.steps.decide import Decide
    >>> decide = Stage("decide", Decide(prefer=("llm",)))
    >>> kept_inputs(decide, [["order"], ["replies.other"]]), kept_inputs(decide, [["replies.llm"]])
    (True, False)
    """
    read = [r for r in stage.step.reads() | stage.gate_reads() if not r.startswith("index.")]
    return not any(overlap(r, w) for writes in written for w in writes for r in read)


def overlap(a: str, b: str) -> bool:
    """Returns whether two names of fields mean the same, or one a part of the other.

    >>> overlap("hits", "hits.bm25"), overlap("hits.dense", "hits.bm25"), overlap("order", "order")
    (True, False, True)
    """
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def behind_index(recipe: Recipe) -> frozenset[str]:
    """The stages that may ask something else once a source is there that was not: those that search or read
    passages, and those that read what they wrote."""
    found, written = set[str](), set[str]()
    for stage in recipe.question:
        reads = stage.step.reads() | stage.gate_reads()
        if any(r.startswith("index.") for r in stage.step.reads()) or not written.isdisjoint(reads):
            found.add(stage.name)
            written |= stage.step.writes()
    return frozenset(found)
