"""The command `reproduce`: runs held against expected numbers, and what the papers' own numbers need."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.reproduce import ReproduceResult, Reproductions


def add(commands: options.Commands) -> None:
    """Declares `reproduce`."""
    made = options.command(
        commands, "reproduce", "raypipe reproduce scifact --check --data /data/scifact", _reproduce
    )
    made.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a run of conf/reproduce.yaml (default: list them, and what the papers' own numbers need)",
    )
    made.add_argument(
        "--check", action="store_true", help="run it and compare its numbers (default: say what they are)"
    )
    made.add_argument("--data", metavar="PATH", help="the folder or file that the run reads")
    options.store(made)
    options.cluster(made)
    options.as_json(made)


def _reproduce(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.reproduce import reproduce, reproductions

    session = options.session(args, settings, progress=not args.json)
    if args.name is None or not args.check:
        return _list(args, reproductions(session))
    if args.data is None:
        run = reproductions(session).runs.get(args.name)
        raise ConfError(f"--check: expected --data{f', {run.data}' if run else ''}")
    found = reproduce(args.name, args.data, args.store, False, session)
    if args.json:
        options.print_json(found.to_json())
    else:
        _show(found)
    found.check()
    return 0


def _show(found: ReproduceResult) -> None:
    from rich.text import Text

    from raypipe.report.console import grid

    console, table = options.console(), grid("measure", "by", "expected", "found", "difference", "")
    console.print(Text(found.about), soft_wrap=True)
    for row in found.rows():
        apart = "" if row["difference"] is None else f"{row['difference']:+.4f}"
        said = "none" if row["found"] is None else f"{row['found']:.4f}"
        table.add_row(
            Text(row["measure"]), Text(row["by"]), f"{row['expected']:.4f}", said, apart, row["verdict"]
        )
    console.print(table)
    console.print(Text(found.title))


def _list(args: argparse.Namespace, known: Reproductions) -> int:
    from dataclasses import asdict

    from raypipe.core.config import did_you_mean
    from raypipe.report.report import JSON_FORMAT

    if args.name is not None and args.name not in known.runs:
        raise ConfError(f"reproduce {args.name}: no such run; {did_you_mean(args.name, known.runs)}")
    runs = {n: r for n, r in known.runs.items() if args.name in (None, n)}
    if args.json:
        listed = {n: {**asdict(r), "expected": [asdict(e) for e in r.expected]} for n, r in runs.items()}
        published = [asdict(p) for p in known.published] if args.name is None else []
        options.print_json({"format": JSON_FORMAT, "runs": listed, "published": published})
        return 0
    from rich.text import Text

    console = options.console()
    for name, run in runs.items():
        console.print(Text(f"{name}: {run.about}; {run.minutes:g} min", "bold"), soft_wrap=True)
        console.print(Text(f"  --data: {run.data}"), soft_wrap=True)
        numbers = ", ".join(
            f"{e.measure}{f' by {e.by}' if e.by else ''} {e.value:g}" for e in run.expected[:MOST]
        )
        more = f" and {len(run.expected) - MOST} more" if len(run.expected) > MOST else ""
        console.print(Text(f"  expected: {numbers}{more}"), soft_wrap=True)
        console.print(Text(f"  raypipe reproduce {name} --check --data PATH"), soft_wrap=True)
    if args.name is None:
        console.print(Text("What papers state; their runs need models and data of their own:", "bold"))
        for p in known.published:
            console.print(Text(f"{p.recipe}: {p.states}"), soft_wrap=True)
            console.print(Text(f"  their model: {p.theirs}; data: {p.data}"), soft_wrap=True)
            console.print(Text(f"  {p.command}"), soft_wrap=True)
    return 0


MOST = 6  # expected numbers that are listed
