"""`raypipe doctor`: what is here, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table

from raypipe.cli import options
from raypipe.cli.opened import resolved
from raypipe.cli.settings import Settings
from raypipe.core.config import read_yaml
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models import catalog, load

PACKAGES = ("ray", "lancedb", "pylance", "pyarrow", "torch", "transformers", "FlagEmbedding", "turbohtml")
CLASHING = ("torchvision", "torchaudio", "torchcodec")  # beside a CPU torch they break FlagEmbedding's import


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Literal["fine", "missing", "note"]
    found: str
    mend: str = ""  # the command that mends it, where it is missing


def add(commands: options.Commands) -> None:
    """Declares `doctor`."""
    made = options.command(
        commands,
        "doctor",
        "say what is installed and reachable, what is missing, and what mends it",
        "raypipe doctor --json",
        _run,
    )
    options.store(made)
    options.as_json(made)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    findings = [*_versions(), *_machine(settings), *_ray(settings), *_models(settings)]
    findings.append(_store(args.store, settings))
    broken = any(f.state == "missing" for f in findings)
    if args.json:
        options.print_json({"fine": not broken, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings)
    return 2 if broken else 0


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found"):
        table.add_column(name, overflow="fold")
    marks = {"fine": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
    for f in findings:
        table.add_row(marks[f.state], f.what, f.found)
    Console().print(table)
    for mend in dict.fromkeys(f.mend for f in findings if f.mend):
        print(f"\n{mend}")  # whole lines, to copy


def _versions() -> Iterator[Finding]:
    yield Finding("python", "fine", platform.python_version())
    for name in PACKAGES:
        try:
            yield Finding(name, "fine", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "missing", "not installed", "make setup")
    for name in CLASHING:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if "+cpu" in importlib.metadata.version("torch"):
            yield Finding(
                name, "missing", f"{found} breaks a CPU torch", f"{sys.executable} -m pip uninstall {name}"
            )


def _machine(settings: Settings) -> Iterator[Finding]:
    memory = psutil.virtual_memory().total / 2**30
    yield Finding("machine", "fine", f"{os.cpu_count()} CPUs, {memory:.0f} GiB")
    home = settings.home
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = psutil.disk_usage(str(existing)).free / 2**30
    state: Literal["fine", "note"] = "fine" if free > 5 else "note"
    yield Finding(
        "home", state, f"{home}, {free:.0f} GiB free", "" if free > 5 else "set RAYPIPE_HOME to a larger disk"
    )


def _ray(settings: Settings) -> Iterator[Finding]:
    if settings.auth:
        yield Finding("ray auth", "fine", settings.auth)
    else:
        mend = "export RAY_AUTH_MODE=token for a cluster that others can reach"
        yield Finding("ray auth", "note", "RAY_AUTH_MODE is not set: Ray decides", mend)
    alone = settings.ray == "local"
    yield Finding("ray address", "fine", "a Ray is started for each run" if alone else settings.ray)


def _models(settings: Settings) -> Iterator[Finding]:
    """Which models are here. One that is not is missing only if the recipe `local` needs it: others need
    none of it, or other ones."""
    file = settings.conf.file("models.yaml")
    found = catalog.read(read_yaml(file), file)
    needed = {m.name for m in resolved("local", None, settings.conf).models()}
    for name in found.entries:
        try:
            model = found.model(name)
            load.present(model)
            yield Finding("model", "fine", f"{name} ({model.kind})")
        except (ModelMissing, ConfError) as e:
            if name in needed:
                yield Finding("model", "missing", f"{name}, which the recipe local needs", str(e))
            else:
                about = "raypipe models RECIPE  # which models a recipe needs, and the commands that get them"
                yield Finding("model", "note", f"{name} is not here; local does not need it", about)


def _store(given: str | None, settings: Settings) -> Finding:
    uri = settings.store_to_use(given)
    if "://" in uri:
        return Finding("store", "note", f"{uri}: not looked at")
    path = Path(uri)
    if path.is_dir():
        tables = sorted(p.stem for p in path.glob("*.lance"))
        return Finding("store", "fine", f"{uri}: {len(tables)} tables")
    return Finding("store", "note", f"{uri}: not there yet; eval and ingest make it")
