"""Rows of a table that is open at a version, found by the values of a column: few by its BTREE, many by one
scan. Knows Lance; knows no store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lance
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.store.errors import reaching
from raypipe.store.ids import Ids, gathered, slabs, stand_in, texts

LOOKUP_KEYS = 4096  # per query: one of 5,000 keys takes 57 ms, and the query text is parsed in memory
SCAN_RATIO = 250  # a BTREE look-up takes 16 us, a row of a scanned key column .07 us
SCAN_ROWS = 1 << 18  # per batch of a scan: 9 MB of ids
READ_AHEAD = 4  # batches that a scan has ready; Lance has 16


def filters(column: str, values: Sequence[str] | Sequence[int]) -> Iterator[str]:
    """Filters that together find the rows with one of the values. What is in a text stays data.

    >>> list(filters("id", ["it's"])), list(filters("_rowid", [1, 2])), list(filters("id", []))
    (["id IN ('it''s')"], ['_rowid IN (1, 2)'], [])
    """
    for at in range(0, len(values), LOOKUP_KEYS):
        yield f"{column} IN ({', '.join(map(_literal, values[at : at + LOOKUP_KEYS]))})"


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def rows(
    dataset: lance.LanceDataset, column: str, values: Sequence[str], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows whose column has one of the values, found by BTREE, in no order. `columns` None: all."""
    found = []
    for where in [*filters(column, list(dict.fromkeys(values)))] or ["false"]:
        with reaching(dataset.uri):
            found.append(dataset.to_table(columns=columns and list(columns), filter=where))
    return pa.concat_tables(found)


def missing(dataset: lance.LanceDataset, column: str, ids: Sequence[str]) -> list[str]:
    """Which of the ids do not stand in a column, in their order."""
    if not ids:
        return []
    wanted = Ids.of(ids)
    return list(wanted.where(pc.invert(present(dataset, column, wanted.array))))


def present(dataset: lance.LanceDataset, column: str, wanted: pa.Array) -> pa.Array:
    """(ids,) bool: which of the ids stand in a column."""
    with reaching(dataset.uri):
        if len(wanted) * SCAN_RATIO < dataset.count_rows():
            return stand_in(wanted, rows(dataset, column, texts(wanted).to_pylist(), [column])[column])
        mask = stand_in(wanted, wanted[:0])
        for values in _values(dataset, column):
            mask = pc.or_(mask, stand_in(wanted, values))
    return mask


def distinct(dataset: lance.LanceDataset, column: str) -> pa.Array:
    """The values of a column, each once."""
    with reaching(dataset.uri):
        return gathered(some for values in _values(dataset, column) for some in values.chunks).unique()


def sources_with_chunks(passages: lance.LanceDataset) -> pa.Array:
    """Sources of a `passages` table that have chunks: those a vector table must hold. A source's chunks stand
    together, so only one that is cut by two batches comes twice."""
    with reaching(passages.uri):
        batches = passages.to_batches(
            columns=["source", "start", "end"], batch_size=SCAN_ROWS, batch_readahead=READ_AHEAD
        )
        real = (batch.filter(pc.greater(batch["end"], batch["start"])) for batch in batches)
        return gathered(batch["source"].unique() for batch in real)


def _values(dataset: lance.LanceDataset, column: str) -> Iterator[pa.ChunkedArray]:
    """A column, many values at a time: a batch ends with its fragment, and to look for ids in values hashes
    the fewer of both once. Of equal values that stand together one is given."""
    batches = dataset.to_batches(columns=[column], batch_size=SCAN_ROWS, batch_readahead=READ_AHEAD)
    return map(pa.chunked_array, slabs(pc.run_end_encode(b[column]).values for b in batches if b.num_rows))
