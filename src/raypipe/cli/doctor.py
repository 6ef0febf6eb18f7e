"""The command `doctor`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.api.machine import Finding


def add(commands: options.Commands) -> None:
    """Declares `doctor`."""
    made = options.command(commands, "doctor", "raypipe doctor --json", _doctor)
    options.store(made)
    options.as_json(made)


def _doctor(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.machine import check_environment

    found = check_environment(args.store, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
    else:
        _print(found.findings)
    return 0 if found.fine else 2


def _print(findings: tuple[Finding, ...]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found"):
        table.add_column(name, overflow="fold")
    marks = {"fine": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
    for f in findings:
        table.add_row(marks[f.state], f.what, f.found)
    options.console().print(table)
    for mend in dict.fromkeys(f.mend for f in findings if f.mend):
        print(f"\n{mend}")  # whole lines, to copy
