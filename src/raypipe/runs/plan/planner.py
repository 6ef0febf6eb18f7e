"""Plan of an eval, made before anything runs: the calls that each step may make, and the reasons.

Counts are exact if they can be known, else upper bounds, if possible with an estimate. A run makes no other
calls, except repeats and probes after a failure, and requests whose cached reply of a graph expires
meanwhile. Planning stores nothing, and does not read files again that the store has read before.

The flip rate of an engine is the share of replies that differ if their chats are sent again alone. It says
how far answers of an endpoint, which sends chats alone, may differ from those of a job: kernels choose the
order of sums by batch size. The rate belongs to the model and the machine. A run measures it if no earlier
run on this machine did, and the plan counts these chats.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.digests import own_identity
from raypipe.core.records import Gold, Question, Source
from raypipe.readers import BadLine, Format, ReadCounts
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models, table_of
from raypipe.runs.pipeline.answer_operators import TWICE
from raypipe.runs.pipeline.counters import Counts
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest import fingerprint
from raypipe.runs.pipeline.ingest_log import noted
from raypipe.runs.pipeline.ingest_staging import BAD_SHOWN
from raypipe.runs.pipeline.recipe_tables import ann_states
from raypipe.runs.pipeline.tasks import WorkerConfig
from raypipe.runs.plan.corpus import CorpusPlanner
from raypipe.runs.plan.costs import PlanContext, summed
from raypipe.runs.plan.questions import QuestionPlanner
from raypipe.runs.plan.records import NewSources, Plan, StepPlan, calls_each
from raypipe.runs.plan.sample import Sampler
from raypipe.runs.record import Run, recent
from raypipe.runs.run_parts import FlipRate
from raypipe.runs.stage_records import models_of
from raypipe.store import Store

SAMPLE = 20  # questions whose chats are sent twice: enough to tell a rate of .25 from 0 with p < .01


def engines_of(recipe: Recipe) -> tuple[str, ...]:
    """Returns the identities of the models that run on engines."""
    return tuple(sorted({own_identity(m) for m in recipe.models() if m.loader == "vllm"}))


def known_rate(recipe: Recipe, worker: WorkerConfig, kept: Sequence[Run]) -> FlipRate | None:
    """Returns the flip rate of these engines on this device, or None. `kept`: runs, newest first."""
    rates = (m.flips for m in kept if m.device == worker.device and m.flips is not None)
    return next((rate for rate in rates if rate.engines == engines_of(recipe)), None)


def _chats_twice(recipe: Recipe, worker: WorkerConfig, kept: Sequence[Run], steps: Sequence[StepPlan]) -> int:
    """Estimates the most chats sent twice to measure the flip rate; 0 if it is known, or batches change
    nothing."""
    if worker.engine_limits.batch_invariant or known_rate(recipe, worker, kept):
        return 0
    asking = {s.name for s in recipe.question if any(m.loader == "vllm" for m in asked_models(s.step))}
    chats = 0
    for step in (s for s in steps if s.step in asking and s.max_calls):
        rows = max(1.0, step.rows - step.cached)
        each = 1.0 if math.isinf(step.max_calls) else step.max_calls / rows
        chats += math.ceil(min(SAMPLE, rows) * each)
    return chats


def measured_rate(recipe: Recipe, counts: Counts, run: str) -> FlipRate | None:
    """Returns the flip rate from the counts of a run's tasks; None if no chat was sent twice."""
    twice = counts.get(TWICE)
    return FlipRate(twice.rows, twice.differ, engines_of(recipe), run) if twice and twice.rows else None


def read_questions(store: Store, paths: Sequence[Path], format: Format) -> tuple[list[Question], NewSources]:
    """Reads the questions of some files, and finds the sources that the store lacks. Files that the store has
    read before add no sources: their questions come from the store. Raises ConfError for an unknown format,
    and DataError for a damaged file or if no line can be read."""
    if (known := noted(store, fingerprint(paths, format))) is not None:
        stored = arrow.question.records(store.rows("questions", "id", known.questions))
        by_id = {q.id: q for q in stored}
        return [by_id[id] for id in known.questions], NewSources()
    questions, golds, counts, bad = dict[str, Question](), list[Gold](), ReadCounts(), list[BadLine]()

    def sources() -> Iterator[Source]:
        for row in readers.open(paths, format, counts):
            bad.extend(BadLine(row.where, f.reason, f.detail) for f in row.faults[: BAD_SHOWN - len(bad)])
            if row.question is not None:
                questions[row.question.id] = row.question
            if row.gold is not None:
                golds.append(row.gold)
            yield from row.sources

    coming = new_sources(store, sources())
    readers.require_rows(paths, counts, bad)
    return list(questions.values()), replace(coming, golds=tuple(golds))


def new_sources(store: Store, sources: Iterable[Source]) -> NewSources:
    """Returns the sources that the store lacks. Iterates once, and keeps only a sample of the texts of each
    kind, because a recipe may use some kinds only."""
    kinds, chars, samplers = dict[str, str](), dict[str, int](), defaultdict[str, Sampler](Sampler)
    for source in sources:
        kinds[source.id], chars[source.id] = source.kind, len(source.content)
        samplers[source.kind].add(source)
    new = set(store.missing("sources", "id", list(kinds)))
    return NewSources(
        {s: kind for s, kind in kinds.items() if s in new},
        {s: n for s, n in chars.items() if s in new},
        {id: source for s in samplers.values() for id, source in s.kept.items() if id in new},
    )


LOOKED_BACK = 20  # newest finished runs whose answers and rates count


def plan(
    pipeline: Pipeline,
    questions: Iterable[Question] | None,
    coming: NewSources | None = None,
    fresh: bool = False,
    old: Collection[str] = (),
    measured: Sequence[Run] = (),
) -> Plan:
    """Plans an eval of these questions; None: plans the corpus half only, for questions about the whole
    store. `coming`: sources to be ingested first. `fresh`: all questions are answered again, and cached
    replies do not count. `old`: ids of questions to answer again, such as those whose answers rest on expired
    replies of a graph. `measured`: runs on this machine, on any store, which show its speed."""
    store, recipe = pipeline.store, pipeline.recipe
    context = PlanContext(pipeline, recent(store, LOOKED_BACK), measured, coming or NewSources(), fresh)
    asked = [Question("", "")] if questions is None else list(questions)
    corpus = CorpusPlanner(context, asked)
    steps = [*corpus.plans()]
    if questions is not None:
        steps += QuestionPlanner(context, corpus, asked, frozenset(old)).plans()
    return Plan(
        tuple(steps),
        changed=context.changed(),
        adopted=tuple(m.adopted for m in models_of(recipe.models()) if m.adopted),
        ann=tuple(ann_states(store, recipe)),
        twice=_chats_twice(recipe, pipeline.worker, measured, steps),
    )


def plan_embedding(pipeline: Pipeline, measured: Sequence[Run]) -> tuple[int, float | None]:
    """Estimates the passages of the whole store to embed, summed over embedders, and the seconds that this
    takes. Returns (0, None) if the number is 0 or not known. Seconds are None if no run measured them."""
    each = {s.name: calls_each(s.step) for s in pipeline.recipe.corpus if table_of(s.step) == "vectors"}
    steps = [s for s in plan(pipeline, None, measured=measured).steps if s.step in each]
    chunks = sum((s.expected[1] if s.expected else s.max_calls) / each[s.step] for s in steps)
    if math.isinf(chunks) or not chunks:
        return 0, None
    took = summed([s.cost.seconds for s in steps])
    threads = pipeline.workers("embed").count * pipeline.worker.threads
    return round(chunks), None if took is None else took[1] / threads
