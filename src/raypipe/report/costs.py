"""What a run was expected to cost, and what it cost: calls, tokens, hours and money; and these for people.

What is not known is said so: without a price there is no money, and never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.report.wording import seconds

UNKNOWN = "not known"


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


def ranged(found: Sequence[float] | None) -> str:
    """A range of whole numbers.

    >>> ranged([10, 2500]), ranged([7, 7]), ranged(None)
    ('10 to 2,500', '7', 'not known')
    """
    return between(found, "{:,.0f}".format)


def hours(found: Sequence[float] | None) -> str:
    """A range of hours, as a duration."""
    return between(found, lambda n: seconds(3600 * n))


def usd(found: Sequence[float] | float | None) -> str:
    """Some US dollars, or a range.

    >>> usd(0.5), usd([1, 12.345]), usd(0.00012), usd(None)
    ('0.50', '1.00 to 12.35', '0.00012', 'no price')
    """
    if found is None:
        return "no price"
    ends = [found, found] if isinstance(found, int | float) else found
    return between(ends, lambda n: f"{n:,.2f}" if n >= 0.01 or n == 0 else f"{n:.2g}")


def between(found: Sequence[Any] | None, said: Callable[[Any], str], to: str = " to ") -> str:
    """A range for people, each end as `said`; one number where both ends say the same."""
    if found is None or None in found:
        return UNKNOWN
    low, high = map(said, found)
    return low if low == high else f"{low}{to}{high}"


def cost_line(cost: Mapping[str, Any], unpriced: Sequence[str]) -> str:
    """What a plan expects, in a line. `unpriced`: what has no price."""
    parts = [f"hours on the clock {hours(cost['hours'])}"]
    for name, found, said in (("GPU-hours", cost["gpu_hours"], _gpu), ("tokens", cost["tokens"], ranged)):
        if found is None or any(found):
            parts.append(f"{name} {said(found)}")
    money = UNKNOWN if cost["usd"] is None else usd(cost["usd"])
    lacking = f" (no price: {', '.join(unpriced)})" if unpriced else ""
    return f"cost: {', '.join(parts)}; US dollars {money}{lacking}"


def _gpu(found: Sequence[float] | None) -> str:
    return between(found, "{:.3g}".format)


def cost_rows(cost: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Estimate against actual of a run: what, estimate, actual."""
    e, a = cost["estimate"], cost["actual"]
    most = "" if e["max_calls"] is None else f", at most {e['max_calls']:,}"
    rows = [("calls", f"{ranged(e['calls'])}{most}", f"{a['calls']:,}")]
    if a["tokens"] or (e["tokens"] or [0, 1])[1]:
        rows.append(("tokens", ranged(e["tokens"]), f"{a['tokens']:,}"))
    rows.append(("time of computing", hours(e["hours"]), seconds(3600 * a["hours"])))
    if a["gpu_hours"] or (e["gpu_hours"] or [0, 0])[1]:
        rows.append(("GPU-hours", _gpu(e["gpu_hours"]), f"{a['gpu_hours']:.3g}"))
    if a["usd"] is not None:
        rows.append(("US dollars", UNKNOWN if e["usd"] is None else usd(e["usd"]), usd(a["usd"])))
        if cost["unpriced"]:
            rows.append(("no price", ", ".join(cost["unpriced"]), ""))
    return rows
