"""The command `facts`: published CSV files to tables of facts."""

from __future__ import annotations

import argparse
from pathlib import Path

from raypipe.api.settings import Settings
from raypipe.cli import options

SOURCES = ("oscar", "grammy", "movielens", "stocks")


def add(commands: options.Commands) -> None:
    """Declares `facts build`."""
    kinds = options.parent(commands, "facts", "what")
    made = options.command(
        kinds,
        "build",
        "raypipe facts build the_oscar_award.csv --source oscar --out facts/oscar.parquet",
        _build,
        "Convert a published CSV file to a table of facts: sentences by year or name.",
    )
    made.add_argument("csv", metavar="CSV", type=Path)
    made.add_argument("--source", choices=SOURCES, required=True, help="whose columns it has")
    made.add_argument("--out", metavar="FILE", type=Path, required=True, help="the table, a Parquet file")
    made.add_argument(
        "--credits", metavar="CSV", type=Path, help="with movielens: its file of casts and crews"
    )
    options.as_json(made)


def _build(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.graphs import build_facts

    built = build_facts(args.csv, args.source, args.out, args.credits)
    if args.json:
        options.print_json(built.to_json())
    else:
        print(built.title)
        print(f"use it with --graph {args.source}={args.out}")
    return 0
