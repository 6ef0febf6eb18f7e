"""Speed next to what others take for the same work: the rows of `bench/rows/`, each measured by turns.

A row is a file of a checkout that says what is computed, by us and by a peer, and whether both are
equal. `bench/bench_rows.py` measures them; here is what they say.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import raypipe
from raypipe.api.results import Result
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.models.machine_limits import Machine

TURNS = 5  # the median of five: one turn that other work disturbed moves it little


@dataclass(frozen=True, slots=True)
class Contest:
    """One row, opened: what is run by turns."""

    units: float  # of work in one call, in the row's unit
    ours: Callable[[], Any]
    peer: Callable[[], Any] | None = None
    unequal: Callable[[Any, Any], str] = lambda ours, peer: ""  # what differs; "": nothing
    limit: Callable[[], Any] | float | None = None  # what no way beats: a call, or units a second


@dataclass(frozen=True, slots=True)
class BenchRow:
    """What the file of a row gives as `ROW`."""

    does: str  # the work, with its size
    unit: str  # of the rate
    open: Callable[[bool, Machine], AbstractContextManager[Contest]]  # quick: a size for tests
    peer: str = ""  # "": there is none
    limit: str = ""  # of the machine; "": not measured
    by: Literal["cpu", "wall"] = "cpu"  # the seconds that make rate and ratio
    least: float | None = None  # the ratio that is wanted
    least_share: float | None = None  # or this part of the limit
    most_s: float | None = None  # where there is no peer: seconds of one call that are wanted
    needs: tuple[str, ...] = ()  # packages of the peer
    turns: int = TURNS
    short: str = ""  # where the row falls short: the profile, and what was tried


@dataclass(frozen=True, slots=True)
class Spread:
    """A number of several turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured of one row."""

    name: str
    does: str
    unit: str
    by: str  # cpu or wall: the seconds of `rate`, `ratio` and `share`
    not_measured: str  # why; "": it was measured
    turns: int = 0
    rate: float | None = None  # units a second, ours
    seconds: Spread | None = None  # of one call, by `by`
    cpu_s: float | None = None  # of one call, all processes of it
    wall_s: float | None = None
    peer: str = ""
    peer_rate: float | None = None
    peer_cpu_s: float | None = None
    peer_wall_s: float | None = None
    ratio: Spread | None = None  # the peer's seconds by ours, turn by turn
    limit: str = ""
    limit_rate: float | None = None
    share: float | None = None  # of the limit, ours
    unequal: str = ""  # what differs from the peer's; "": nothing, or there is no peer
    least: float | None = None
    least_share: float | None = None
    most_s: float | None = None
    short: str = ""  # where it falls short of `least` or `most_s`: why

    @property
    def falls_short(self) -> bool:
        slow = self.most_s is not None and self.seconds is not None and self.seconds.median > self.most_s
        if self.least_share is not None and self.share is not None and self.share >= self.least_share:
            return slow
        return slow or (self.least is not None and self.ratio is not None and self.ratio.median < self.least)


@dataclass(frozen=True, slots=True)
class BenchReport(Result):
    """The rows of one run of the bench."""

    SCHEMA = (
        "name unit rate:float64 peer_rate:float64 ratio=ratio.median:float64 cpu_s:float64 wall_s:float64"
    )
    ROWS = "results"
    day: str  # YYYY-MM-DD
    commit: str  # of the checkout; "" outside of git
    machine: Mapping[str, Any]  # processor, cores, and the limits that a row needed
    quick: bool  # sizes of a test: no number of it is to be quoted
    results: tuple[BenchResult, ...]  # in the order of their measurement

    @property
    def equal(self) -> bool:
        return not any(r.unequal for r in self.results)


def bench(names: Sequence[str] = (), quick: bool = False, record: bool = False,
          say: Callable[[BenchResult], None] = lambda result: None) -> BenchReport:  # fmt: skip
    """Measures rows by name; none: all of them. `record` appends the report to the history of the checkout
    and writes the table of docs/performance.md. `say` gets each row when it is measured.

    Raises ConfError outside of a checkout, and for a name that no row has.
    """
    root = Path(raypipe.__file__).parents[2]
    if not (root / "bench" / "rows").is_dir():
        raise ConfError(
            "raypipe bench measures the code of a checkout, and this is an installed copy: it has no "
            f"{root / 'bench' / 'rows'}. In a checkout: make bench"
        )
    known = sorted(f.stem for f in (root / "bench" / "rows").glob("*.py"))
    for name in names:
        if name not in known:
            raise ConfError(f"no row {name!r} in {root / 'bench' / 'rows'}; {did_you_mean(name, known)}")
    if (shared := str(root / "bench")) not in sys.path:  # what rows share lies there
        sys.path.append(shared)
    made: BenchReport = import_module("bench_rows").run(root, names or known, quick, record, say)
    return made


def table(report: BenchReport) -> list[str]:
    """The table of docs/performance.md, in lines of Markdown."""
    facts = "; ".join(f"{name} {value}" for name, value in report.machine.items())
    lines = [
        f"{report.day}, commit {report.commit[:12] or 'unknown'}. {facts}.", "",
        "| row | what | ours | peer | ratio (lowest - highest) | CPU s, wall s | limit, our share | equal |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += ["| " + " | ".join(_cells(r)) + " |" for r in report.results]
    for r in (r for r in report.results if r.falls_short):
        wanted = f"a ratio of {r.least:.2g}" if r.least is not None else f"{r.most_s:g} s"
        lines += ["", f"`{r.name}` falls short of {wanted}. {r.short}".rstrip()]
    return lines


def _cells(r: BenchResult) -> list[str]:
    if r.not_measured:
        return [f"`{r.name}`", r.does, "", r.peer, r.not_measured, "", "", ""]
    ours = f"{_number(r.rate)} {r.unit}/s"
    peer = f"{r.peer}: {_number(r.peer_rate)}" if r.peer else "none"
    ratio = f"{r.ratio.median:.2f} ({r.ratio.low:.2f} - {r.ratio.high:.2f}), {r.by}" if r.ratio else ""
    if r.ratio and r.least is not None:
        ratio += f"; wanted {r.least:.2g}"
        ratio += f" or {r.least_share:.2f} of the limit" if r.least_share is not None else ""
    if r.most_s is not None and r.seconds is not None:
        ratio = f"{r.seconds.median:.2f} s ({r.seconds.low:.2f} - {r.seconds.high:.2f}); wanted {r.most_s:g}"
    share = f"{r.limit}: {_number(r.limit_rate)}, {r.share:.2f}" if r.share is not None else ""
    equal = r.unequal or ("yes" if r.peer else "")
    return [f"`{r.name}`", r.does, ours, peer, ratio, f"{r.cpu_s:.2f}, {r.wall_s:.2f}", share, equal]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
