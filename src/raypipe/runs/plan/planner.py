"""Plan of an eval, made before anything runs: the calls that each step may make, and the reasons.

Counts are exact if they can be known: sources to parse, texts of an unchanged split, questions to embed.
Other counts are upper bounds with an estimate. No run makes a call that its plan did not count. Planning
changes nothing in the store. It reads the eval's files without storing them. Files that the store has read
before are not read again.

The flip rate of an engine is the share of replies that differ if their chats are sent again alone. Kernels
choose the order of sums by batch size, and endpoints send chats alone. The rate belongs to the model and the
machine. A run measures it if no earlier run on this machine did, and the plan counts these chats.
"""

from __future__ import annotations

import math
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
    """Returns the flip rate of these engines on this device from the newest run that measured it; None if no
    run did. `kept`: finished runs of this machine, newest first."""
    rates = (m.flips for m in kept if m.device == worker.device and m.flips is not None)
    return next((rate for rate in rates if rate.engines == engines_of(recipe)), None)


def chats_twice(recipe: Recipe, worker: WorkerConfig, kept: Sequence[Run], steps: Sequence[StepPlan]) -> int:
    """Returns the most chats that a run sends twice to measure the flip rate. Returns 0 if the rate is known,
    or if replies do not depend on the batch. `steps`: the plans of the run's steps."""
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
    found = counts.get(TWICE)
    return FlipRate(found.rows, found.differ, engines_of(recipe), run) if found and found.rows else None


def read_questions(store: Store, paths: Sequence[Path], format: Format) -> tuple[list[Question], NewSources]:
    """Reads the questions of some files, and finds the sources that the store lacks. Files that the store has
    read before add no sources: their questions come from the store. Raises ConfError for an unknown format,
    DataError for a damaged file, and DataError if no line can be read."""
    if (known := noted(store, fingerprint(paths, format))) is not None:
        rows = store.rows("questions", "id", known.questions)
        found = {q.id: q for q in arrow.question.records(rows)}
        return [found[id] for id in known.questions], NewSources()
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


def new_sources(store: Store, found: Iterable[Source]) -> NewSources:
    """Returns the sources that the store lacks. Iterates once, and keeps only a sample in memory."""
    kinds, chars, sampler = dict[str, str](), dict[str, int](), Sampler()
    for source in found:
        kinds[source.id], chars[source.id] = source.kind, len(source.content)
        sampler.add(source)
    new = set(store.missing("sources", "id", list(kinds)))
    return NewSources(
        {s: kind for s, kind in kinds.items() if s in new},
        {s: n for s, n in chars.items() if s in new},
        {id: source for id, source in sampler.kept.items() if id in new},
    )


LOOKED_BACK = 20  # newest finished runs whose answers and rates count


def plan(
    pipeline: Pipeline,
    questions: Iterable[Question],
    coming: NewSources | None = None,
    fresh: bool = False,
    old: Collection[str] = (),
    measured: Sequence[Run] = (),
) -> Plan:
    """Plans an eval of these questions on this store. `coming`: sources to be ingested first; None: none.
    `fresh`: all questions are answered again, and cached replies do not count. `old`: ids of questions to
    answer again, such as those whose answers rest on expired replies of a graph. `measured`: runs on this
    machine, on any store, which show its speed."""
    questions = list(questions)  # iterated several times
    runs = recent(pipeline.store, LOOKED_BACK)
    context = PlanContext(pipeline, runs, measured, coming or NewSources(), fresh)
    corpus = CorpusPlanner(context, questions)
    answers = QuestionPlanner(context, corpus, questions, frozenset(old))
    steps = (*corpus.plans(), *answers.plans())
    return _planned(context, steps, chats_twice(pipeline.recipe, pipeline.worker, measured, steps))


def _planned(context: PlanContext, steps: tuple[StepPlan, ...], twice: int = 0) -> Plan:
    store, recipe = context.pipeline.store, context.pipeline.recipe
    adopted = tuple(m.adopted for m in models_of(recipe) if m.adopted)
    ann = tuple(ann_states(store, recipe))
    return Plan(steps, changed=context.changed(), adopted=adopted, ann=ann, twice=twice)


def plan_corpus(pipeline: Pipeline, coming: NewSources | None = None, measured: Sequence[Run] = ()) -> Plan:
    """Plans the corpus half only, for questions about the whole store."""
    runs = recent(pipeline.store, LOOKED_BACK)
    context = PlanContext(pipeline, runs, measured, coming or NewSources(), False)
    return _planned(context, tuple(CorpusPlanner(context, [Question("", "")]).plans()))


def plan_embedding(pipeline: Pipeline, measured: Sequence[Run] = ()) -> tuple[int, float | None]:
    """Estimates the passages of the whole store to embed, and the seconds on the clock that this takes.
    Returns (0, None) if no passage is to be embedded, or if their number is not known. The seconds are None
    if no run on this machine measured them."""
    every = plan_corpus(pipeline, None, measured).steps
    each = {s.name: calls_each(s.step) for s in pipeline.recipe.corpus if table_of(s.step) == "vectors"}
    steps = [s for s in every if s.step in each]
    chunks = sum((s.expected[1] if s.expected else s.max_calls) / each[s.step] for s in steps)
    if math.isinf(chunks) or not chunks:
        return 0, None
    took = summed([s.cost.seconds for s in steps])
    threads = pipeline.workers("embed").count * pipeline.worker.threads
    return round(chunks), None if took is None else took[1] / threads
