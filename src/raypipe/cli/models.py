"""The command `models`: a recipe's models, stand-ins for them, and new ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.model_add import ModelAddResult
    from raypipe.api.model_files import ModelNeed

STANDINS, ADD = "standins", "add"


def add(commands: options.Commands) -> None:
    """Declares `models`."""
    made = options.command(commands, "models", "raypipe models db3-task1-700", _models)
    made.add_argument(
        "recipe",
        metavar="RECIPE",
        help=f"a name under conf/recipes, or a path; or: {STANDINS} DIR; or: {ADD} SOURCE",
    )
    made.add_argument(
        "folder",
        metavar="DIR|SOURCE",
        nargs="?",
        help=f"of {STANDINS}: where to build tiny stand-ins; of {ADD}: ORG/NAME of a hub ($HF_ENDPOINT, "
        "$HF_TOKEN), a folder, or URL#MODEL of a server; the entry goes to --models, else to models.yaml",
    )
    options.models(made)
    options.llm(made)
    made.add_argument(
        "--trainable",
        action="store_true",
        help=f"of {STANDINS}: the chat model can learn to end its replies, so that `finetune` can teach it",
    )
    more = made.add_argument_group(f"of {ADD}")
    more.add_argument(
        "--name", metavar="NAME", default="", help="in the models file (default: the model's own)"
    )
    kinds = ("embedder", "reranker", "generator", "tokenizer")
    more.add_argument(
        "--kind", choices=kinds, default="", help="default: as its files say; of a server: generator"
    )
    more.add_argument(
        "--revision", metavar="R", help="commit, branch or tag; its commit is pinned (default: main)"
    )
    more.add_argument(
        "--dialect", metavar="D", default="", help="of a server: how it is spoken to (docs/models.md)"
    )
    more.add_argument(
        "--endpoint", metavar="NAME", default="", help="of a server: its name in the cluster file"
    )
    more.add_argument(
        "--key-env", metavar="VARIABLE", default="", help="of a server: the environment variable of its key"
    )
    options.as_json(made)


def _models(args: argparse.Namespace, settings: Settings) -> int:
    if (args.recipe in (STANDINS, ADD)) != (args.folder is not None):
        ways = f"`raypipe models {STANDINS} DIR` or `raypipe models {ADD} SOURCE`"
        raise ConfError(f"expected `raypipe models RECIPE`, {ways}")
    if args.folder is not None and args.llm is not None:
        raise ConfError(
            f"--llm: it stands in for the generators of a recipe; found {args.recipe}. Leave it out"
        )
    if args.recipe == ADD:
        return _add(args, settings)
    from raypipe.api.model_files import build_standins, model_needs

    if args.folder is not None:
        made = build_standins(Path(args.folder), args.trainable)
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


def _add(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.model_add import AddOptions, add_model

    told = AddOptions(args.name, args.kind, args.revision, args.dialect, args.endpoint, args.key_env)
    found = add_model(args.folder, told, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
    else:
        _print_added(found)
    return 0


def _print_added(found: ModelAddResult) -> None:
    entry = found.entry
    print(f"{found.name}: {entry['kind']} ({entry['loader']}), added to {found.file}")
    if entry.get("revision"):
        print(f"commit   {entry['revision']}")
    if not found.endpoints:
        gate = ", gated: accept it on its page" if found.gated else ""
        print(f"licence  {found.licence or 'not stated'}{gate}")
        print(f"size     {'not known' if found.bytes is None else f'{found.bytes / 1e6:,.1f} MB of files'}")
        memory = "not known" if found.memory_gib is None else f"{found.memory_gib:.2f} GiB of weights"
        if found.context_gib is not None:
            memory += f", {found.context_gib:.2f} GiB for one reply of {entry['max_model_len']:,} tokens"
        print(f"memory   {memory}")
    for name, at in found.endpoints.items():
        fields = ", ".join(f'{key}: "{value}"' for key, value in at.items())
        print(f"under `endpoints` of the cluster file:  {name}: {{{fields}}}")
    if found.get:
        print(f"get it:  {found.get}")
    print(f"use it:  raypipe COMMAND ... --models {found.file}, and {found.name} in a recipe")


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
