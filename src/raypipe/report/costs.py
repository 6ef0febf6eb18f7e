"""What a run was expected to cost, and what it cost: calls, tokens, hours and money."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan expected of a run, each a range."""

    calls: tuple[float, float] | None  # to models and graphs; None: nothing says
    max_calls: int | None  # no run makes more; None: not known
    tokens: tuple[float, float] | None  # of prompts and replies; None: not known
    hours: tuple[float, float] | None  # of computing, on the clock; None: no rate was measured
    gpu_hours: tuple[float, float] | None  # of GPUs that are held meanwhile
    usd: tuple[float, float] | None  # of what has a price; None: nothing has, or it cannot be told


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run cost, in this attempt."""

    calls: int  # to models and graphs
    tokens: int  # of prompts and replies
    hours: float  # of computing, on the clock
    gpu_hours: float  # of GPUs that were held meanwhile
    usd: float | None  # of what has a price, machines by wall time; None: nothing has a price


@dataclass(frozen=True, slots=True)
class CostReport:
    """Estimate against actual. Of one attempt: what earlier ones did is in neither."""

    estimate: Estimate
    actual: Costs
    unpriced: tuple[str, ...]  # what has no price, so is not in `usd`: machines, models behind endpoints
