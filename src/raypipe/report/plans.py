"""A plan as a table on a console. Knows what `plan --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report.console import grid
from raypipe.report.page import seconds


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """What an eval may have to ask, and why. Seconds are those of all processes together."""
    shown = grid("step", "rows", "remembered", "may ask", "time", "because")
    for s in plan["steps"]:
        most = "" if s["exact"] or not s["may_ask"] else "at most "
        reasons = ", ".join(f"{why} {n}" for why, n in s["reasons"].items())
        cells = (str(s["rows"]), str(s["remembered"]), f"{most}{s['may_ask']}")
        shown.add_row(Text(s["step"]), *cells, _range(s["estimate"]["seconds"]), Text(reasons))
    console.print(shown)
    calls = sum(s["may_ask"] for s in plan["steps"])
    exact = all(s["exact"] for s in plan["steps"])
    console.print(Text(f"{'' if exact or not calls else 'at most '}{calls} calls"))


def _range(estimate: list[float] | None) -> str:
    if estimate is None:
        return "not known"
    low, high = (seconds(x) for x in estimate)
    return low if low == high else f"{low} - {high}"
