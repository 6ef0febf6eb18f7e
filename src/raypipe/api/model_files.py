"""The models of a recipe: where they are, how large, how to get them; and stand-ins for them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raypipe.api.results import Result, as_json, plain
from raypipe.api.session import Session
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.models import folder, load
from raypipe.models.catalog import Catalog, pin_command
from raypipe.models.entry import REMOTE, WEIGHTLESS
from raypipe.recipes.read_recipe import load as load_file
from raypipe.recipes.resolve import resolvers
from raypipe.synth.prose import Prose

if TYPE_CHECKING:
    from raypipe.models.standins import Standins

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


@dataclass(frozen=True, slots=True)
class ModelNeedsResult(Result):
    """The models of a recipe; a row for each."""

    SCHEMA = "name kind loader state where bytes:int64 get"
    ROWS = "models"
    TITLE = "{0.recipe}"
    recipe: str  # its name
    models: tuple[ModelNeed, ...]


class _All(Catalog):
    """A catalog that gives every model that it has an entry for, here or not, and notes what is wrong."""

    def __init__(self, whole: Catalog) -> None:
        # Each entry as itself, also where another would stand in for it.
        entries = {name: replace(entry, fallback="") for name, entry in whole.entries.items()}
        super().__init__(entries, whole.file, whole.hub, whole.files, llm=whole.llm)
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


def model_needs(recipe: str | Path, session: Session | None = None) -> ModelNeedsResult:
    """Lists a recipe's models: where they are, how large, and the command that gets what is missing."""
    session = session or Session()
    conf, catalog = session.settings.conf, _All(session.catalog())
    resolve = resolvers(conf, catalog)
    found = load_file(conf.find("recipes", str(recipe)), resolve, lambda name: conf.find("recipes", name))
    return ModelNeedsResult(found.name, tuple(_need(m, catalog) for m in found.models()))


@dataclass(frozen=True, slots=True)
class StandinsResult(Result):
    """The folders of tiny stand-ins for models; a row for each."""

    SCHEMA = "name folder"
    made: Standins

    def rows(self) -> Iterator[Mapping[str, Any]]:
        tree = self.to_json()
        for name in ("chat", "embedder", "reranker", "instructor"):
            yield {"name": name, "folder": tree[name]}
            if name == "chat":
                yield from ({"name": n, "folder": folder} for n, folder in tree["adapters"].items())

    def to_json(self) -> dict[str, Any]:
        return as_json(**{**plain(self.made), "adapters": dict(self.made.adapters)})


def build_standins(target: Path, trainable: bool = False) -> StandinsResult:
    """Builds tiny stand-ins for a chat model with adapters, two embedders and a reranker. `trainable`: the
    chat model can learn to end its replies, so that `finetune` can teach it."""
    from raypipe.models import standins

    prose, draw = Prose(random.Random(0)), random.Random(1)
    texts = [prose.sentence(draw) for _ in range(SENTENCES)]
    return StandinsResult(standins.build(target, texts, trainable=trainable))


def _need(model: Model, catalog: _All) -> ModelNeed:
    if model.loader in WEIGHTLESS or (is_path(model.loader) and not model.path):
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
        size = None if is_path(model.loader) else folder.size(Path(model.path), model.kind, model.loader)
        return ModelNeed(model.name, model.kind, model.loader, "here", model.path, size, "")
    entry = catalog.entries[model.name]
    absent = not Path(model.path).is_dir()
    get = entry.get
    if entry.repo and not entry.revision:
        get = pin_command(model.name, entry.repo)
    elif entry.repo and absent:
        get = folder.download_command(entry.repo, entry.revision or "")
    return ModelNeed(model.name, model.kind, model.loader, "missing", "", None, get or wrong)
