"""The command `compare`."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `compare`."""
    made = options.command(commands, "compare", "raypipe compare /data/runs/local /data/runs/tuned", _compare)
    made.add_argument(
        "runs", metavar="RUN", nargs="+", help="the --out folder of a finished eval, or a file of predictions"
    )
    made.add_argument(
        "--rule",
        type=options.one_of("official", "accuracy"),
        default="official",
        help="by which files of predictions are scored: official (default), accuracy, or MODULE:NAME",
    )
    made.add_argument(
        "--margin",
        type=float,
        default=0.02,
        metavar="M",
        help="runs whose 90 %% interval lies within M to either side are the same (default: 0.02)",
    )
    made.add_argument(
        "--group", metavar="LABEL", help="a label whose values are groups of questions that count as one each"
    )
    made.add_argument(
        "--measure",
        metavar="NAME",
        help="what is compared: score, f1, ndcg_cut_10, ... (default: the first of the kind of the data)",
    )
    options.as_json(made)


def _compare(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.compare import compare

    found = compare(*args.runs, rule=args.rule, margin=args.margin, group=args.group, measure=args.measure)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.cli.compare_table import print_comparison

    console = options.console()
    for c in found.comparisons:
        print_comparison(console, c)
    return 0
