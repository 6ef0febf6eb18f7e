"""The command `view`."""

from __future__ import annotations

import argparse
import sys

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `view`."""
    made = options.command(commands, "view", "raypipe view /data/runs/local /data/runs/tuned", _view)
    made.add_argument(
        "dirs",
        metavar="DIR",
        nargs="*",
        help="folder or URI of a finished eval, or a folder of such (default: the runs under $RAYPIPE_HOME, "
        "and those that the store knows)",
    )
    made.add_argument("--out", metavar="FILE", help="write the page of one run or two as one file, and end")
    made.add_argument(
        "--without",
        metavar="PARTS",
        default="",
        help="of the file: leave out prompts, or pages (texts of pages, and the prompts, which hold them)",
    )
    made.add_argument(
        "--labels",
        metavar="FILE",
        help="where people's marks are written (default: labels.jsonl in the run's folder)",
    )
    made.add_argument(
        "--port",
        metavar="N",
        type=options.between(0, 65535),
        default=8001,
        help="0: a free one (default: 8001)",
    )
    options.store(made)
    options.as_json(made)


def _view(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.view import left_out, list_runs, serve_view, write_view
    from raypipe.core.errors import ConfError

    if args.out is None and args.without:
        raise ConfError("--without: it leaves parts out of a file, found no --out. Name it: --out FILE")
    if args.out is not None and args.labels is not None:
        raise ConfError("--labels: a file of --out takes no marks. Leave out one of the two")
    session = options.session(args, settings)
    if args.out is not None:
        without = [p for p in args.without.split(",") if p]
        made = write_view(args.dirs, args.out, without, session).to_json()
        if args.json:
            options.print_json(made)
        else:
            print(f"{made['file']}: {made['bytes'] / 1e6:.1f} MB")
        return 0
    if args.json:
        found = list_runs(args.dirs, args.store, session)
        options.print_json(found.to_json())
        if found.unread:
            _say(f"{len(found.runs)} runs{left_out(found.unread)}")
        return 0
    serve_view(args.dirs, args.store, args.labels, args.port, _say, session)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
