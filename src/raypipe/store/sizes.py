"""The length of each source, kept next to the table: a plan bounds work by it without reading pages.

A hint that is written with the sources and may be missing; then the sources themselves are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.store.database import Store
from raypipe.store.layout import SIZES

READ_AT_ONCE = 1000  # sources without a note; a real page has 100 KB


def write_sizes(store: Store, name: str, sources: pa.Table) -> None:
    """Notes the characters of these sources (columns id, content) in a file of their own."""
    chars = pc.utf8_length(sources["content"]).cast(pa.int64())
    rows = pa.table({"id": sources["id"], "chars": chars})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    store.files.write(f"{SIZES}/{name}.arrow", sink.getvalue().to_pybytes())


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
