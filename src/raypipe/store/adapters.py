"""Adapters that were trained, and trainings that are not done: a folder of small files for each.

The file of an adapter's recipe is written last and removed first, so a folder that has it is whole. A
training keeps its checkpoints until its adapter is whole, and holds a lease while it runs. Knows names and
files; which adapters are still named is the matter of `runs.prune`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from raypipe.store.files import ADAPTERS, TRAININGS, Files
from raypipe.store.lease import Lease

RECIPE = "recipe.yaml"
_RUN_CHARS = 12  # of a training's name, in the names of its adapter and its lease


def adapter_folder(called: str, run: str) -> str:
    """The name of the adapter that a training makes."""
    return f"{called}-{run[:_RUN_CHARS]}"


def training_lease(files: Files, run: str, owner: str) -> Lease:
    """Held while a training runs, or while what it left is removed. `run`: its name, or how it begins."""
    return Lease(files, f"finetune-{run[:_RUN_CHARS]}", owner)


def remove_training(files: Files, run: str) -> None:
    """Removes the checkpoints of a training; those that are gone already are no error."""
    files.remove_folder(f"{TRAININGS}/{run}")


def abandoned_trainings(files: Files, now: float, kept_s: float) -> tuple[list[str], list[str]]:
    """Lists trainings and incomplete folders of adapters that no process holds and that none wrote to for
    `kept_s` seconds. Until then the same command would continue them."""

    def old(folder: str, run: str) -> bool:
        newest = files.newest(folder)
        free = not training_lease(files, run, "").held()
        return free and (newest is None or now - newest > kept_s)

    runs = [n for n in files.names(TRAININGS) if old(f"{TRAININGS}/{n}", n)]
    whole = adapter_names(files)
    parts = [n for n in files.names(ADAPTERS) if n not in whole]
    return runs, [n for n in parts if old(f"{ADAPTERS}/{n}", n.rpartition("-")[2])]


def put_adapter(files: Files, name: str, contents: Mapping[str, bytes]) -> None:
    """Writes the files of an adapter, its recipe last. The same again changes nothing."""
    for file in sorted(contents, key=lambda n: n == RECIPE):
        files.write(f"{ADAPTERS}/{name}/{file}", contents[file])


def adapter_names(files: Files) -> list[str]:
    """The adapters that are whole, by name."""
    return [n for n in files.names(ADAPTERS) if files.size(f"{ADAPTERS}/{n}/{RECIPE}") is not None]


def adapter_file(files: Files, name: str, file: str) -> bytes | None:
    return files.read(f"{ADAPTERS}/{name}/{file}")


def adapter_recipe(files: Files, name: str) -> dict[str, Any]:
    """The sources of an adapter, and the identity of its weights (`adapter`); {} if it is not whole."""
    return yaml.safe_load(adapter_file(files, name, RECIPE) or b"") or {}


def remove_adapter(files: Files, name: str) -> None:
    """Removes an adapter; one that is gone already is no error."""
    files.remove(f"{ADAPTERS}/{name}/{RECIPE}")
    files.remove_folder(f"{ADAPTERS}/{name}")
