"""The layouts of documents of folders, by source: what citations of pages and sections are made from."""

from __future__ import annotations

from collections.abc import Collection

from lance import LanceDataset

from raypipe.core import arrow
from raypipe.core.records import Layout
from raypipe.store.database import Store, rows


def layouts_at(store: Store, version: int | None = None) -> LanceDataset | None:
    """The table at a version (None: as it is now); None where no folder was read: version 0, or no table."""
    return store.dataset("layouts", version) if version != 0 and store.has("layouts") else None


def layouts_of(dataset: LanceDataset | None, sources: Collection[str]) -> dict[str, Layout]:
    """Source -> its layout, for those that have one. Of several documents with one text, the first by id."""
    if dataset is None or not sources:
        return {}
    found = arrow.layout.records(rows(dataset, "source", sorted(sources)))
    return {x.source: x for x in sorted(found, key=lambda x: x.id, reverse=True)}
