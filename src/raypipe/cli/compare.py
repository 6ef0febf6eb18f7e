"""The command `compare`."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `compare`."""
    made = options.command(commands, "compare", "raypipe compare /data/runs/local /data/runs/tuned", _compare)
    made.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="the --out folder of a finished eval, a file of predictions, or a release: its id, or live; "
        "live shadow and live canary compare what both sides of a trial answered",
    )
    made.add_argument(
        "--rule",
        type=options.one_of("official", "accuracy"),
        help="by which answers are scored: official, accuracy, or MODULE:NAME (default: of a folder its own, "
        "of a file of predictions official)",
    )
    options.margin(made, "runs")
    options.group(made, "count as one each")
    options.measure(made, "what is compared")
    made.add_argument(
        "--rejudge",
        metavar="MODEL",
        nargs="?",
        const="",
        help="have one judge decide about all runs; without MODEL the first run's",
    )
    made.add_argument(
        "--unseen",
        action="store_true",
        help="leave out the questions that a fit of one of the recipes has seen",
    )
    options.judged(made)
    options.models(made)
    options.cluster(made)
    options.store(made)
    options.as_json(made)


def _compare(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.compare import compare

    found = compare(
        *args.runs,
        rule=args.rule,
        margin=args.margin,
        group=args.group,
        rejudge=args.rejudge,
        trim=args.trim,
        labels=args.labels,
        store=args.store,
        measure=args.measure,
        unseen=args.unseen,
        session=options.session(args, settings),
    )
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.cli.compare_table import print_comparison

    console = options.console()
    for c in found.comparisons:
        print_comparison(console, c)
    return 0
