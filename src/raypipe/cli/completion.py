"""The command `completion`: completion scripts of shells."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `completion`."""
    made = options.command(commands, "completion", "raypipe completion bash", _completion)
    made.add_argument("shell", choices=("bash", "zsh"), help="whose script")


def _completion(args: argparse.Namespace, settings: Settings) -> int:
    import shtab

    from raypipe.cli.main import parser

    print(shtab.complete(parser(), args.shell))
    return 0
