"""What a plan is expected to cost, and what a run did cost: calls, tokens, hours, GPU-hours, US dollars.

Ranges where a plan says them. What is not known stays so: without a rate no hours, without a price no money.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from raypipe.core.llm import HOUR_S, JUDGE, Prices
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.plan.records import JudgePlan, Plan, Range, StepPlan
from raypipe.runs.run_parts import Costs, Estimate, JudgeLine, StepLine


def asking(recipe: Recipe) -> frozenset[str]:
    """The steps of a recipe that may ask a model or a graph: all but those that only work on pages."""
    corpus = (s.name for s in recipe.corpus if asked_models(s.step))
    return frozenset((*corpus, *(s.name for s in recipe.question)))


def estimated(plan: Plan, prices: Prices, asks: Collection[str]) -> Estimate:
    """What a plan expects, the judge's calls with it. `asks`: steps whose calls count (`asking`). Hours are
    those of the steps."""
    judged, told = (plan.judge.max_calls, plan.judge.max_tokens) if plan.judge else (0, 0)
    asked = [s for s in plan.steps if s.step in asks]
    most = judged + sum(s.max_calls for s in asked)
    hours, gpu_hours = _hours(plan.steps, prices)
    return Estimate(
        calls=_sum([(0, judged), *map(_calls, asked)]),
        max_calls=None if math.isinf(most) else int(most),
        tokens=_sum([(0, told), *(s.cost.tokens for s in plan.steps)]),
        hours=hours,
        gpu_hours=gpu_hours,
        usd=_usd(plan.steps, plan.judge, hours, prices),
    )


def priced(plan: Plan, prices: Prices, recipe: Recipe) -> Plan:
    """The plan with what all of it is expected to cost."""
    return replace(plan, cost=estimated(plan, prices, asking(recipe)), unpriced=prices.unpriced)


def _calls(step: StepPlan) -> Range | None:
    if step.exact or step.max_calls == 0:
        return step.max_calls, step.max_calls
    return step.expected_calls.calls if step.expected_calls else None


def _hours(steps: Sequence[StepPlan], prices: Prices) -> tuple[Range | None, Range | None]:
    """On the clock, and of GPUs that are held: of computing, without starting Ray and loading models."""
    none = (0.0, 0.0) if prices.gpus and not any(prices.gpus.values()) else None  # no GPU, no GPU-hours
    if any(s.cost.seconds is None or s.step not in prices.actors for s in steps):
        return None, none
    took = [(s.step, s.cost.seconds or (0.0, 0.0)) for s in steps]
    clock = {step: [x / HOUR_S / prices.actors[step] for x in range_] for step, range_ in took}
    hours = [sum(c[i] for c in clock.values()) for i in (0, 1)]
    gpu = [sum(c[i] * prices.gpus.get(step, 0.0) for step, c in clock.items()) for i in (0, 1)]
    return (hours[0], hours[1]), (gpu[0], gpu[1])


def _usd(
    steps: Sequence[StepPlan], judge: JudgePlan | None, hours: Range | None, prices: Prices
) -> Range | None:
    """Of what has a price; None where nothing has one, or what has one cannot be told."""
    if not prices.known:
        return None
    low = high = 0.0
    if prices.machines is not None:
        if hours is None:
            return None
        low, high = prices.machines * hours[0], prices.machines * hours[1]
    for step in steps:
        if (price := prices.tokens.get(step.step)) is not None:
            least, most = step.cost.usd(price)
            low, high = low + least, high + most
    if judge is not None and (price := prices.tokens.get(JUDGE)) is not None:
        high += price.dearest() * judge.max_tokens
    return None if math.isinf(high) else (low, high)


def _sum(ranges: Sequence[Range | None]) -> Range | None:
    """None where one of them is not known."""
    known = [r for r in ranges if r is not None]
    low, high = sum(r[0] for r in known), sum(r[1] for r in known)
    return None if len(known) < len(ranges) or math.isinf(high) else (low, high)


def spent(
    lines: Sequence[StepLine], seconds: float, prices: Prices, asks: Collection[str],
    judge: JudgeLine | None = None,
) -> Costs:  # fmt: skip
    """What a run of these steps cost, with its judge. `seconds`: its wall time."""
    asked: list[tuple[str, StepLine | JudgeLine]] = [(s.step, s) for s in lines]
    if judge is not None and judge.generated_tokens:  # code from outside has no tokens
        asked.append((JUDGE, judge))
    hours, usd = seconds / HOUR_S, None
    if prices.known:
        usd = (prices.machines or 0.0) * hours + sum(
            price.usd(s.prompt_tokens, s.cached_tokens, s.generated_tokens)
            for step, s in asked
            if (price := prices.tokens.get(step)) is not None
        )
    clock = {s.step: s.seconds / prices.actors[s.step] / HOUR_S for s in lines if s.step in prices.actors}
    return Costs(
        calls=sum(s.computed for step, s in asked if step in asks or s is judge),
        tokens=sum(s.prompt_tokens + s.generated_tokens for _, s in asked),
        hours=sum(clock.values()),
        gpu_hours=sum(h * prices.gpus.get(step, 0.0) for step, h in clock.items()),
        usd=usd,
    )
