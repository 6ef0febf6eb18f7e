"""Measures the rows of `bench/rows/`, for `raypipe bench`: each way to do the work is run by turns.

All ways take turns in one process, so that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from machine import Machine

from raypipe.api.bench import BenchReport, BenchResult, Spread
from raypipe.core.environment import commit_of
from raypipe.core.errors import ConfError, ModelMissing

HISTORY, TABLE = "history.jsonl", "docs/performance.md"
BEGIN, END = "<!-- raypipe bench: begin -->", "<!-- raypipe bench: end -->"
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


def run(
    root: Path, names: Sequence[str], quick: bool, record: bool, say: Callable[[BenchResult], None]
) -> BenchReport:
    """The rows of these names, of the checkout at `root`."""
    machine, found = Machine(), []
    for name in names:
        row = read_row(root / "bench" / "rows" / f"{name}.py")
        try:
            found.append(measured(name, row, quick, machine))
        except ModelMissing as e:
            found.append(_not_measured(name, row, str(e)))
        say(found[-1])
    about = time.strftime("%Y-%m-%d"), commit_of(root), machine.facts()
    report = BenchReport(*about, quick, tuple(found), tuple(table(*about, found)))
    if record:
        _record(report, root)
    return report


def read_row(file: Path) -> BenchRow:
    """The row that a file gives. Raises ConfError for a file without one."""
    spec = importlib.util.spec_from_file_location(f"raypipe_bench_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = getattr(module, "ROW", None)
    if not isinstance(row, BenchRow):
        raise ConfError(f"{file}: expected ROW, a bench_rows.BenchRow, found {row!r:.60}")
    return row


def measured(name: str, row: BenchRow, quick: bool, machine: Machine) -> BenchResult:
    """One row: each way is run once to warm it, then all take turns, the first of a turn alternating."""
    missing = [n for n in row.needs if importlib.util.find_spec(n) is None]
    if missing:
        return _not_measured(name, row, f"{', '.join(missing)} is not installed")
    turns = 1 if quick else row.turns
    with row.open(quick, machine) as contest:
        ways = {"ours": contest.ours}
        if contest.peer is not None:
            ways["peer"] = contest.peer
        if callable(contest.limit):
            ways["limit"] = contest.limit
        came = {way: _timed(call)[2] for way, call in ways.items()}
        unequal = contest.unequal(came["ours"], came["peer"]) if "peer" in came else ""
        took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(turns):
            for way in list(ways) if turn % 2 == 0 else reversed(list(ways)):
                cpu, wall, _ = _timed(ways[way])
                took[way].append((cpu, wall))
    return _result(name, row, contest, took, unequal)


def _not_measured(name: str, row: BenchRow, why: str) -> BenchResult:
    return BenchResult(name, row.does, row.unit, row.by, f"not measured: {why}", peer=row.peer)


def _result(
    name: str, row: BenchRow, contest: Contest, took: dict[str, list[tuple[float, float]]], unequal: str
) -> BenchResult:
    which = 0 if row.by == "cpu" else 1
    seconds = {way: Spread.of([turn[which] for turn in turns]) for way, turns in took.items()}
    median = {(way, i): statistics.median(t[i] for t in turns) for way, turns in took.items() for i in (0, 1)}
    rates = {way: contest.units / s.median for way, s in seconds.items()}
    limit = contest.limit if isinstance(contest.limit, float) else rates.get("limit")
    ratio = None
    if "peer" in took:
        both = zip(took["peer"], took["ours"], strict=True)
        ratio = Spread.of([peer[which] / ours[which] for peer, ours in both])
    return BenchResult(
        name,
        row.does,
        row.unit,
        row.by,
        "",
        len(took["ours"]),
        rates["ours"],
        seconds["ours"],
        median["ours", 0],
        median["ours", 1],
        row.peer,
        rates.get("peer"),
        median.get(("peer", 0)),
        median.get(("peer", 1)),
        ratio,
        row.limit,
        limit,
        rates["ours"] / limit if limit else None,
        unequal,
        row.least,
        row.least_share,
        row.most_s,
        row.short,
    )


def _timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """(CPU seconds of this process and those below it, wall seconds, what came)."""
    cpu, wall = cpu_s(), time.perf_counter()
    came = call()
    wall = time.perf_counter() - wall
    return max(cpu_s() - cpu, 1e-9), wall, came


def cpu_s() -> float:
    """CPU seconds so far of this process, of its children that ended and of those that run."""
    me = psutil.Process()
    ended = me.cpu_times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def table(day: str, commit: str, machine: Mapping[str, Any], results: Sequence[BenchResult]) -> list[str]:
    """The table of docs/performance.md, in lines of Markdown."""
    facts = "; ".join(f"{name} {value}" for name, value in machine.items())
    lines = [
        f"{day}, commit {commit[:12] or 'unknown'}. {facts}.",
        "",
        "| row | what | ours | peer | ratio (lowest - highest) | limit, our share | equal |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cells(r)) + " |" for r in results]
    for r in (r for r in results if r.falls_short):
        wanted = f"a ratio of {r.least:.2g}" if r.least is not None else f"{r.most_s:g} s"
        lines += ["", f"`{r.name}` falls short of {wanted}. {r.short}".rstrip()]
    return lines


def _cells(r: BenchResult) -> list[str]:
    if r.not_measured:
        return [f"`{r.name}`", r.does, "", r.peer, r.not_measured, "", ""]
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
    return [f"`{r.name}`", r.does, ours, peer, ratio, share, equal]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _record(report: BenchReport, root: Path) -> None:
    with open(root / "bench" / HISTORY, "a", encoding="utf-8") as history:
        history.write(json.dumps(report.to_dict()) + "\n")
    page = root / TABLE
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ConfError(f"{page}: expected the lines {BEGIN!r} and {END!r} around its table, found neither")
    before, _, rest = text.partition(BEGIN)
    page.write_text(
        f"{before}{BEGIN}\n" + "\n".join(report.lines) + f"\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )
