"""Trained LoRA adapters and unfinished trainings: each has a folder of files.

An adapter's recipe file is written last and removed first, so a folder with this file is complete. A training
keeps its checkpoints until its adapter is complete, and holds a lease while it runs. This module handles
names and files only; `runs.prune` decides which adapters may be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from raypipe.store.files import ADAPTERS, TRAININGS, Files
from raypipe.store.lease import Lease

RECIPE = "recipe.yaml"
_RUN_CHARS = 12  # characters of a training's name that its adapter and its lease carry


def adapter_folder(called: str, run: str) -> str:
    """Returns the name of an adapter's folder: `called`, a hyphen, and the first 12 characters of `run`."""
    return f"{called}-{run[:_RUN_CHARS]}"


def training_lease(files: Files, run: str, owner: str) -> Lease:
    """Returns the lease to hold while a training runs, or while its leftovers are removed. `run` is the
    training's name, or at least its first 12 characters."""
    return Lease(files, f"finetune-{run[:_RUN_CHARS]}", owner)


def abandoned_trainings(files: Files, now: float, kept_s: float) -> tuple[list[str], list[str]]:
    """Lists abandoned trainings, then abandoned incomplete adapter folders: no process holds the lease, and
    no file is younger than `kept_s` seconds. A younger training may still be resumed."""

    def old(folder: str, run: str) -> bool:
        newest = files.newest(folder)
        free = not training_lease(files, run, "").held()
        return free and (newest is None or now - newest > kept_s)

    runs = [n for n in files.names(TRAININGS) if old(f"{TRAININGS}/{n}", n)]
    whole = adapter_names(files)
    parts = [n for n in files.names(ADAPTERS) if n not in whole]
    return runs, [n for n in parts if old(f"{ADAPTERS}/{n}", n.rpartition("-")[2])]


def put_adapter(files: Files, name: str, contents: Mapping[str, bytes]) -> None:
    """Writes the files of an adapter, its recipe last. Writing the same files again changes nothing."""
    for file in sorted(contents, key=lambda n: n == RECIPE):
        files.write(f"{ADAPTERS}/{name}/{file}", contents[file])


def adapter_names(files: Files) -> list[str]:
    """Lists the names of the complete adapters."""
    return [n for n in files.names(ADAPTERS) if files.size(f"{ADAPTERS}/{n}/{RECIPE}") is not None]


def adapter_file(files: Files, name: str, file: str) -> bytes | None:
    return files.read(f"{ADAPTERS}/{name}/{file}")


def adapter_recipe(files: Files, name: str) -> dict[str, Any]:
    """Reads the recipe file of an adapter; {} if the adapter is incomplete or missing."""
    return yaml.safe_load(adapter_file(files, name, RECIPE) or b"") or {}


def remove_adapter(files: Files, name: str) -> None:
    """Removes an adapter; a missing one is no error."""
    files.remove(f"{ADAPTERS}/{name}/{RECIPE}")
    files.remove_folder(f"{ADAPTERS}/{name}")
