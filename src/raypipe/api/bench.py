"""Speed of raypipe next to other libraries that do the same work, as `bench/bench_rows.py` measures it.

A row of the bench is a file in `bench/rows/` of a checkout. It computes the same output with raypipe and with
another library, its peer. The outputs are compared, too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import raypipe
from raypipe.api.results import Result
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest value of a number measured in several turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Measurements of one row."""

    name: str
    does: str
    unit: str
    by: str  # cpu or wall: kind of seconds from which `rate`, `ratio` and `share` are computed
    not_measured: str  # the reason; "": it was measured
    turns: int = 0
    rate: float | None = None  # our units per second
    seconds: Spread | None = None  # seconds of one call, of the kind `by`
    cpu_s: float | None = None  # CPU seconds of one call, summed over all its processes
    wall_s: float | None = None
    peer: str = ""
    peer_rate: float | None = None
    peer_cpu_s: float | None = None
    peer_wall_s: float | None = None
    ratio: Spread | None = None  # the peer's seconds divided by ours, turn by turn
    limit: str = ""  # name of a limit that the machine sets, such as its matrix product; "": not measured
    limit_rate: float | None = None
    share: float | None = None  # our rate divided by `limit_rate`
    unequal: str = ""  # difference from the peer's output; "": none, or no peer
    least: float | None = None  # smallest accepted median of `ratio`
    least_share: float | None = None  # `share` that is accepted even if `ratio` is below `least`
    most_s: float | None = None  # largest accepted median of `seconds`
    short: str = ""  # the reason for missing `least` or `most_s`

    @property
    def falls_short(self) -> bool:
        slow = self.most_s is not None and self.seconds is not None and self.seconds.median > self.most_s
        fast = self.least_share is not None and self.share is not None and self.share >= self.least_share
        behind = self.least is not None and self.ratio is not None and self.ratio.median < self.least
        return slow or (behind and not fast)


@dataclass(frozen=True, slots=True, repr=False)
class BenchReport(Result, rows="results"):
    """Results of one run of the bench. In `table()` each result is a row."""

    day: str  # YYYY-MM-DD
    commit: str  # of the checkout; "" outside of git
    machine: Mapping[str, Any]  # processor, cores, and the limits that a row needed
    quick: bool  # sizes of a test: do not quote its numbers
    results: tuple[BenchResult, ...]  # in the order of measurement
    lines: tuple[str, ...]  # the table of docs/performance.md

    @property
    def equal(self) -> bool:
        return not any(r.unequal for r in self.results)


@dataclass(frozen=True, slots=True)
class RowChange:
    """The seconds of a row at two commits."""

    name: str
    by: str  # cpu or wall; "": it was not measured
    not_measured: str  # the reason; "": it was measured
    before: Spread | None = None  # seconds of one call, over the turns
    now: Spread | None = None
    ratio: Spread | None = None  # `before` divided by `now`, turn by turn; above 1: it became faster


@dataclass(frozen=True, slots=True, repr=False)
class CommitReport(Result, rows="results"):
    """Seconds of each row at the checkout's commit and at another commit."""

    day: str  # YYYY-MM-DD
    commit: str  # of the checkout
    against: str  # the other commit
    quick: bool  # sizes of a test: do not quote its numbers
    results: tuple[RowChange, ...]
    lines: tuple[str, ...]  # a table in Markdown

    equal: ClassVar[bool] = True  # outputs are compared with peers, not with another commit


def bench(
    names: Sequence[str] = (),
    quick: bool = False,
    record: bool = False,
    against: str | None = None,
    say: Callable[[BenchResult | RowChange], None] = lambda result: None,
) -> BenchReport | CommitReport:
    """Measures the rows of the bench that `names` lists; without names, all rows.

    `record` appends the report to the history of the checkout, and writes the table of docs/performance.md.
    `against` names a commit. The checkout is then measured in turns with this commit, instead of with other
    libraries. `say` receives each result once its row is measured. Raises ConfError outside of a checkout,
    for an unknown name or commit, and for `record` together with `against`.
    """
    root = Path(raypipe.__file__).parents[2]
    rows = root / "bench" / "rows"
    if not rows.is_dir():
        raise ConfError(f"bench: expected a checkout, found an installed copy without {rows}")
    known = sorted(f.stem for f in rows.glob("*.py"))
    if unknown := next((name for name in names if name not in known), None):
        raise ConfError(f"no row {unknown!r} in {rows}; {did_you_mean(unknown, known)}")
    if against is not None and record:
        raise ConfError("--against: expected without --record, which keeps rows next to their peers")
    if (shared := str(root / "bench")) not in sys.path:  # rows import shared modules from there
        sys.path.append(shared)
    made: BenchReport | CommitReport
    if against is not None:
        made = import_module("bench_commits").run(root, names or known, against, quick, say)
    else:
        made = import_module("bench_rows").run(root, names or known, quick, record, say)
    return made
