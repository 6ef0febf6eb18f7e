"""Basis of both halves of a plan: earlier runs, differences from the last run, rates of steps, and costs.

Seconds are summed over all processes, as in a report: with two workers the clock shows half of them. The
speed of a step comes from the last run of the same step with the same models on the same kind of device. The
calls per row come from the last run of the same step with the same parameters. Hours are None without a rate,
and money without any price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raypipe.core.llm import HOUR_S, JUDGE, Prices
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import to_plain
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.plan.records import Cost, NewSources, Plan, Range, StepPlan, TokenSplit, times
from raypipe.runs.record import Run, reason
from raypipe.runs.run_parts import Costs, Estimate, JudgeLine, StepLine
from raypipe.runs.stage_records import Difference, StageRecord, describe, differences, with_lines


@dataclass(frozen=True, slots=True)
class Rate:
    """Rates of a step, measured by earlier runs. A rate is None if no run measured it."""

    per_call: float | None  # seconds
    per_row: float | None  # seconds, however many of its calls were cached
    split: TokenSplit | None  # tokens of a call

    def seconds(self, rows: float, calls: Range | None) -> Range | None:
        """Returns the expected seconds for `rows` rows with a range of `calls`; None: not measured."""
        if rows == 0:
            return 0.0, 0.0
        if calls and calls[1] and self.per_call is not None:
            return calls[0] * self.per_call, calls[1] * self.per_call
        return (0.0, rows * self.per_row) if self.per_row is not None and not math.isinf(rows) else None


def rate(stage: StageRecord, runs: Iterable[Run], backend: str, device: str) -> Rate:
    """Returns a stage's rates, from the newest runs of its step with the same models, backend and device."""
    here = (r for r in runs if (r.backend, r.device) == (backend, device))
    lines = [line for line, old in _lines(stage, here) if _forms(old, "model") == _forms(stage, "model")]
    asked = next((line for line in lines if line.computed), None)
    rows = ((line.seconds, line.rows - line.skipped) for line in lines)
    per_row = next((seconds / n for seconds, n in rows if n > 0), None)
    if asked is None:
        return Rate(None, per_row, None)
    tokens = (asked.prompt_tokens, asked.cached_tokens, asked.generated_tokens)
    prompt, cached, reply = (n / asked.computed for n in tokens)
    return Rate(asked.seconds / asked.computed, per_row, (prompt, cached, reply))


def asked_before(stage: StageRecord, runs: Iterable[Run], rows: int, most: float) -> tuple[int, int] | None:
    """Returns the range of expected calls for `rows` rows, at most `most`; None if no run shows it. The range
    comes from the last run of a stage with the same class, version, gate and parameters: from its computed
    calls per row to its computed and cached calls per row."""
    for line, old in _lines(stage, runs):
        if not line.computed + line.cached and _forms(old, "model") != _forms(stage, "model"):
            continue  # it may have had no model, as before --llm names one
        same = (old.version, old.when) == (stage.version, stage.when)
        if same and _forms(old, "parameter") == _forms(stage, "parameter") and line.rows:
            calls = line.computed, line.computed + line.cached
            low, high = (int(min(round(rows * n / line.rows), most)) for n in calls)
            return low, high
    return None


def _lines(stage: StageRecord, runs: Iterable[Run]) -> Iterable[tuple[StepLine, StageRecord]]:
    """Yields the counts of stages of the same class in these runs, each with the stage's record."""
    lines = ((line, run.stage(line.step)) for run in runs for line in run.steps)
    return ((line, old) for line, old in lines if old is not None and old.step == stage.step)


def _forms(stage: StageRecord, kind: str) -> dict[str, str]:
    return {n: f.form for n, f in stage.fields.items() if f.kind == kind}


@dataclass(frozen=True, slots=True)
class PlanContext:
    """A recipe on a store, with the earlier runs that a plan draws on."""

    pipeline: Pipeline
    runs: Sequence[Run]  # finished on this store, newest first
    measured: Sequence[Run]  # finished on this machine, on any store: they give rates
    coming: NewSources  # sources to be ingested first
    fresh: bool  # True: all questions are answered again, and cached replies do not count
    stages: dict[str, StageRecord] = field(init=False)  # stage name -> its record
    own: dict[str, Difference] = field(init=False)  # stage -> its difference from the last run

    def __post_init__(self) -> None:
        stages = describe(self.pipeline.recipe)
        object.__setattr__(self, "stages", {s.name: s for s in stages})
        object.__setattr__(self, "own", differences(self.last.stages, stages) if self.last else {})

    @property
    def last(self) -> Run | None:
        """Last finished run of the store; None: there is none."""
        return self.runs[0] if self.runs else None

    def changed(self) -> tuple[Difference, ...]:
        """Lists the recipe's differences from the store's last finished run, with lines for people."""
        if self.last is None:
            return ()
        return tuple(with_lines(self.own, self.last.recipe, to_plain(self.pipeline.recipe)).values())

    def why(self, name: str, had: bool) -> str:
        """Returns the reason for a step to compute a row. `had`: the last finished run had the row."""
        return reason(self.last, self.stages[name], self.own) if had else "row"

    def step(
        self,
        name: str,
        rows: float,
        cached: int,
        reasons: Mapping[str, float],
        todo: float,
        exact: bool,
        expected: tuple[int, int] | None,
        stored: Callable[[float], float],
        tokens: Callable[[float, float], Range] = lambda low, high: (0, 0),
    ) -> StepPlan:
        """Makes the plan of one step. `rows`: all rows; `cached`: rows that need no call. `reasons`: reason
        -> calls, an upper bound unless `exact`. `expected`: range of likely calls; None: not known. `todo`:
        likely number of rows that pass the step. `stored`: maps calls to bytes in the store. `tokens`: maps
        fewest and most calls to a range of tokens of language models."""
        most = sum(reasons.values())
        if (exact or most == 0) and not math.isinf(most):
            expected = int(most), int(most)
        place = self.pipeline.worker
        seen = rate(self.stages[name], (*self.runs, *self.measured), place.backend, place.device)
        low, high = expected or (0, most)
        all_tokens = tokens(low, high)
        if seen.split is not None and all_tokens[1]:
            each = seen.split[0] + seen.split[2]
            whole = (n if math.isinf(n) else math.ceil(n) for n in (times(low, each), times(high, each)))
            least, likely = (min(n, all_tokens[1]) for n in whole)
            all_tokens = least, likely
        nbytes = stored(low), stored(high)
        cost = Cost(seen.seconds(todo, expected), all_tokens, nbytes, (low, high), seen.split)
        return StepPlan(name, self.stages[name].half, rows, cached, most, exact, reasons, expected, cost)

    def reasons(self, name: str, had: float, others: float) -> dict[str, float]:
        """Maps reasons to calls. `had`: calls for rows of the last finished run; `others`: for other rows."""
        reasons: dict[str, float] = {}
        for calls, before in ((others, False), (had, True)):
            if calls:
                why = self.why(name, before)
                reasons[why] = reasons.get(why, 0) + calls
        return reasons


def asking(recipe: Recipe) -> frozenset[str]:
    """Returns the steps whose calls count: all question steps, and the corpus steps that call models."""
    corpus = (s.name for s in recipe.corpus if asked_models(s.step))
    return frozenset((*corpus, *(s.name for s in recipe.question)))


def estimated(plan: Plan, prices: Prices, asks: Collection[str]) -> Estimate:
    """Estimates the cost of a plan. `asks`: steps whose calls count (`asking`). Hours exclude the judge."""
    judge = plan.judge
    judge_calls, judge_tokens = (judge.max_calls, judge.max_tokens) if judge else (0, 0)
    asked = [s for s in plan.steps if s.step in asks]
    most = judge_calls + sum(s.max_calls for s in asked)
    hours = summed([_hours(s, prices) for s in plan.steps])
    gpus = [scaled(_hours(s, prices), prices.gpus.get(s.step, 0.0)) for s in plan.steps]
    none = prices.gpus and not any(prices.gpus.values())  # no GPU, no GPU-hours
    parts = [scaled(hours, prices.machines)] if prices.machines is not None else []
    parts += [s.cost.usd(price) for s in plan.steps if (price := prices.tokens.get(s.step)) is not None]
    if judge is not None and (price := prices.tokens.get(JUDGE)) is not None:
        parts.append((0.0, max(price.each()) * judge_tokens))
    return Estimate(
        calls=summed([(0, judge_calls), *(s.expected for s in asked)]),
        max_calls=None if math.isinf(most) else int(most),
        tokens=summed([(0, judge_tokens), *(s.cost.tokens for s in plan.steps)]),
        hours=hours,
        gpu_hours=(0.0, 0.0) if none else summed(gpus),
        usd=summed(parts) if prices.known else None,
    )


def priced(plan: Plan, prices: Prices, recipe: Recipe) -> Plan:
    """Returns the plan with its estimated cost."""
    return replace(plan, cost=estimated(plan, prices, asking(recipe)), unpriced=prices.unpriced)


def _hours(step: StepPlan, prices: Prices) -> Range | None:
    """Returns the hours of a step on the clock, without starting Ray and loading models; None: not known."""
    actors = prices.actors.get(step.step)
    return scaled(step.cost.seconds, None if actors is None else 1 / HOUR_S / actors)


def scaled(range_: Range | None, factor: float | None) -> Range | None:
    """Multiplies both ends of a range; None if either argument is None."""
    return None if range_ is None or factor is None else (range_[0] * factor, range_[1] * factor)


def summed(ranges: Sequence[Range | None]) -> Range | None:
    """Adds up ranges; None if one of them is None or has no upper end."""
    known = [r for r in ranges if r is not None]
    low, high = sum(r[0] for r in known), sum(r[1] for r in known)
    return None if len(known) < len(ranges) or math.isinf(high) else (low, high)


def spent(
    lines: Sequence[StepLine],
    seconds: float,
    prices: Prices,
    asks: Collection[str],
    judge: JudgeLine | None = None,
) -> Costs:
    """Returns the actual cost of a run's steps and judge. `seconds`: wall time of the run."""
    asked: list[tuple[str, StepLine | JudgeLine]] = [(s.step, s) for s in lines]
    if judge is not None and judge.generated_tokens:  # a judge from outside counts no tokens
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
