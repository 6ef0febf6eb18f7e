"""The command `init`: the files of a project of one's own."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `init`."""
    made = options.command(commands, "init", "raypipe init myproject", _init)
    made.add_argument("folder", metavar="DIR", help="made where it is not there; no file in it is replaced")
    options.as_json(made)


def _init(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.project import RECIPE, start_project
    from raypipe.api.session import Session

    made = start_project(args.folder, Session(settings))
    if args.json:
        options.print_json(made.to_json())
        return 0
    print(f"{made.folder}:")
    for file in made.files:
        print(f"  {file}")
    print(f"There, README.md has the commands: cd {args.folder}; raypipe models {RECIPE}; python -m unittest")
    return 0
