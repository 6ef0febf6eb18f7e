"""Adds a model to a models file: from a hub's repository at a pinned commit, a folder, or a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raypipe.api.results import Result
from raypipe.api.served import ServedModel, is_served
from raypipe.api.session import Session
from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.metrics.textfile import replaced
from raypipe.models import folder, remote
from raypipe.models.entry import ModelEntry
from raypipe.models.load import EndpointAddress
from raypipe.models.propose import Proposal, propose
from raypipe.models.repo import HUB, ModelRepo, from_folder, from_hub


@dataclass(frozen=True, slots=True)
class ModelAddResult(Result):
    """An entry that was added, and what its model takes; one row."""

    SCHEMA = "name file kind loader bytes:int64 memory_gib:float64 context_gib:float64 licence gated:bool get"
    TITLE = "{0.name} in {0.file}"
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

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"kind": self.entry["kind"], "loader": self.entry["loader"], **self.to_json()}]


@dataclass(frozen=True, slots=True)
class AddOptions:
    """What `models add` is told beyond the model's place; each field may be left out."""

    name: str = ""  # in the models file; "": the last part of the model's own
    kind: str = ""  # embedder, reranker, generator or tokenizer; "": as its files say; of a server: generator
    revision: str | None = None  # commit, branch or tag of a hub's repository; its commit is pinned
    dialect: str = ""  # of a server
    endpoint: str = ""  # of a server: its name in the cluster file; "": from its host
    key_env: str = ""  # of a server: the environment variable of its key; "": it takes none


def add_model(
    source: str, options: AddOptions | None = None, session: Session | None = None
) -> ModelAddResult:
    """Writes an entry for ORG/NAME of a hub, a folder, or URL#MODEL of a server.

    It goes into the session's models file, else into models.yaml of the working directory; either is made
    where there is none. Raises ConfError for a model that cannot be loaded and for a name that is taken,
    ModelMissing, and Unavailable for a hub or server that cannot be reached.
    """
    session, options = session or Session(), options or AddOptions()
    file = Path(session.models or "models.yaml")
    repo: ModelRepo | None = None
    endpoints: dict[str, Any] = {}
    if is_served(source):
        proposal, endpoints = _served(source, options, session.settings.keys)
        own = str(proposal.entry["model"])
    else:
        repo = _repo(source, options, session.settings.keys)
        proposal = propose(repo, options.kind)
        own = repo.name
    name = options.name or re.sub(r"[^a-z0-9._-]", "-", own.rstrip("/").rsplit("/", 1)[-1].lower())
    _write(file, name, proposal.entry)
    revision = str(proposal.entry.get("revision", ""))
    get = folder.download_command(own, revision) if revision and repo else ""
    licence, gated = (repo.licence, repo.gated) if repo else ("", False)
    return ModelAddResult(
        name, str(file), proposal.entry, proposal.bytes, proposal.memory_gib, proposal.context_gib, licence,
        gated, get, endpoints,
    )  # fmt: skip


def _repo(source: str, options: AddOptions, environ: Mapping[str, str]) -> ModelRepo:
    if source.startswith(("/", "./", "../", "~")) or Path(source).is_dir():
        return from_folder(Path(source).expanduser().resolve())
    hub = environ.get("HF_ENDPOINT") or HUB
    return from_hub(source, options.revision, hub.rstrip("/"), environ.get("HF_TOKEN", ""))


def _served(source: str, options: AddOptions, environ: Mapping[str, str]) -> tuple[Proposal, dict[str, Any]]:
    """The entry of a model behind an address, and its endpoint for the cluster file."""
    given, kind = ServedModel.parse(source, "models add"), options.kind or "generator"
    if options.key_env and not environ.get(options.key_env):
        raise ConfError(
            f"--key-env {options.key_env}: expected a key in this environment variable, found none"
        )
    host = given.url.partition("://")[2].partition("/")[0]
    endpoint = options.endpoint or re.sub(r"[^A-Za-z0-9]+", "-", host)
    at = EndpointAddress(given.url, environ[options.key_env] if options.key_env else "")
    found = remote.describe(kind, given.model, at, options.dialect, options.key_env or "that --key-env names")
    loader = {"kind": kind, "loader": found.pop("loader")}
    entry = {**loader, "endpoint": endpoint, "model": given.model, **found}
    line = {"url": given.url} | ({"key_env": options.key_env} if options.key_env else {})
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
    with replaced(file) as out:
        out.write(before + gap + block)
