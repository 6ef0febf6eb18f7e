"""Approximate vector indexes of a recipe: builds missing or incomplete ones, and measures their recall.

Recall is the share of the exact best `top` chunks that the approximate search finds. A found chunk that is as
good as the last exact one counts, too. Recall is measured on stored questions that search the whole store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from raypipe.core.errors import DataError
from raypipe.core.index import AnnRecall, VectorHit
from raypipe.core.protocols import FIELDS
from raypipe.core.records import Question, digest
from raypipe.evaluation.report.formatting import recall_text
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.recipe_tables import AnnStage, ann_stages, ann_states, require_measured, tables_now
from raypipe.store.index import LanceIndex
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions
from raypipe.store.vector_search import ann_index, build_ann, keep_recall
from raypipe.text.template import PLAIN, query_reads, query_renderer

QUESTIONS = 200  # most questions to measure recall on: 5 % of them are ten


def recalls(pipeline: Pipeline) -> list[AnnRecall]:
    """Builds the approximate indexes that a recipe searches. Returns the recall of each stage; measures all
    stages if one of them was never measured with its settings. Raises RecallTooLow, and DataError
    as `measured` does."""
    built(pipeline)
    if any(state.recall is None for state in ann_states(pipeline.store, pipeline.recipe)):
        for stage, recall in measured(pipeline):
            pipeline.progress.say(f"{stage.name}: {recall.index}: {recall_text(recall)}")
    return require_measured(pipeline.store, pipeline.recipe)


def built(pipeline: Pipeline) -> list[str]:
    """Builds the indexes that are missing or lack vectors. Returns the names of their tables. Raises
    ConfError as `build_ann` does, and StoreError if the vectors are missing."""
    done: list[str] = []
    with driving(pipeline.store, f"ann {pipeline.recipe.name}"):
        for stage in ann_stages(pipeline.recipe):
            found = ann_index(pipeline.store.dataset(stage.table))
            if stage.table not in done and (found is None or found.unindexed):
                build_ann(pipeline.store, stage.table, stage.how)
                done.append(stage.table)
    return done


def measured(pipeline: Pipeline, count: int = QUESTIONS) -> list[tuple[AnnStage, AnnRecall]]:
    """Measures each approximate search of a recipe on at most `count` stored questions. Stores the results.
    Raises DataError if no stored question searches the whole store."""
    questions = sample(pipeline, count)
    index = LanceIndex(tables_now(pipeline.store, pipeline.recipe))
    found = []
    for stage in ann_stages(pipeline.recipe):
        here = ann_index(pipeline.store.dataset(stage.table))
        assert here is not None, "it was built before"
        exact, near = asyncio.run(_searched(pipeline, stage, index, questions))
        shares = [share(a, b) for a, b in zip(exact, near, strict=True)]
        recall = recall_over(shares, [q.id for q in questions], here.name, stage)
        keep_recall(pipeline.store, stage.table, recall, stage.how)
        found.append((stage, recall))
    return found


def sample(pipeline: Pipeline, count: int) -> list[Question]:
    """Returns at most `count` stored questions that search the whole store, drawn by a hash of their ids.
    Raises DataError if there are none."""
    ids = pipeline.store.scan("questions", ["id"])["id"].to_pylist()
    drawn = pipeline.questions(sorted(ids, key=lambda id: digest("ann", id)))
    everything = pipeline.recipe.searches_all()
    found = list(islice((q for q in drawn if everything or q.sources() is None), count))
    if not found:
        raise DataError(
            f"{pipeline.store.uri}: expected questions that search the whole store, to measure recall on; "
            f"found none among {len(ids)}. `raypipe ingest` reads some, such as BEIR's queries.jsonl"
        )
    return found


async def _searched(
    pipeline: Pipeline, stage: AnnStage, index: LanceIndex, questions: Sequence[Question]
) -> tuple[list[list[VectorHit]], list[list[VectorHit]]]:
    """Returns each question's exact and approximate hits. Questions not in the memo are embedded on a CPU."""
    step = next(s.step for s in pipeline.recipe.question if s.name == stage.name)
    template = getattr(step, "query", PLAIN)
    render = query_renderer(template if query_reads(template) <= FIELDS else PLAIN)
    worker = replace(pipeline.worker, device="cpu")  # a driver need not have a GPU
    kit, memo = worker.kit(None), StoreMemo(pipeline.store.uri, memo_versions(pipeline.store))
    try:
        embed = cached(kit, memo, CallCounts()).embedder(stage.model)
        vectors = await embed([render(q) for q in questions], "query")
        exact = await index.search(stage.model, vectors, [None] * len(vectors), stage.top)
        return exact, await index.near(stage.model, vectors, stage.top, stage.how)
    finally:
        await kit.close()


def share(exact: Sequence[VectorHit], near: Sequence[VectorHit]) -> float:
    """Returns the share of the exact hits that an approximate search found, 0..1; 1 without exact hits. An
    approximate hit counts if it scores at least as high as the last exact hit.

    >>> hits = [VectorHit("a", (0, 1), (0, 1), score) for score in (0.9, 0.8, 0.8, 0.1)]
    >>> share(hits[:2], [hits[0], hits[2]]), share(hits[:2], [hits[0], hits[3]])
    (1.0, 0.5)
    """
    if not exact:
        return 1.0
    return min(len(exact), sum(h.score >= exact[-1].score for h in near)) / len(exact)


def recall_over(shares: Sequence[float], ids: Sequence[str], index: str, stage: AnnStage) -> AnnRecall:
    """Summarizes recall shares: mean, 5 % quantile and worst. `ids` has the question of each share."""
    worst = min(range(len(shares)), key=lambda i: (shares[i], ids[i]))
    fifth = sorted(shares)[math.ceil(len(shares) / 20) - 1]
    found = len(shares), float(np.mean(shares)), fifth, shares[worst], ids[worst]
    return AnnRecall(index, stage.top, stage.how.probes, stage.how.refine, *found)
