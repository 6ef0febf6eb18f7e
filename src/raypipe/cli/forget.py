"""The command forget."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `forget`."""
    made = options.command(
        commands,
        "forget",
        "raypipe forget https://example.org/page --reason 'licence ended' --yes --store /data/store",
        _forget,
    )
    made.add_argument(
        "name",
        metavar="URL|SOURCE|QUESTION",
        help="a url that questions cite, the path of a document, or the id of a source or question",
    )
    mode = made.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="list what holds it or rests on it")
    mode.add_argument("--yes", action="store_true", help="remove it, for good")
    made.add_argument(
        "--reason", metavar="TEXT", default="", help="what its tombstone says when it is ingested again"
    )
    made.add_argument(
        "--runs",
        metavar="DIR",
        action="append",
        default=[],
        help="also look through this folder of runs or training labels (default: those under $RAYPIPE_HOME; "
        "may be repeated)",
    )
    options.store(made)
    options.as_json(made)


def _forget(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.forget import forget

    session = options.session(args, settings)
    found = forget(args.name, args.store, args.dry_run, args.reason, args.runs, session)
    if args.json:
        options.print_json(found.to_json())
        return 0
    for h in found.holdings:
        print(f"{h.kind} {h.name}: {h.rows} rows, {h.does}" if h.rows else f"{h.kind} {h.name}: {h.does}")
    what = f"{found.target} {found.name}"
    if found.dry_run:
        print(f"{what}: {len(found.holdings)} things hold it; nothing was removed (--yes removes it)")
    else:
        again = " by finishing what a killed command began" if found.finished else ""
        print(f"{what} is forgotten{again}; tombstone {found.tombstone[:8]} refuses it from now on")
    return 0
