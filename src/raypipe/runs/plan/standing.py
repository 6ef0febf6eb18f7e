"""Whether the cached values that stored answers were made from still stand: the memo is asked, row by row.

A stage asks nothing about a row that a run answered with the same chain, if what it asked then is still
cached. That is so unless a memo table has lost values (`store.memo.disk`), or replies of a graph expire. Then
the stage is run over the stored answer with what is cached alone. Sends no request.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Mapping

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.protocols import Ask, Step
from raypipe.core.records import Question
from raypipe.core.references import domain_of
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import asked_models, requested_by
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import tables_now
from raypipe.store.index import LanceIndex
from raypipe.store.memo.counts import CallCounts
from raypipe.store.memo.disk import StoreMemo, has_lost, memo_versions
from raypipe.store.memo.lookup import CacheOnlyKit, NoReply, NotCached
from raypipe.store.memo.memo import MemoTable, cached, replies_of, request_replies_of, scores_of, vectors_of

AHEAD_S = 3600.0
"""A graph's reply that expires within that time counts as expired: a run may take as long. One that takes
longer, over the end of a period, can ask more than was planned."""

AT_ONCE = 100  # answers that are followed at once


class Standing:
    """What the memo of a store still holds of a recipe's earlier work."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._has_lost = functools.cache(functools.partial(has_lost, pipeline.store))  # by memo table

    def in_doubt(self, step: Step) -> bool:
        """Whether a request of the step may have to be made again."""
        if any(ref.periods() for ref in requested_by(step)):
            return True
        return any(self._has_lost(table.name) for table in _tables(step))

    def lacking(self, stage: Stage[Step], answers: Mapping[str, str]) -> dict[str, str]:
        """The same of stored answers: key -> question id."""
        store = self._pipeline.store
        rows = (store.rows("answers", "key", keys) for keys in batches(answers, AT_ONCE))
        stored = (q for some in rows for q in arrow.question.records(some))
        return lacking(self._pipeline, stage, stored, lambda: time.time() + AHEAD_S)


def lacking(
    pipeline: Pipeline, stage: Stage[Step], answered: Iterable[Question], clock: Callable[[], float]
) -> dict[str, str]:
    """Question id -> why, for answered questions about which the stage would need what is not cached by this
    clock: expired, for a graph's reply whose period is over, else lost."""
    return asyncio.run(_lacking(pipeline, stage, answered, clock))


async def _lacking(
    pipeline: Pipeline, stage: Stage[Step], answered: Iterable[Question], clock: Callable[[], float]
) -> dict[str, str]:
    found = dict[str, str]()
    here = pipeline.worker.kit(LanceIndex(tables_now(pipeline.store, pipeline.recipe)))
    memo = StoreMemo(pipeline.store.uri, memo_versions(pipeline.store))
    ask = stage.step.open(cached(CacheOnlyKit(here), memo, CallCounts(), clock=clock))
    refreshed = {d for ref in requested_by(stage.step) for d in ref.periods() or ()}
    for some in batches(filter(stage.admits, answered), AT_ONCE):
        whys = await asyncio.gather(*(_lacks(ask, q, refreshed) for q in some))
        found |= {q.id: why for q, why in zip(some, whys, strict=True) if why}
    await here.close()
    return found


def kept_inputs(stage: Stage[Step], written: Iterable[Iterable[str]]) -> bool:
    """Whether a stored answer still has what the stage read: neither it nor a later stage, each by what it
    writes, wrote over it.

    >>> from raypipe.steps.decide import Decide
    >>> decide = Stage("decide", Decide(prefer=("llm",)))
    >>> kept_inputs(decide, [["order"], ["replies.other"]]), kept_inputs(decide, [["replies.llm"]])
    (True, False)
    """
    read = [r for r in stage.step.reads() | stage.gate_reads() if not r.startswith("index.")]
    return not any(overlap(r, w) for writes in written for w in writes for r in read)


def overlap(a: str, b: str) -> bool:
    """Whether two names of fields mean the same, or one a part of the other.

    >>> overlap("hits", "hits.bm25"), overlap("hits.dense", "hits.bm25"), overlap("order", "order")
    (True, False, True)
    """
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def _tables(step: Step) -> list[MemoTable]:
    """The memo tables that a step asks of."""
    of = {"embedder": vectors_of, "reranker": scores_of, "generator": replies_of}
    requests = [request_replies_of(ref.version) for ref in requested_by(step)]
    return [of[m.kind](m) for m in asked_models(step)] + requests


async def _lacks(ask: Ask, question: Question, refreshed: set[str]) -> str:
    """Why a stage would ask about a stored answer again; "" where all is cached. `refreshed`: domains whose
    replies expire."""
    try:
        await ask([question])
    except NoReply as e:
        return "expired" if domain_of(e.path) in refreshed else "lost"
    except NotCached:
        return "lost"
    return ""


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
