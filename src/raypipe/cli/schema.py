"""The command `schema`: JSON Schemas of configuration files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.api.schemas import Name

NAMES: tuple[Name, ...] = ("cluster", "finetune", "graphs", "models", "recipe")


def add(commands: options.Commands) -> None:
    """Declares `schema`."""
    made = options.command(commands, "schema", "raypipe schema --out schemas", _schema)
    made.add_argument("name", metavar="NAME", nargs="?", choices=NAMES, help=f"{', '.join(NAMES)} (all)")
    made.add_argument("--out", metavar="DIR", type=Path, help="folder for NAME.json (default: print)")


def _schema(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.paths import require_writable
    from raypipe.api.schemas import schema

    found = {name: schema(name) for name in NAMES if args.name in (None, name)}
    if args.out is None:
        print(json.dumps(found[args.name] if args.name else found, indent=1))
        return 0
    require_writable(args.out, "--out")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, tree in found.items():
        file = args.out / f"{name}.json"
        file.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
        print(file)
    return 0
