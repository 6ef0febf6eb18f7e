"""The command `models`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.model_files import ModelNeed

STANDINS = "standins"


def add(commands: options.Commands) -> None:
    """Declares `models`."""
    made = options.command(commands, "models", "raypipe models db3-task1-700", _models)
    made.add_argument(
        "recipe", metavar="RECIPE", help=f"a name under conf/recipes, or a path; or: {STANDINS} DIR"
    )
    made.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, help=f"of {STANDINS}: where to build tiny stand-ins"
    )
    options.models(made)
    options.as_json(made)


def _models(args: argparse.Namespace, settings: Settings) -> int:
    if (args.recipe == STANDINS) != (args.folder is not None):
        raise ConfError(f"expected `raypipe models RECIPE` or `raypipe models {STANDINS} DIR`")
    from raypipe.api.model_files import build_standins, model_needs

    if args.folder is not None:
        made = build_standins(args.folder)
        if args.json:
            options.print_json(made.to_json())
        else:
            print(f"{args.folder}: a chat model, {len(made.made.adapters)} adapters, an embedder, a reranker")
            print("use them: raypipe eval RECIPE --models conf/models.standin.yaml ...")
        return 0
    found = model_needs(args.recipe, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
    else:
        _print(found.models)
    return 0


def _print(needs: tuple[ModelNeed, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = options.console()
    table = Table(box=None, pad_edge=False)
    for name in ("", "model", "kind", "size", "where"):
        table.add_column(name, overflow="fold", justify="right" if name == "size" else "left")
    for n in needs:
        size = "" if n.bytes is None else f"{n.bytes / 1e6:,.1f} MB"
        table.add_row(n.state, Text(n.name), f"{n.kind} ({n.loader})", size, Text(n.where))
    out.print(table)
    if commands := list(dict.fromkeys(n.get for n in needs if n.get)):
        out.print(Text("to get what is missing:"))
        for command in commands:
            out.print(Text(f"  {command}"), soft_wrap=True)
