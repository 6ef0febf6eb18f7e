"""Adapters that were trained, kept next to the tables: a folder of small files for each.

The file of its recipe is written last and removed first, so a folder that has it is whole. Knows names and
files; which adapters are still named is the matter of `runs.prune`.
"""

from __future__ import annotations

from collections.abc import Mapping

from raypipe.store.files import Files
from raypipe.store.layout import ADAPTERS

RECIPE = "recipe.yaml"


def put_adapter(files: Files, name: str, contents: Mapping[str, bytes]) -> None:
    """Writes the files of an adapter, its recipe last. The same again changes nothing."""
    for file in sorted(contents, key=lambda n: n == RECIPE):
        files.write(f"{ADAPTERS}/{name}/{file}", contents[file])


def adapter_names(files: Files) -> list[str]:
    """The adapters that are whole, by name."""
    return [n for n in files.names(ADAPTERS) if files.size(f"{ADAPTERS}/{n}/{RECIPE}") is not None]


def adapter_file(files: Files, name: str, file: str) -> bytes | None:
    """One file of an adapter; None if it is not there."""
    return files.read(f"{ADAPTERS}/{name}/{file}")


def remove_adapter(files: Files, name: str) -> None:
    """Removes an adapter; one that is gone already is no error."""
    files.remove(f"{ADAPTERS}/{name}/{RECIPE}")
    files.remove_folder(f"{ADAPTERS}/{name}")
