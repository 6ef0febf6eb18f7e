"""A trained adapter as engines and recipes find it: its folder here, and its entry of models.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from raypipe.core import config
from raypipe.core.errors import ConfError
from raypipe.metrics.textfile import write_text
from raypipe.models.catalog import Catalog
from raypipe.store import Store
from raypipe.store.adapters import RECIPE, adapter_file
from raypipe.store.layout import ADAPTERS

_MADE = "# Made by `raypipe finetune`."  # how a models file begins that may be written again


def adapter_place(store: Store, home: Path, folder: str) -> str:
    """Where an adapter of a store lies on this machine: engines load folders. Of a bucket that is a copy
    under `home`, whose name says which training it is of."""
    if store.files.local:
        return f"{store.uri}/{ADAPTERS}/{folder}"
    here = home / "adapters" / folder
    if not (here / RECIPE).is_file():
        draft = here.with_name(f".{folder}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in store.files.names(f"{ADAPTERS}/{folder}"):
            (draft / file).write_bytes(adapter_file(store.files, folder, file) or b"")
        draft.rename(here)
    return str(here)


def entry_with(
    catalog: Catalog, base: str, called: str, place: str, models: Path | None = None
) -> dict[str, Any]:
    """The base's entry with one adapter more, and those that the file `models` gives the base already; its
    folders are absolute."""
    entry, file = catalog.entries[base], catalog.files[base]
    found = dict(config.read_yaml(file)[base])
    if entry.path:
        found["path"] = str((file.parent / entry.path).resolve())
    others = {n: str((file.parent / p).resolve()) for n, p in entry.adapters.items()}
    earlier = _read(models).get(base, {}).get("adapters", {})
    kept = {n: p for n, p in earlier.items() if Path(p).is_dir()}  # others were pruned
    return {**found, "adapters": {**others, **kept, called: place}}


def require_own(models: Path) -> None:
    """Raises ConfError for a models file that `write_entry` did not make, or that cannot be read any more."""
    if models.exists() and not (models.is_file() and models.read_bytes().startswith(_MADE.encode())):
        raise ConfError(
            f"--out: {models} was not made by `raypipe finetune`, which would write it again without its "
            "comments. Name another folder"
        )
    _read(models)


def write_entry(models: Path, base: str, entry: Mapping[str, Any]) -> None:
    """Writes an entry into a models file that this command made; other entries in it stay."""
    made = yaml.safe_dump({**_read(models), base: dict(entry)}, sort_keys=False, allow_unicode=True)
    write_text(models, f"{_MADE} Use it: raypipe eval RECIPE --models {models}\n{made}")


def _read(models: Path | None) -> dict[str, Any]:
    return config.read_yaml(models) if models is not None and models.is_file() else {}
