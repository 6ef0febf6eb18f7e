"""The length of each source, kept next to the table: a plan bounds work by it without reading pages.

A hint that is written with the sources and may be missing; then the sources themselves are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.layout import SIZES

READ_AT_ONCE = 1000  # sources without a note; a real page has 100 KB


def write_sizes(store: Store, name: str, sources: pa.Table) -> None:
    """Notes the characters of these sources (columns id, content) in a file of their own."""
    chars = pc.utf8_length(sources["content"]).cast(pa.int64())
    rows = pa.table({"id": sources["id"], "chars": chars})
    store.files.write(f"{SIZES}/{name}.arrow", _file(rows))


def merge_sizes(store: Store) -> None:
    """Puts the notes of all sources that the store has into one file, in place of one for each part of each
    ingest."""
    names = store.files.names(SIZES)
    here = store.scan("sources", columns=["id"])["id"].combine_chunks()
    tables = [pa.ipc.open_file(raw).read_all() for n in names if (raw := store.files.read(f"{SIZES}/{n}"))]
    if not tables:
        return
    rows = (
        pa.concat_tables(tables).group_by("id").aggregate([("chars", "max")]).rename_columns(["id", "chars"])
    )
    rows = rows.filter(pc.is_in(rows["id"], value_set=here)).sort_by("id")
    content = _file(rows)
    name = f"{digest(content)}.arrow"
    if names == [name]:
        return
    store.files.write(f"{SIZES}/{name}", content)
    for old in names:
        if old != name:
            store.files.remove(f"{SIZES}/{old}")


def _file(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def sizes(store: Store, ids: Sequence[str]) -> dict[str, int]:
    """Source id -> characters, of each of these that the store has."""
    wanted = set(ids)
    found: dict[str, int] = {}
    for name in store.files.names(SIZES) if wanted else ():
        raw = store.files.read(f"{SIZES}/{name}")
        if raw is not None:
            table = pa.ipc.open_file(raw).read_all()
            found.update(zip(table["id"].to_pylist(), table["chars"].to_pylist(), strict=True))
    left = [s for s in ids if s not in found]
    for at in range(0, len(left), READ_AT_ONCE):
        rows = store.rows("sources", "id", left[at : at + READ_AT_ONCE], ["id", "content"])
        chars = pc.utf8_length(rows["content"]).to_pylist()
        found.update(zip(rows["id"].to_pylist(), chars, strict=True))
    return {s: found[s] for s in ids if s in found}
