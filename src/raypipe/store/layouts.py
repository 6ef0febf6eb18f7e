"""The layouts of documents of folders, by source: what citations of pages and sections are made from."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import unquote

from lance import LanceDataset

from raypipe.core import arrow
from raypipe.core.records import Layout
from raypipe.store.database import Store
from raypipe.store.ids import rows
from raypipe.store.layout import FOLDERS


def layouts_at(store: Store, version: int | None = None) -> LanceDataset | None:
    """The table at a version (None: as it is now); None where no folder was read: version 0, or no table."""
    return store.dataset("layouts", version) if version != 0 and store.has("layouts") else None


def layouts_of(dataset: LanceDataset | None, sources: Collection[str]) -> dict[str, Layout]:
    """Source -> its layout, for those that have one. Of several documents with one text, the first by id."""
    if dataset is None or not sources:
        return {}
    found = arrow.layout.records(rows(dataset, "source", sorted(sources)))
    return {x.source: x for x in sorted(found, key=lambda x: x.id, reverse=True)}


def folder_roots(store: Store) -> dict[str, str]:
    """Returns where each folder lies, or lay when it was read: how the ids of its documents begin -> its
    path."""
    notes = {n: json.loads(store.files.read(f"{FOLDERS}/{n}") or b"{}") for n in store.files.names(FOLDERS)}
    return {name[:8]: note["root"] for name, note in notes.items() if "root" in note}


def file_address(layout: Layout, roots: Mapping[str, str]) -> str | None:
    """A document's file as an address of this machine, `file:///...`; None where its folder is not known."""
    if (root := roots.get(layout.id.partition("/")[0])) is None:
        return None
    place = Path(root)
    return (place if place.is_file() else place / unquote(layout.url)).as_uri()
