"""Earlier work of a store that is still valid for a recipe: answers, parts of a killed run, cached values.

The evidence of a question is the sources that it may search, with the missing sources. A plan cannot know all
of it: a source that is still to be parsed, split or embedded may fail again, and then an answer without it is
still valid. Questions that may search such a source are planned in any case.

A stage makes no request about a row that a run answered with the same chain of stages, if all replies are
still cached. A table of the memo (the cache) may have lost values (`store.memo.disk`), and replies of a graph
expire. To find out, the stage runs over the stored answer with cached values only. Nothing here sends a
request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

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


def unfinished_ids(store: Store, what: str, table: str, missing: Ids) -> Ids:
    """Returns the ids in unfinished parts of a killed run, then the missing ids that the run did not plan.
    Returns `missing` if no run was killed. `what`: name of the work."""
    run = begun(store, what)
    if run is None:
        return missing
    if store.has(table) and committed(store, table, run.name) is not None:
        return missing.without(run.ids)
    here = done_parts(store, table, run.name)
    return run.ids_of(part for part in run.parts if part not in here).joined(missing.without(run.ids))


def unfinished_answers(
    store: Store, work_id: str, keys: Mapping[str, str], missing: Sequence[str]
) -> list[str]:
    """Returns the ids of questions in unfinished parts of a killed run, then other missing ids without an
    answer in its finished parts. Without a killed run, or if its answers are committed, returns `missing`.
    `keys`: answer key -> question id."""
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
    """Returns the ids of questions with a stored answer by a recipe from the present evidence, and of those
    without any fault: a fault may have kept a stage from its requests, and a faulty reply may not be cached.
    `recipe`: its digest. `evidence`: question id -> row key, and digest of missing sources."""
    keys = {recipe_tables.answer_key(recipe, id, *of): id for id, of in evidence.items()}
    table = rows(store.dataset("answers"), "key", list(keys), ["key", "faults", "replies"])
    fine = table.filter(pc.equal(pc.list_value_length(table["faults"]), 0))
    replies = fine["replies"]
    column = pa.concat_arrays(replies.chunks) if replies.num_chunks else pa.array([], replies.type)
    failed = pc.equal(pc.struct_field(column.items, "label"), FAULT).to_numpy(zero_copy_only=False)
    before, offsets = np.concatenate([[0], np.cumsum(failed)]), column.offsets.to_numpy()
    fine = fine.filter(pa.array(before[offsets[1:]] == before[offsets[:-1]]))
    of_any, of_fine = ({keys[k] for k in arrow.id_texts(t["key"])} for t in (table, fine))
    return of_any, of_fine


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Questions that an eval may have to answer."""

    sources: recipe_tables.AnswerSources  # evidence, if only sources with a final fault remain incomplete
    ids: Sequence[str]
    pending: set[str]  # questions with sources that are still to be parsed, split or embedded
    again: set[str]  # part of `ids`: this recipe answered them before, perhaps without some sources


def unanswered(
    pipeline: Pipeline, questions: Sequence[Question], wanted: Ids, snapshot: str, fresh: bool
) -> Unanswered:
    """Finds the questions that an eval may have to answer. `wanted`: sources that these questions may search,
    including sources to be ingested; `fresh`: True: all questions are answered again."""
    store, tables = pipeline.store, recipe_tables.table_labels(pipeline.recipe)
    failed: dict[str, Ids] = {}  # table label -> sources that failed for good, so stay incomplete
    coming: list[Ids] = []  # sources that will be processed further
    lacks = recipe_tables.lacking(store, pipeline.recipe, wanted, {}, pipeline.searches_all(questions))
    for label, lack in lacks.items():
        dead = Ids.of(failed_ids(store, {tables[label]}))
        if len(mine := lack.where(stand_in(lack.array, dead.array))):
            failed[label] = mine
        if len(more := lack.without(dead)):
            coming.append(more)
    sources = recipe_tables.answer_sources(snapshot, by_source(failed), pipeline.recipe)
    cited = {q.id: None if sources.everything else q.sources() for q in questions}
    named = Ids.of(dict.fromkeys(s for own in cited.values() for s in own or ()))
    soon = {s for some in coming for s in named.where(stand_in(named.array, some.array))}
    search = ((q, coming if own is None else soon.intersection(own)) for q, own in cited.items())
    pending = {q for q, more in search if more}
    ids = [q.id for q in questions]
    if not fresh:
        keys = pipeline.keys(questions, sources)
        due = unfinished_answers(store, pipeline.answers_work_id(snapshot), keys, pipeline.unanswered(keys))
        ids = list(dict.fromkeys([*due, *(i for i in ids if i in pending)]))
    recipe, again = pipeline.recipe.digest(), set[str]()
    if ids and store.count("answers", f"recipe = X'{recipe}'"):
        rows = arrow.with_id_texts(store.rows("answers", "id", ids, ["id", "row", "recipe"]).to_pylist())
        before = {(r["id"], r["row"]) for r in rows if r["recipe"] == recipe}
        again = {q.id for q in questions if (q.id, sources.row(q)) in before}
    return Unanswered(sources, ids, pending, again)


AHEAD_S = 3600.0
"""Seconds before its expiry from which a graph's reply counts as expired, since a run may take as long. A
longer run that passes the end of a period can send more requests than planned."""

AT_ONCE = 100  # answers followed at the same time


def in_doubt(store: Store, step: Step) -> bool:
    """Returns whether cached values of the step may be lost or expired, so that they are requested again."""
    if any(ref.periods() for ref in requested_by(step)):
        return True
    of = {"embedder": vectors_of, "reranker": scores_of, "generator": replies_of}
    tables = [of[m.kind](m) for m in asked_models(step)]
    tables += [request_replies_of(ref.version) for ref in requested_by(step)]
    return any(has_lost(store, table.name) for table in tables)


def lost_answers(pipeline: Pipeline, stage: Stage[Step], keys: Sequence[str]) -> dict[str, str]:
    """Maps the question ids of stored answers with these keys to reasons, as `uncached` does. Replies of a
    graph that expire within AHEAD_S count as expired."""
    stored = (pipeline.store.rows("answers", "key", some) for some in batches(keys, AT_ONCE))
    answered = chain.from_iterable(map(arrow.question.records, stored))
    return uncached(pipeline, stage, answered, lambda: time.time() + AHEAD_S)


def uncached(
    pipeline: Pipeline, stage: Stage[Step], answered: Iterable[Question], clock: Callable[[], float]
) -> dict[str, str]:
    """Maps each answered question for which the stage needs an uncached value to the reason. The reason is
    expired for a graph's reply whose period is over by this clock, otherwise lost."""
    searches = any(name.startswith("index.") for name in stage.step.reads())
    # Without a search the recipe's tables may be missing: another `split` changes no step of the graph.
    index = LanceIndex(recipe_tables.tables_now(pipeline.store, pipeline.recipe)) if searches else None
    here = pipeline.worker.kit(index)
    memo = StoreMemo(pipeline.store.uri, memo_versions(pipeline.store))
    ask = stage.step.open(cached(CacheOnlyKit(here), memo, CallCounts(), clock=clock))
    refreshed = {d for ref in requested_by(stage.step) for d in ref.periods() or ()}

    async def lacks(question: Question) -> str:
        try:
            await ask([question])
        except NotCached as e:
            return "expired" if isinstance(e, NoReply) and domain_of(e.path) in refreshed else "lost"
        return ""

    async def reasons() -> dict[str, str]:
        whys = dict[str, str]()
        for some in batches(filter(stage.admits, answered), AT_ONCE):
            each = await asyncio.gather(*map(lacks, some))
            whys |= {q.id: why for q, why in zip(some, each, strict=True) if why}
        await here.close()
        return whys

    return asyncio.run(reasons())


def kept_inputs(stage: Stage[Step], written: Iterable[Iterable[str]]) -> bool:
    """Returns whether a stored answer still holds the fields that the stage read, as they were then. It does
    not if this stage or a later one wrote one of them. `written`: the fields of this stage and of each later
    one.

    >>> from raypipe.steps.decide import Decide
    >>> decide = Stage("decide", Decide(prefer=("llm",)))
    >>> kept_inputs(decide, [["order"], ["replies.other"]]), kept_inputs(decide, [["replies.llm"]])
    (True, False)
    """
    read = [r for r in stage.step.reads() | stage.gate_reads() if not r.startswith("index.")]
    return not any(overlap(r, w) for writes in written for w in writes for r in read)


def overlap(a: str, b: str) -> bool:
    """Returns whether two field names are equal, or one is a part of the other.

    >>> overlap("hits", "hits.bm25"), overlap("hits.dense", "hits.bm25"), overlap("order", "order")
    (True, False, True)
    """
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def behind_index(recipe: Recipe) -> frozenset[str]:
    """Returns the names of the stages whose requests may change when a missing source arrives. Such a stage
    searches or reads passages, or reads a field that such a stage before it writes."""
    behind, written = set[str](), set[str]()
    for stage in recipe.question:
        reads = stage.step.reads() | stage.gate_reads()
        if any(r.startswith("index.") for r in stage.step.reads()) or not written.isdisjoint(reads):
            behind.add(stage.name)
            written |= stage.step.writes()
    return frozenset(behind)
