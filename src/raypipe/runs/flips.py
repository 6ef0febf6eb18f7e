"""Flip rate: how often an engine's reply differs when chats are asked again one by one, past every cache.

Kernels choose their sums by the size of a batch, so a reply may differ from one batch to another unless the
engine is batch-invariant. Endpoints ask alone: their parity with a run is this rate. It belongs to the model
and the machine, so a run measures it where no run kept on this machine did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from raypipe.core.digests import model_identity
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.answer_operators import TWICE
from raypipe.runs.pipeline.counters import Counts
from raypipe.runs.pipeline.tasks import WorkerConfig
from raypipe.runs.plan.records import StepPlan
from raypipe.runs.record import Run
from raypipe.runs.run_parts import FlipRate

SAMPLE = 20  # questions whose chats are asked twice: a rate of .25 is told from 0 with p < .01


def engines_of(recipe: Recipe) -> tuple[str, ...]:
    """Identities of the models that engines compute."""
    return tuple(sorted({model_identity(m) for m in recipe.models() if m.loader == "vllm"}))


def known_rate(recipe: Recipe, worker: WorkerConfig, kept: Sequence[Run]) -> FlipRate | None:
    """The rate that a run kept on this machine (the latest first) measured for the same engines."""
    engines = engines_of(recipe)
    rates = (m.flips for m in kept if m.device == worker.device and m.flips is not None)
    return next((rate for rate in rates if rate.engines == engines), None)


def chats_twice(recipe: Recipe, worker: WorkerConfig, kept: Sequence[Run], steps: Sequence[StepPlan]) -> int:
    """Chats that a run asks a second time at most, by the plan of its steps."""
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
    """The rate by what tasks counted; None where none asked twice."""
    found = counts.get(TWICE)
    return FlipRate(found.rows, found.differ, engines_of(recipe), run) if found and found.rows else None
