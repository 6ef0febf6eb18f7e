"""`raypipe check-step`: one step from outside, held to the laws of steps."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError, DataError


def add(commands: options.Commands) -> None:
    """Declares `check-step`."""
    example = "raypipe check-step mypkg.steps:Shout --fields '{into: shout}'"
    made = options.command(commands, "check-step", example, _check)
    made.add_argument("step", metavar="MODULE:CLASS", help="the step, as a recipe names it")
    made.add_argument("--fields", metavar="YAML", default="{}", help="its fields, as in a recipe")
    options.models(made)
    made.add_argument("--lock", action="store_true", help="write its line in steps.lock, next to its module")
    options.as_json(made)


def _check(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.steps import check_step

    checked = check_step(args.step, _fields(args.fields), args.lock, options.session(args, settings))
    found = checked.to_json()
    if args.json:
        options.print_json(found)
    else:
        from raypipe.report.console import print_step_check

        print_step_check(options.console(), found)
    return 0 if found["holds"] else DataError.exit_code


def _fields(text: str) -> Mapping[str, Any]:
    from raypipe.core.config import read_value

    fields = read_value(text, "--fields")
    if not isinstance(fields, Mapping):
        raise ConfError(f"--fields: expected a mapping of fields to values, found {text!r}")
    return fields
