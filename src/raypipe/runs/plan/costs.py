"""What both halves of a plan work from: the pipeline, its finished runs, what differs from the last, what
steps asked in them and how fast they were; and what a plan is expected to cost, or a run did.

Seconds are those of all processes together, as a report counts them: two workers need half of that on the
clock. Only runs of the same step with the same models on the same kind of device count for them. How often a
step asks about a row depends on neither: there all runs of the same step with the same parameters count.
Expected calls and costs are ranges: estimates, not bounds. What is not known stays so: without a rate no
hours, without a price no money.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raypipe.core.llm import HOUR_S, JUDGE, Prices
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import to_plain
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.plan.records import (
    Cost,
    ExpectedCalls,
    JudgePlan,
    NewSources,
    Plan,
    Range,
    StepPlan,
    TokenSplit,
    times,
)
from raypipe.runs.record import Run, reason
from raypipe.runs.run_parts import Costs, Estimate, JudgeLine, StepLine
from raypipe.runs.stage_records import Difference, StageRecord, describe, differences, with_lines

Lines = list[tuple[StepLine, int]]
"""What runs counted of a step, each with how many rows it is about."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The least and the most that was seen of a step; None where nothing was recorded."""

    per_call: Range | None  # seconds
    per_row: Range | None  # seconds
    tokens: Range | None  # of prompt and reply, per call
    splits: tuple[TokenSplit, ...] = ()  # tokens of a call, of each run that made some

    def seconds(self, rows: float, calls: Range | None) -> Range | None:
        """Expected seconds of `rows` rows; None where no earlier run says. `calls` None: they are not known.

        Then nothing is known but what such rows took before, when all, some or none of it was cached.
        """
        if rows == 0:
            return 0.0, 0.0
        if calls and calls[1] and self.per_call:
            return calls[0] * self.per_call[0], calls[1] * self.per_call[1]
        return (0.0, rows * self.per_row[1]) if self.per_row and not math.isinf(rows) else None


def rate(stage: StageRecord, runs: Sequence[Run], backend: str, device: str) -> Rate:
    """What these runs say of a stage like this one."""
    lines = _lines(stage, [r for r in runs if (r.backend, r.device) == (backend, device)], _alike)
    asked = [s for s in lines if s.computed]
    return Rate(
        _range([s.seconds / s.computed for s in asked]),
        _range([s.seconds / rows for s in lines if (rows := s.rows - s.skipped) > 0]),
        _range([(s.prompt_tokens + s.generated_tokens) / s.computed for s in asked]),
        tuple(
            (s.prompt_tokens / s.computed, s.cached_tokens / s.computed, s.generated_tokens / s.computed)
            for s in asked
        ),
    )


def _range(found: Sequence[float]) -> Range | None:
    return (min(found), max(found)) if found else None


def calls_seen(stage: StageRecord, runs: Sequence[Run]) -> Lines:
    """What questions that reached a stage like this one asked, let in by its gate or not."""
    return [(line, line.rows) for line in _lines(stage, runs, _same_but_models)]


def embedded(embed: StageRecord, split: StageRecord, runs: Sequence[Run]) -> Lines:
    """What sources that were split asked of an embedder. A run that embedded sources which had been split
    before does not say."""
    found: Lines = []
    for run in runs:
        was = run.stage(split.name)
        lines = {line.step: line for line in run.steps}
        if was is None or not _same_but_models(was, split) or not {embed.name, split.name} <= lines.keys():
            continue
        if set(lines[embed.name].reasons) <= {"row"}:
            found.append((lines[embed.name], lines[split.name].computed))
    return found


def expected_calls(seen: Lines, rows: int, bound: float, sure: int = 0) -> ExpectedCalls | None:
    """Expected calls of `rows` rows, never more than `bound`; None where no earlier run says. From the fewest
    for a row that a run made, to the most, those that the memo answered included. `sure`: calls for other
    rows, which are known."""
    some = [(line, n) for line, n in seen if n > 0]
    if not some:
        return None
    least = sure + round(rows * min(line.computed / n for line, n in some))
    most = sure + round(rows * max((line.computed + line.cached) / n for line, n in some))
    return ExpectedCalls((int(min(least, bound)), int(min(most, bound))), len(some))


def _lines(
    stage: StageRecord, runs: Sequence[Run], same: Callable[[StageRecord, StageRecord], bool]
) -> list[StepLine]:
    """What these runs counted of stages that are the same as this one."""
    lines = ((run.stage(line.step), line) for run in runs for line in run.steps)
    return [line for old, line in lines if old is not None and same(old, stage)]


def _same_but_models(a: StageRecord, b: StageRecord) -> bool:
    same = (a.step, a.version, a.when) == (b.step, b.version, b.when)
    return same and _forms(a, "parameter") == _forms(b, "parameter")


def _alike(a: StageRecord, b: StageRecord) -> bool:
    return a.step == b.step and _forms(a, "model") == _forms(b, "model")


def _forms(stage: StageRecord, kind: str) -> dict[str, str]:
    return {n: f.form for n, f in stage.fields.items() if f.kind == kind}


@dataclass(frozen=True, slots=True)
class PlanContext:
    """A recipe over a store, and the runs that it is compared with."""

    pipeline: Pipeline
    runs: Sequence[Run]  # finished on this store, the latest first
    measured: Sequence[Run]  # finished on this machine, on any store: they say how fast it is
    coming: NewSources
    fresh: bool  # every question is answered again, and no reply counts as cached
    stages: dict[str, StageRecord] = field(init=False)
    own: dict[str, Difference] = field(init=False)  # stage -> what differs from the last run

    def __post_init__(self) -> None:
        stages = describe(self.pipeline.recipe)
        object.__setattr__(self, "stages", {s.name: s for s in stages})
        object.__setattr__(self, "own", differences(self.last.stages, stages) if self.last else {})

    @property
    def last(self) -> Run | None:
        """The last finished run of the store."""
        return self.runs[0] if self.runs else None

    def changed(self) -> tuple[Difference, ...]:
        """Lists the differences of the recipe since the last finished run of the store, with its lines."""
        if self.last is None:
            return ()
        now = to_plain(self.pipeline.recipe)
        return tuple(with_lines(self.own, self.last.recipe, now).values())

    def why(self, name: str, had: bool) -> str:
        """Why a step is to do a row; `had`: the last finished run had it."""
        return reason(self.last, self.stages[name], self.own) if had else "row"

    def step(
        self, name: str, rows: float, cached: int, reasons: Mapping[str, float], todo: float,
        exact: bool, guess: ExpectedCalls | None, stored: Callable[[float], float],
        tokens: Callable[[float, float], Range] = lambda low, high: (0, 0),
    ) -> StepPlan:  # fmt: skip
        """`reasons`: why -> how many calls: an upper bound unless `exact`, and `guess` says what is likely.
        `todo`: rows to pass the step, as many as is likely. `stored`: calls -> bytes in the store; `tokens`:
        fewest and most calls -> tokens of language models, likely ones and never more than fit."""
        max_calls = sum(reasons.values())
        place = self.pipeline.worker
        seen = rate(self.stages[name], (*self.runs, *self.measured), place.backend, place.device)
        low, high = guess.calls if guess else (max_calls if exact else 0, max_calls)
        told = tokens(low, high)
        if seen.tokens is not None and told[1]:
            expected = times(low, seen.tokens[0]), times(high, seen.tokens[1])
            least, most = (n if math.isinf(n) else math.ceil(n) for n in expected)
            told = min(least, told[1]), min(most, told[1])
        took = seen.seconds(todo, (low, high) if guess or exact else None)
        costs = Cost(took, told, (stored(low), stored(high)), (low, high), seen.splits)
        return StepPlan(name, self.stages[name].half, rows, cached, max_calls, exact, reasons, guess, costs)

    def reasons(self, name: str, had: float, others: float) -> dict[str, float]:
        """Why a step makes calls -> how many, of rows that the last finished run `had`, and of others."""
        found: dict[str, float] = {}
        for calls, before in ((others, False), (had, True)):
            if calls:
                why = self.why(name, before)
                found[why] = found.get(why, 0) + calls
        return found


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
        calls=_sum([(0, judged), *(s.likely for s in asked)]),
        max_calls=None if math.isinf(most) else int(most),
        tokens=_sum([(0, told), *(s.cost.tokens for s in plan.steps)]),
        hours=hours,
        gpu_hours=gpu_hours,
        usd=_usd(plan.steps, plan.judge, hours, prices),
    )


def priced(plan: Plan, prices: Prices, recipe: Recipe) -> Plan:
    """The plan with what all of it is expected to cost."""
    return replace(plan, cost=estimated(plan, prices, asking(recipe)), unpriced=prices.unpriced)


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
