"""The length of each source, kept next to the table: a plan bounds work by it without reading pages.

A hint that is written with the sources and may be missing; then the sources themselves are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.ids import HASHED, Ids, looked_up, slabs
from raypipe.store.layout import SIZES

READ_AT_ONCE = 1000  # sources without a note; a real page has 100 KB


def write_sizes(store: Store, name: str, sources: pa.Table) -> None:
    """Notes the characters of these sources (columns id, content) in a file of their own."""
    chars = pc.utf8_length(sources["content"]).cast(pa.int64())
    rows = pa.table({"id": sources["id"], "chars": chars})
    store.files.write(f"{SIZES}/{name}.arrow", arrow.file_of(rows))


def merge_sizes(store: Store) -> None:
    """Puts the notes of all sources that the store has into one file, in place of one for each part of each
    ingest."""
    names = store.files.names(SIZES)
    here = store.scan("sources", columns=["id"])["id"].combine_chunks()
    tables = list(_notes(store))
    if not tables:
        return
    rows = (
        pa.concat_tables(tables).group_by("id").aggregate([("chars", "max")]).rename_columns(["id", "chars"])
    )
    rows = rows.filter(pc.is_in(rows["id"], value_set=here)).sort_by("id")
    content = arrow.file_of(rows).to_pybytes()
    name = f"{digest(content)}.arrow"
    if names == [name]:
        return
    store.files.write(f"{SIZES}/{name}", content)
    for old in names:
        if old != name:
            store.files.remove(f"{SIZES}/{old}")


def sizes(store: Store, ids: Ids) -> np.ndarray:
    """(ids,) int32: characters of each source, -1 where the store does not have it."""
    chars = looked_up(ids.array, _slabs(store)) if ids else np.empty(0, np.int32)
    left = ids.where(pa.array(chars < 0))
    read: dict[str, int] = {}
    for at in range(0, len(left), READ_AT_ONCE) if (chars < 0).any() else ():
        rows = store.rows("sources", "id", list(left[at : at + READ_AT_ONCE]), ["id", "content"])
        read.update(zip(rows["id"].to_pylist(), pc.utf8_length(rows["content"]).to_pylist(), strict=True))
    if read:
        chars[chars < 0] = [read.get(id, -1) for id in left]
    return chars


def _slabs(store: Store) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The notes, many at a time: an ingest by tasks leaves a file for each of thousands of parts."""
    for held in slabs(_notes(store)):
        rows = pa.concat_tables(held)
        for at in range(0, rows.num_rows, HASHED):
            some = rows.slice(at, HASHED)
            yield some["id"].combine_chunks(), some["chars"].to_numpy()


def _notes(store: Store) -> Iterator[pa.Table]:
    raws = (store.files.read(f"{SIZES}/{name}") for name in store.files.names(SIZES))
    return (arrow.rows_of(raw) for raw in raws if raw is not None)
