"""`raypipe check-step`: one step from outside, held to the laws of steps."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from raypipe.cli import options
from raypipe.cli.opened import catalog_of
from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError, DataError
from raypipe.core.protocols import Model
from raypipe.recipes.check import StepCheck, check_step, fakes_for
from raypipe.recipes.resolve import resolvers
from raypipe.report.console import grid


def add(commands: options.Commands) -> None:
    """Declares it."""
    made = options.command(
        commands,
        "check-step",
        "run the laws of steps on a step of your own, and compare with its lock",
        "raypipe check-step mypkg.steps:Shout --fields '{into: shout}'",
        _check,
    )
    made.add_argument("step", metavar="MODULE:CLASS", help="the step, as a recipe names it")
    made.add_argument("--fields", metavar="YAML", default="{}", help="its fields, as in a recipe")
    made.add_argument("--models", metavar="FILE", help="models file in place of conf/models.yaml")
    made.add_argument("--lock", action="store_true", help="write its line in steps.lock, next to its module")
    options.as_json(made)


def _check(args: argparse.Namespace, settings: Settings) -> int:
    try:
        fields = yaml.safe_load(args.fields)
    except yaml.YAMLError as e:
        raise ConfError(f"--fields: is not valid YAML: {' '.join(str(e).split())}") from e
    if not isinstance(fields, Mapping):
        raise ConfError(f"--fields: expected a mapping of fields to values, found {args.fields!r}")
    models = catalog_of(args.models, settings.conf)
    fakes: dict[Any, Any] = {Model: fakes_for({name: entry.kind for name, entry in models.entries.items()})}
    found = check_step(args.step, fields, {**resolvers(settings.conf, models), **fakes}, args.lock)
    tree: dict[str, Any] = {**asdict(found), "holds": found.holds}
    if args.json:
        options.print_json(tree)
    else:
        _print(Console(), found)
    return 0 if found.holds else DataError.exit_code


LOCKS = {
    "same": "puts out what is locked in {}",
    "none": "not locked; --lock writes its line in {}",
    "written": "locked in {}",
    "moved": "puts out something else than {} has for its version: raise the version, then --lock",
}


def _print(console: Console, found: StepCheck) -> None:
    console.print(Text(f"{found.step}, a {found.half} step, version {found.version}", "bold"))
    shown = grid("law", "holds", "found")
    for c in found.laws:
        shown.add_row(c.law, "yes" if c.holds else "no", Text(c.detail))
    console.print(shown)
    console.print(Text(f"reads: {', '.join(found.reads) or 'nothing'}"), soft_wrap=True)
    console.print(Text(f"writes: {', '.join(found.writes) or 'nothing'}"), soft_wrap=True)
    if not found.bounded:
        console.print("bound: it has none, so a plan says that its calls are not known")
    console.print(Text(f"lock: {LOCKS[found.lock].format(found.lock_file)}"), soft_wrap=True)
