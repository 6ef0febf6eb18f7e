"""How fast steps were in earlier runs of a store: what a plan turns calls into seconds and tokens with.

Seconds are those of all processes together, as a report counts them: two workers need half of that on the
clock. Only runs of the same step with the same models on the same kind of device count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raypipe.manifest import Manifest, StageRecord
from raypipe.report.report import StepLine

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rate:
    """The least and the most that was seen; None where nothing was recorded."""

    per_call: Range | None  # seconds
    per_row: Range | None  # seconds
    tokens: Range | None  # of prompt and reply, per call


def rate(stage: StageRecord, runs: Sequence[Manifest], engine: str, device: str) -> Rate:
    """What these runs say of a stage like this one."""
    lines = [
        line
        for run in runs
        if (run.engine, run.device) == (engine, device)
        for line in run.steps
        if (old := run.stage(line.step)) is not None and _alike(old, stage)
    ]
    return Rate(
        _range(lines, _seconds, lambda s: s.asked),
        _range(lines, _seconds, lambda s: s.rows - s.skipped),
        _range(lines, lambda s: s.prompt_tokens + s.generated_tokens, lambda s: s.asked),
    )


def _alike(a: StageRecord, b: StageRecord) -> bool:
    models = [{n: f.form for n, f in s.fields.items() if f.kind == "model"} for s in (a, b)]
    return a.step == b.step and models[0] == models[1]


def _seconds(line: StepLine) -> float:
    return line.seconds


def _range(
    lines: Sequence[StepLine], cost: Callable[[StepLine], float], units: Callable[[StepLine], int]
) -> Range | None:
    found = [cost(line) / units(line) for line in lines if units(line) > 0]
    return (min(found), max(found)) if found else None


def seconds(rate: Rate, rows: int, calls: int | None) -> Range | None:
    """What so many rows should take; None where no earlier run says. `calls` None: they are not known.

    Then nothing is known but what such rows took before, when all, some or none of it was remembered.
    """
    if rows == 0:
        return 0.0, 0.0
    if calls and rate.per_call:
        return calls * rate.per_call[0], calls * rate.per_call[1]
    return (0.0, rows * rate.per_row[1]) if rate.per_row else None
