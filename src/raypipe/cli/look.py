"""Commands that look at a finished run: why, faults, losses."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `why`, `faults` and `losses`."""
    made = options.command(commands, "why", "raypipe why /data/runs/local 2f5d8a", _why)
    made.add_argument("run_folder", metavar="DIR", help="the --out folder of a finished eval")
    made.add_argument("row", metavar="ROW", help="a question's id, or how it begins")
    options.as_json(made)
    made = options.command(commands, "faults", "raypipe faults /data/runs/local --json", _faults)
    made.add_argument(
        "run_folder",
        metavar="DIR",
        nargs="?",
        help="the --out folder of a finished eval (default: the files and lines that could not be read into "
        "the store)",
    )
    options.store(made)
    options.as_json(made)
    made = options.command(commands, "losses", "raypipe losses /data/runs/local --at recall", _losses)
    made.add_argument("run_folder", metavar="DIR", help="the --out folder of a finished eval")
    made.add_argument(
        "--at", metavar="PLACE", help="list the questions that were lost there (default: of all places, none)"
    )
    options.as_json(made)


def _why(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.look import why

    found = why(args.run_folder, args.row).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.plans import print_explanation

    print_explanation(options.console(), found)
    return 0


def _faults(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.look import faults

    found = faults(args.run_folder, args.store, options.session(args, settings)).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.console import print_undone_rows

    print_undone_rows(options.console(), found)
    return 0


def _losses(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.look import losses
    from raypipe.metrics.losses import place

    at = None if args.at is None else place(args.at)
    found = losses(args.run_folder)
    if at is not None:
        found = found.at(at)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.console import print_losses, print_lost

    console = options.console()
    print_losses(console, found.to_json()["losses"])
    if at is not None:
        print_lost(console, found.questions)
    return 0
