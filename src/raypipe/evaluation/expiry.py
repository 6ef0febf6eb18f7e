"""Expired answers: those that rest on replies of a knowledge graph that no longer hold.

Replies of a domain with a refresh period hold for that period (`GraphRef.refresh`). A stored answer has
expired if its calls, made now, would need a reply that is not cached for the present period. What still holds
is cached, so answering again queries the graph only for expired replies, and a model only where that changed
its prompt. Knows recipes, stored answers and the memo; sends no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from raypipe.core.batches import batches
from raypipe.core.kg import domain_of
from raypipe.core.protocols import Ask, GraphRef, Step
from raypipe.core.records import Question
from raypipe.memo.counts import CallCounts
from raypipe.memo.disk import StoreMemo, memo_versions
from raypipe.memo.lookup import CacheOnlyKit, NoReply, NotCached
from raypipe.memo.memo import cached
from raypipe.pipeline.driver import Pipeline
from raypipe.recipes.recipe import Stage
from raypipe.runs.plan.standing import asking

AT_ONCE = 100  # answers whose calls are followed at once


def expired_answers(
    pipeline: Pipeline, questions: Iterable[Question], clock: Callable[[], float] = time.time
) -> dict[str, str]:
    """Question id -> key of its stored answer, where that rests on a reply which no longer holds."""
    stages = asking(pipeline.recipe)
    if not stages:
        return {}
    asked = list(questions)
    sources, recipe = pipeline.answer_sources(asked), pipeline.recipe.digest()
    stored = zip(asked, pipeline.answers(asked, sources), strict=True)
    answered = [(q, a) for q, a in stored if a.outcome and a.outcome != "fault"]
    old = asyncio.run(_old(pipeline, stages, [a for _, a in answered], clock))
    return {q.id: sources.key(recipe, q) for q, _ in answered if q.id in old}


async def _old(
    pipeline: Pipeline,
    stages: Sequence[tuple[Stage[Step], GraphRef]],
    answered: Sequence[Question],
    clock: Callable[[], float],
) -> set[str]:
    """Ids of the answers whose calls, followed with what is cached alone, need a reply that is not."""
    here = pipeline.worker.kit(None)
    memo = StoreMemo(pipeline.store.uri, memo_versions(pipeline.store))
    kit = cached(CacheOnlyKit(here), memo, CallCounts(), clock=clock)
    found: set[str] = set()
    for stage, graph in stages:
        ask = stage.step.open(kit)
        for some in batches([q for q in answered if stage.admits(q)], AT_ONCE):
            lacking = await asyncio.gather(*(_lacking(ask, q) for q in some))
            found |= {q.id for q, path in zip(some, lacking, strict=True) if domain_of(path) in graph.refresh}
    await here.close()
    return found


async def _lacking(ask: Ask, question: Question) -> str:
    """Path of the first request of a stage that is not cached; "" for none."""
    try:
        await ask([question])
    except NoReply as e:
        return e.path
    except NotCached:  # a model's: the graph is not what has changed
        pass
    return ""
