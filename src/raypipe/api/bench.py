"""Speed next to what others take for the same work: the rows of `bench/rows/`, each measured by turns.

A row is a file of a checkout that says what is computed, by us and by a peer, and whether both are
equal. `bench/bench_rows.py` measures them; here is what they say.
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
    """A number of several turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements of one row."""

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


@dataclass(frozen=True, slots=True, repr=False)
class BenchReport(Result, rows="results"):
    """The rows of one run of the bench."""

    day: str  # YYYY-MM-DD
    commit: str  # of the checkout; "" outside of git
    machine: Mapping[str, Any]  # processor, cores, and the limits that a row needed
    quick: bool  # sizes of a test: no number of it is to be quoted
    results: tuple[BenchResult, ...]  # in the order of their measurement
    lines: tuple[str, ...]  # the table of docs/performance.md

    @property
    def equal(self) -> bool:
        return not any(r.unequal for r in self.results)


@dataclass(frozen=True, slots=True)
class RowChange:
    """The seconds of a row at two commits."""

    name: str
    by: str  # cpu or wall; "": it was not measured
    not_measured: str  # why; "": it was measured
    before: Spread | None = None  # seconds of one call, over the turns
    now: Spread | None = None
    ratio: Spread | None = None  # before by now, turn by turn: above 1, it became faster


@dataclass(frozen=True, slots=True, repr=False)
class CommitReport(Result, rows="results"):
    """The rows of a checkout next to those of another commit."""

    day: str  # YYYY-MM-DD
    commit: str  # of the checkout
    against: str  # the other commit
    quick: bool  # sizes of a test: no number of it is to be quoted
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
    """Measures rows by name; none: all of them. `record` appends the report to the history of the checkout
    and writes the table of docs/performance.md. `against`: a commit, whose rows take turns with these in
    place of peers. `say` gets each row when it is measured.

    Raises ConfError outside of a checkout, for a name that no row has, and for a commit that is not there.
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
    made: BenchReport | CommitReport
    if against is not None:
        if record:
            raise ConfError("--against: expected without --record, which keeps rows next to their peers")
        made = import_module("bench_commits").run(root, names or known, against, quick, say)
    else:
        made = import_module("bench_rows").run(root, names or known, quick, record, say)
    return made
