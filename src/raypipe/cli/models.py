"""`raypipe models`: what a recipe's models are, where they are, how they are got; and stand-ins for them."""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raypipe.cli import options
from raypipe.cli.opened import catalog_of
from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model
from raypipe.models import folder, load
from raypipe.models.catalog import REMOTE, WEIGHTLESS, Catalog
from raypipe.recipes.recipe import load as load_recipe
from raypipe.recipes.resolve import resolvers
from raypipe.synth.prose import Prose

STANDINS = "standins"
SENTENCES = 2000  # of invented prose that the stand-ins' tokenizers are trained on: some seconds


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """One model that a recipe names."""

    name: str  # in the models file
    kind: str
    loader: str
    state: Literal["here", "missing", "remote", "computed"]  # computed: it has no weights
    where: str  # folder, or NAME at ENDPOINT; "": nowhere
    bytes: int | None  # of the files that are read; None: not known here
    get: str  # the command or deed that gets it; "": nothing is needed


class _All(Catalog):
    """A catalog that gives every model that it has an entry for, here or not, and notes what is wrong."""

    def __init__(self, whole: Catalog) -> None:
        # Each entry as itself, also where another would stand in for it.
        entries = {name: replace(entry, instead="") for name, entry in whole.entries.items()}
        super().__init__(entries, whole.file, whole.hub)
        self.wrong: dict[str, str]
        object.__setattr__(self, "wrong", {})

    def model(self, name: str) -> Model:
        try:
            return Catalog.model(self, name)
        except (ModelMissing, ConfError) as e:
            entry = self.entries.get(name)
            if entry is None:
                raise
            self.wrong[name] = str(e)
            adapters = tuple((a, "missing") for a in entry.adapters)
            weights = f"missing:{name}"
            return Model(
                name, entry.kind, entry.loader, entry.repo, entry.revision or "", entry.path, weights,
                dim=entry.dim, max_tokens=entry.max_tokens, max_model_len=entry.max_model_len,
                adapters=adapters,
            )  # fmt: skip


def add(commands: options.Commands) -> None:
    """Declares `models`."""
    made = options.command(
        commands,
        "models",
        "list a recipe's models: where they are, how large, and the command that gets what is missing; "
        "or build tiny stand-ins for them",
        "raypipe models db3-task1-700",
        _models,
    )
    made.add_argument(
        "recipe", metavar="RECIPE", help=f"a name under conf/recipes, or a path; or: {STANDINS} DIR"
    )
    made.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, help=f"of {STANDINS}: where to build them"
    )
    made.add_argument("--models", metavar="FILE", help="models file in place of conf/models.yaml")
    options.as_json(made)


def _models(args: argparse.Namespace, settings: Settings) -> int:
    if (args.recipe == STANDINS) != (args.folder is not None):
        raise ConfError(f"expected `raypipe models RECIPE` or `raypipe models {STANDINS} DIR`")
    if args.folder is not None:
        return _build(args.folder, args.json)
    catalog = _All(catalog_of(args.models, settings.conf))
    found = load_recipe(settings.conf.find("recipes", args.recipe), resolvers(settings.conf, catalog))
    needs = [_need(m, catalog) for m in found.models()]
    if args.json:
        options.print_json({"recipe": found.name, "models": [asdict(n) for n in needs]})
    else:
        _print(needs)
    return 0


def _need(model: Model, catalog: _All) -> ModelNeed:
    if model.loader in WEIGHTLESS:
        return ModelNeed(model.name, model.kind, model.loader, "computed", "", 0, "")
    if model.loader in REMOTE:
        where = f"{model.repo} at endpoint {model.path}"
        return ModelNeed(model.name, model.kind, model.loader, "remote", where, None, "")
    wrong = catalog.wrong.get(model.name, "")
    if not wrong:
        try:
            load.present(model)
        except (ModelMissing, ConfError) as e:
            wrong = str(e)
    if not wrong:
        size = folder.size(Path(model.path), model.kind)
        return ModelNeed(model.name, model.kind, model.loader, "here", model.path, size, "")
    entry = catalog.entries[model.name]
    pinned = bool(entry.repo and entry.revision)
    absent = not Path(model.path).is_dir()
    get = folder.download_command(entry.repo, entry.revision or "") if pinned and absent else entry.get
    return ModelNeed(model.name, model.kind, model.loader, "missing", "", None, get or wrong)


def _print(needs: list[ModelNeed]) -> None:
    out = Console()
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


def _build(target: Path, as_json: bool) -> int:
    from raypipe.models import standins

    prose, draw = Prose(random.Random(0)), random.Random(1)
    made = standins.build(target, [prose.sentence(draw) for _ in range(SENTENCES)])
    said: dict[str, Any] = {
        "chat": str(made.chat),
        "adapters": {name: str(path) for name, path in made.adapters},
        "embedder": str(made.embedder),
        "reranker": str(made.reranker),
    }
    if as_json:
        options.print_json(said)
    else:
        print(f"{target}: a chat model with {len(made.adapters)} adapters, an embedder, a reranker")
        print("use them: raypipe eval RECIPE --models conf/models.standin.yaml ...")
    return 0
