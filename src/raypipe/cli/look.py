"""Commands that look at a finished run: why, faults."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `why` and `faults`."""
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
