"""The command `bench`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.api.bench import BenchReport, BenchResult

UNEQUAL = 7  # a gate failed: some output is not its peer's


def add(commands: options.Commands) -> None:
    """Declares `bench`."""
    made = options.command(commands, "bench", "raypipe bench split bm25", _bench)
    made.add_argument("names", metavar="NAME", nargs="*", help="rows, by their files in bench/rows (all)")
    made.add_argument("--quick", action="store_true", help="one turn of a small size: does each row work?")
    made.add_argument(
        "--record", action="store_true", help="add to bench/history.jsonl, and write docs/performance.md"
    )
    options.as_json(made)


def _bench(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.bench import bench

    found = bench(args.names, args.quick, args.record, _say)
    if args.json:
        options.print_json(found.to_json())
    else:
        _print(found)
    return 0 if found.equal else UNEQUAL


def _say(result: BenchResult) -> None:
    print(f"{result.name}: {result.not_measured or 'measured'}", file=sys.stderr, flush=True)


def _print(report: BenchReport) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=", ".join(f"{k} {v}" for k, v in report.machine.items()))
    for name in ("row", "ours", "peer", "ratio", "CPU s", "wall s", "of limit", "equal"):
        table.add_column(name, overflow="fold")
    for r in report.results:
        if r.not_measured:
            table.add_row(r.name, r.not_measured)
            continue
        ratio = f"{r.ratio.median:.2f} ({r.ratio.low:.2f}-{r.ratio.high:.2f})" if r.ratio else ""
        if r.falls_short:
            ratio += f" of {r.least:.2g}" if r.least is not None else f"more than {r.most_s:g} s"
        peer = f"{r.peer_rate:.4g}" if r.peer_rate else ""
        share = f"{r.share:.0%} of {r.limit}" if r.share is not None else ""
        equal = r.unequal or ("yes" if r.peer else "")
        table.add_row(
            r.name, f"{r.rate:.4g} {r.unit}/s", peer, ratio, f"{r.cpu_s:.3f}", f"{r.wall_s:.3f}", share, equal
        )  # fmt: skip
    options.console().print(table)
