"""State of this machine: installed packages, settings, models, and commands that mend what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from raypipe.api.results import Result
from raypipe.api.session import Session, Settings
from raypipe.core.environment import cores, installed
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import tables
from raypipe.models import load
from raypipe.readers.documents.ocr import engine

PACKAGES = (
    "ray",
    "lancedb",
    "pylance",
    "pyarrow",
    "torch",
    "transformers",
    "FlagEmbedding",
    "turbohtml",
    "blingfire",
)
VLLM = "pip install 'raypipe[gpu]'; on a machine without a GPU, in a checkout: make setup"
CLASHING = ("torchvision", "torchaudio", "torchcodec")  # with a CPU torch they break FlagEmbedding's import


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of the machine."""

    what: str
    state: Literal["fine", "missing", "note"]
    found: str
    mend: str = ""  # the command that mends it; "": nothing to mend


@dataclass(frozen=True, slots=True, repr=False)
class EnvironmentResult(Result, rows="findings"):
    """Results of all checks of the machine. Each result is a row."""

    fine: bool  # True: nothing is missing
    findings: tuple[Finding, ...]


def check_environment(store: str | None = None, session: Session | None = None) -> EnvironmentResult:
    """Checks versions, this machine, Ray's settings, models and the store. Starts and changes nothing."""
    settings = (session or Session()).settings
    none = "pip install raypipe, or run it in a checkout  # its metadata name its plugins"
    try:
        names = ", ".join(tables())
        plugins = Finding("plugins", "fine", names) if names else Finding("plugins", "note", "none", none)
    except ConfError as e:
        plugins = Finding("plugins", "missing", "a plugin cannot be read", str(e))
    models = _models(settings) if plugins.state != "missing" else ()  # a broken plugin makes conf unreadable
    found = (*_versions(), plugins, *_around(settings), *models, _store(store, settings))
    return EnvironmentResult(all(f.state != "missing" for f in found), found)


def _versions() -> Iterator[Finding]:
    yield Finding("python", "fine", platform.python_version())
    found = installed(PACKAGES)
    for name in PACKAGES:
        if name in found:
            yield Finding(name, "fine", found[name])
        else:
            yield Finding(name, "missing", "not installed", "pip install 'raypipe[local]'")
    if importlib.util.find_spec("vllm") is None:
        use = "local, rag and --llm URL#MODEL need none; models from a folder, as smollm2-135m-instruct, do"
        yield Finding("vllm", "note", f"not installed: {use}", VLLM)
    if ocr := engine():
        yield Finding("scans", "fine", ocr)
    else:
        lost = "not installed: pages without text are dead letters"
        yield Finding("scans", "note", lost, "pip install 'raypipe[ocr]'")
    for name, version in installed(CLASHING).items():
        if "+cpu" in importlib.metadata.version("torch"):
            mend = f"{sys.executable} -m pip uninstall {name}"
            yield Finding(name, "missing", f"{version} breaks a CPU torch", mend)


def _around(settings: Settings) -> Iterator[Finding]:
    memory = psutil.virtual_memory().total / 2**30
    yield Finding("machine", "fine", f"{cores()} CPUs, {memory:.0f} GiB")
    home = settings.home
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = psutil.disk_usage(str(existing)).free / 2**30
    larger = "" if free > 5 else "set RAYPIPE_HOME to a larger disk"
    yield Finding("home", "note" if larger else "fine", f"{home}, {free:.0f} GiB free", larger)
    if settings.auth:
        yield Finding("ray auth", "fine", settings.auth)
    else:
        mend = "export RAY_AUTH_MODE=token; ray get-auth-token --generate  # for a head that others can reach"
        kept = "`ray start` asks for a token only where ~/.ray/auth_token is"
        yield Finding("ray auth", "note", f"RAY_AUTH_MODE is not set: {kept}", mend)
    alone = settings.ray == "local"
    yield Finding("ray address", "fine", "a Ray is started for each run" if alone else settings.ray)


def _models(settings: Settings) -> Iterator[Finding]:
    """Yields a finding for each model of models.yaml that is on this machine, and for each absent model that
    the recipe `local` needs. All other absent models share one finding."""
    session = Session(settings)
    found = session.catalog()
    try:
        needed = {m.name for m in session.recipe("local").models()}
    except (ModelMissing, ConfError) as e:  # the missing weights come with the extra `local`
        yield Finding("model", "missing", "a model that the recipe local needs", str(e))
        needed = set()
    absent = []
    for name in found.entries:
        try:
            model = found.model(name)
            load.present(model)
            yield Finding("model", "fine", f"{name} ({model.kind})")
        except (ModelMissing, ConfError) as e:
            if name in needed:
                yield Finding("model", "missing", f"{name}, which the recipe local needs", str(e))
            else:
                absent.append(name)
    if absent:
        about = "raypipe models RECIPE  # which models a recipe needs, and the commands that get them"
        shown = ", ".join(absent[:3])
        what = f"{len(absent)} more of models.yaml are not here ({shown}, ...); local needs none of them"
        yield Finding("model", "note", what, about)


def _store(given: str | None, settings: Settings) -> Finding:
    uri = settings.store_to_use(given)
    if "://" in uri:
        return Finding("store", "note", f"{uri}: not looked at")
    if Path(uri).is_dir():
        return Finding("store", "fine", f"{uri}: {len(list(Path(uri).glob('*.lance')))} tables")
    return Finding("store", "note", f"{uri}: not there yet; eval and ingest make it")
