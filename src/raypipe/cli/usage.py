"""The command usage."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `usage`."""
    made = options.command(commands, "usage", "raypipe usage /data/logs/serve.jsonl", _usage)
    made.add_argument("logs", metavar="LOG", nargs="+", help="logs that `raypipe serve` wrote")
    options.as_json(made)


def _usage(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.usage import usage

    found = usage(args.logs)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from rich.text import Text

    from raypipe.report.console import grid

    shown = grid("tenant", "requests", "refused", "failed", "questions", "tokens", "p99")
    for t in found.tenants:
        p99 = "" if t.p99_ms is None else f"{t.p99_ms:.0f} ms"
        counts = (t.requests, t.refused, t.failed, t.questions, t.tokens)
        shown.add_row(Text(t.tenant), *(f"{n:,}" for n in counts), p99)
    options.console().print(shown)
    return 0
