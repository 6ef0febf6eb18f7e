"""What steps asked in earlier runs of a store, how fast they were, and what a plan expects from that.

Seconds are those of all processes together, as a report counts them: two workers need half of that on the
clock. Only runs of the same step with the same models on the same kind of device count for them. How often a
step asks about a row depends on neither: there all runs of the same step with the same parameters count.
Expected calls and costs are ranges: estimates, not bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raypipe.core.prices import TokenPrice
from raypipe.report.report import StepLine
from raypipe.runs.manifest import Manifest
from raypipe.runs.plan.stage_bounds import times
from raypipe.runs.stage_records import StageRecord

Range = tuple[float, float]
TokenSplit = tuple[float, float, float]
"""Tokens of a call: of its prompt, of that found in the prefix cache, of its reply."""


@dataclass(frozen=True, slots=True)
class CallRange:
    """What rows asked in earlier runs."""

    least: float  # calls per row: of all runs the fewest that were made
    most: float  # calls per row: of all runs the most, those that the memo answered included
    runs: int  # finished runs that say so, at least 1


@dataclass(frozen=True, slots=True)
class Rate:
    """The least and the most that was seen; None where nothing was recorded."""

    per_call: Range | None  # seconds
    per_row: Range | None  # seconds
    tokens: Range | None  # of prompt and reply, per call
    splits: tuple[TokenSplit, ...] = ()  # tokens of a call, of each run that made some


def rate(stage: StageRecord, runs: Sequence[Manifest], backend: str, device: str) -> Rate:
    """What these runs say of a stage like this one."""
    lines = _lines(stage, [r for r in runs if (r.backend, r.device) == (backend, device)], _alike)
    return Rate(
        _range(lines, lambda s: s.seconds, lambda s: s.computed),
        _range(lines, lambda s: s.seconds, lambda s: s.rows - s.skipped),
        _range(lines, lambda s: s.prompt_tokens + s.generated_tokens, lambda s: s.computed),
        tuple(
            (s.prompt_tokens / s.computed, s.cached_tokens / s.computed, s.generated_tokens / s.computed)
            for s in lines
            if s.computed
        ),
    )


def calls_seen(stage: StageRecord, runs: Sequence[Manifest]) -> CallRange | None:
    """What questions that reached a stage like this one asked, let in by its gate or not; None where no
    earlier run says."""
    return _asked([(line, line.rows) for line in _lines(stage, runs, _same_but_models)])


def _lines(
    stage: StageRecord, runs: Sequence[Manifest], same: Callable[[StageRecord, StageRecord], bool]
) -> list[StepLine]:
    """What these runs counted of stages that are the same as this one."""
    lines = ((run.stage(line.step), line) for run in runs for line in run.steps)
    return [line for old, line in lines if old is not None and same(old, stage)]


def embedded(embed: StageRecord, split: StageRecord, runs: Sequence[Manifest]) -> CallRange | None:
    """What sources that were split asked of an embedder; None where no earlier run says. A run that embedded
    sources which had been split before does not."""
    found: list[tuple[StepLine, int]] = []
    for run in runs:
        was = run.stage(split.name)
        lines = {line.step: line for line in run.steps}
        if was is None or not _same_but_models(was, split) or not {embed.name, split.name} <= lines.keys():
            continue
        planned = next(s for s in run.plan["steps"] if s["step"] == embed.name)
        if set(planned["reasons"]) <= {"row"}:
            found.append((lines[embed.name], lines[split.name].computed))
    return _asked(found)


def _asked(found: Sequence[tuple[StepLine, int]]) -> CallRange | None:
    """Lines of runs, each with how many rows it is about."""
    some = [(line, rows) for line, rows in found if rows > 0]
    if not some:
        return None
    return CallRange(
        min(line.computed / rows for line, rows in some),
        max((line.computed + line.cached) / rows for line, rows in some),
        len(some),
    )


def _same_but_models(a: StageRecord, b: StageRecord) -> bool:
    parameters = [{n: f.form for n, f in s.fields.items() if f.kind == "parameter"} for s in (a, b)]
    return (a.step, a.version, a.when) == (b.step, b.version, b.when) and parameters[0] == parameters[1]


def _alike(a: StageRecord, b: StageRecord) -> bool:
    models = [{n: f.form for n, f in s.fields.items() if f.kind == "model"} for s in (a, b)]
    return a.step == b.step and models[0] == models[1]


def _range(
    lines: Sequence[StepLine], cost: Callable[[StepLine], float], units: Callable[[StepLine], int]
) -> Range | None:
    found = [cost(line) / units(line) for line in lines if units(line) > 0]
    return (min(found), max(found)) if found else None


def seconds(rate: Rate, rows: float, calls: Range | None) -> Range | None:
    """Expected seconds of `rows` rows; None where no earlier run says. `calls` None: they are not known.

    Then nothing is known but what such rows took before, when all, some or none of it was cached.
    """
    if rows == 0:
        return 0.0, 0.0
    if calls and calls[1] and rate.per_call:
        return calls[0] * rate.per_call[0], calls[1] * rate.per_call[1]
    return (0.0, rows * rate.per_row[1]) if rate.per_row and not math.isinf(rows) else None


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """How many calls a step is likely to make, where its plan has no more than an upper bound."""

    calls: tuple[int, int]
    runs: int  # finished runs that say so; 0: a sample of the sources does


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step may take."""

    seconds: Range | None  # of all processes together, without loading models; None: no earlier run says
    tokens: tuple[float, float]  # of prompts and replies of language models; math.inf: not known
    nbytes: tuple[float, float]  # that the store grows by, about, before compression; texts not counted
    calls: Range = (0.0, 0.0)  # that this is the cost of
    splits: tuple[TokenSplit, ...] = ()  # tokens of a call, of each earlier run; none: no run says

    def usd(self, price: TokenPrice) -> Range:
        """US dollars of the tokens; math.inf: not known."""
        if not self.splits:
            return 0.0, times(self.tokens[1], price.dearest())
        each = [price.usd(*split) for split in self.splits]
        return times(self.calls[0], min(each)), times(self.calls[1], max(each))


def expected_calls(asked: CallRange | None, rows: int, bound: float, sure: int = 0) -> ExpectedCalls | None:
    """Expected calls of `rows` rows, never more than `bound`; None where no earlier run says. `sure`: calls
    for other rows, which are known."""
    if asked is None:
        return None
    least, most = (sure + round(rows * each) for each in (asked.least, asked.most))
    return ExpectedCalls((int(min(least, bound)), int(min(most, bound))), asked.runs)


def cost(
    tokens: Callable[[float], float], stored: Callable[[float], float], rate: Rate, rows: float,
    calls: float, exact: bool,
    guess: ExpectedCalls | None,
) -> Cost:  # fmt: skip
    """Expected cost of `calls` calls of a step about `rows` rows. Unless `exact`, they are an upper bound,
    and `guess` says what is likely. `tokens`: calls -> their tokens, at most; `stored`: calls -> bytes in the
    store."""
    low, high = guess.calls if guess else (calls if exact else 0, calls)
    return Cost(
        seconds(rate, rows, (low, high) if guess or exact else None),
        _tokens(tokens, rate, low, high),
        (stored(low), stored(high)),
        (low, high),
        rate.splits,
    )


def _tokens(tokens: Callable[[float], float], rate: Rate, low: float, high: float) -> tuple[float, float]:
    """Of language models: by earlier runs' where there were any, and never more than fit."""
    most = tokens(high)
    if rate.tokens is None:
        return 0, most
    least, likely = times(low, rate.tokens[0]), times(high, rate.tokens[1])
    return min(_up(least), most), min(_up(likely), most)


def _up(number: float) -> float:
    return number if math.isinf(number) else math.ceil(number)
