"""The command `models`: a recipe's models, stand-ins for them, and new ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import raypipe
from raypipe.cli.command import Args, called, command, console, printed, session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.models import ModelAddResult, ModelNeedsResult, StandinsResult

STANDINS, ADD = "standins", "add"


@command(
    "models",
    "raypipe models db3-task1-700",
    """
    recipe RECIPE: a name under conf/recipes, or a path; or: standins DIR; or: add SOURCE
    folder DIR|SOURCE?: of standins: where to build tiny stand-ins; of add: ORG/NAME of a hub ($HF_ENDPOINT,
      $HF_TOKEN), a folder, or URL#MODEL of a server; the entry goes to --models, else to models.yaml
    models llm
    --trainable: of standins: the chat model can learn to end its replies, so that `finetune` can teach it

    of add:
    --name NAME {= ""}: in the models file (default: the model's own)
    --kind {embedder|reranker|generator|tokenizer = ""}: default: as its files say; of a server: generator
    --revision R: commit, branch or tag; its commit is pinned (default: main)
    --dialect D {= ""}: of a server: how it is spoken to (docs/models.md)
    --endpoint NAME {= ""}: of a server: its name in the cluster file
    --key-env VARIABLE {= ""}: of a server: the environment variable of its key

    json
    """,
)
def _models(args: Args) -> int:
    if (args.recipe in (STANDINS, ADD)) != (args.folder is not None):
        ways = f"`raypipe models {STANDINS} DIR` or `raypipe models {ADD} SOURCE`"
        raise ConfError(f"expected `raypipe models RECIPE`, {ways}")
    if args.folder is not None and args.llm is not None:
        raise ConfError(
            f"--llm: it stands in for the generators of a recipe; found {args.recipe}. Leave it out"
        )
    if args.recipe == ADD:
        from raypipe.api.models import AddOptions, add_model

        made = add_model(args.folder, called(AddOptions, args), session(args))
        return printed(args, made, _print_added)
    from raypipe.api.models import build_standins

    if args.recipe == STANDINS:
        return printed(args, build_standins(Path(args.folder), args.trainable), _print_standins)
    return printed(args, called(raypipe.model_needs, args), _print)


def _print_standins(made: StandinsResult) -> None:
    chat = made.made.chat
    print(f"{chat.parent}: a chat model, {len(made.made.adapters)} adapters, an embedder, a reranker")
    print("use them: raypipe eval RECIPE --models conf/models.standin.yaml ...")


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


def _print(found: ModelNeedsResult) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("", "model", "kind", "size", "where"):
        table.add_column(name, overflow="fold", justify="right" if name == "size" else "left")
    for n in found.models:
        size = "" if n.bytes is None else f"{n.bytes / 1e6:,.1f} MB"
        table.add_row(n.state, Text(n.name), f"{n.kind} ({n.loader})", size, Text(n.where))
    console().print(table)
    if commands := dict.fromkeys(f"  {n.get}" for n in found.models if n.get):
        print("to get what is missing:", *commands, sep="\n")
