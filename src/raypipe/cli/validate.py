"""The command `validate`: every problem of configuration files, with file and line."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError


def add(commands: options.Commands) -> None:
    """Declares `validate`."""
    made = options.command(
        commands, "validate", "raypipe validate local mine.yaml conf/clusters/laptop.yaml", _validate
    )
    made.add_argument(
        "files",
        metavar="RECIPE|FILE",
        nargs="+",
        help="a name under conf/recipes, or a path: a recipe, a models, cluster or graphs file, a prompt",
    )
    options.models(made)
    options.graph(made)
    options.as_json(made)


def _validate(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.validate import validate

    found = validate(*args.files, session=options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
    else:
        for problem in found.problems:
            print(problem)
        for file in found.files:
            if not file.problems:
                print(f"{file.file}: no problem ({file.kind})")
    return ConfError.exit_code if found.problems else 0
