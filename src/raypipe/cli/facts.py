"""`raypipe facts`: public data, from the CSV files that are published to a table that recipes look into."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.settings import Settings
from raypipe.kg.public_data import KINDS, build


def add(commands: options.Commands) -> None:
    """Declares `facts build`."""
    top = commands.add_parser("facts", help="public data as sentences, by year or name")
    kinds = top.add_subparsers(dest="what", metavar="WHAT", required=True)
    made = options.command(
        kinds,
        "build",
        "turn a published CSV file into a table of facts",
        "raypipe facts build the_oscar_award.csv --kind oscar --out facts/oscar.parquet",
        _build,
    )
    made.add_argument("csv", metavar="CSV", type=Path)
    made.add_argument("--kind", choices=KINDS, required=True, help="whose columns it has")
    made.add_argument("--out", metavar="FILE", type=Path, required=True, help="the table, a Parquet file")
    made.add_argument(
        "--credits", metavar="CSV", type=Path, help="with movielens: its file of casts and crews"
    )
    options.as_json(made)


def _build(args: argparse.Namespace, settings: Settings) -> int:
    built = build(args.csv, args.kind, args.out, args.credits)
    if args.json:
        options.print_json({"out": str(args.out), **asdict(built)})
    else:
        Console().print(
            f"{args.out}: {built.facts} facts of {built.lines} lines, {built.skipped} lines skipped. "
            f"Use it with --graph {args.kind}={args.out}",
            highlight=False,
        )
    return 0
