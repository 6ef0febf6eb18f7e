"""Lists of ids as one Arrow array, and look-ups of table rows by the values of a column.

Ten million digests take 160 MB as an array, and a gigabyte as Python strings. A look-up compares two sets of
ids, but hashes at most `HASHED` ids at a time, so its memory is bounded however large the sets are. `present`
looks up few ids by the BTREE index of the column, and many by one scan. This module works on opened Lance
datasets, without a store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar, overload

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import DIGEST, id_column, id_texts
from raypipe.core.records import digest
from raypipe.store.errors import reaching

T = TypeVar("T", bound=Sized)

HEX = re.compile("[0-9a-f]{32}")  # a digest as text
AT_ONCE = 1 << 16  # ids that are converted to Python strings at a time
HASHED = 2 << 20  # ids in a hash table at a time: about 200 MB with Arrow's overhead


class Ids(Sequence[str]):
    """Distinct ids in order, digests of sources or ids of questions, as one Arrow array."""

    def __init__(self, array: pa.Array, all_of: str = "") -> None:
        """Wraps an array. `all_of` is a name of the set, under which results about the set may be stored; ""
        means no name."""
        self.all_of = all_of
        self._count = len(array)
        self._array: pa.Array | None = array
        self._read: Callable[[], pa.Array]

    @classmethod
    def unread(cls, count: int, all_of: str, read: Callable[[], pa.Array]) -> Ids:
        """Makes a list of `count` ids named `all_of`; `read` loads them when one is first needed."""
        ids = cls(pa.array([], DIGEST), all_of)
        ids._count, ids._array, ids._read = count, None, read
        return ids

    @classmethod
    def of(cls, ids: Iterable[str], kind: pa.DataType = DIGEST) -> Ids:
        """Makes a list from Python strings, which are converted to `kind`. An `Ids` is returned unchanged."""
        return ids if isinstance(ids, Ids) else cls(id_column(ids, kind))

    @property
    def array(self) -> pa.Array:
        """Array of the ids, (ids,)."""
        if self._array is None:
            self._array = self._read()
        return self._array

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self), AT_ONCE):
            yield from id_texts(self.array.slice(at, AT_ONCE))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> str | Ids:
        if isinstance(at, slice):
            return Ids(self.array[at])
        found: str = id_texts(self.array[at : at + 1 or None])[0]
        return found

    def where(self, mask: pa.Array) -> Ids:
        """Returns the ids where `mask` ((ids,) bool) is true; this same object if all are."""
        return self if pc.all(mask, min_count=0).as_py() else Ids(self.array.filter(mask))

    def among(self, there: pa.Array | pa.ChunkedArray, which: str) -> Ids:
        """Returns the ids that occur in the array `there`. `which` names that array; the result's name is
        made from it (`name_among`)."""
        return Ids(self.array.filter(stand_in(self.array, there)), self.name_among(which))

    def without(self, others: Collection[str]) -> Ids:
        """Returns the ids that are not in `others`."""
        if others is self:
            return Ids.of(())
        if not self or not others:
            return self
        gone = Ids.of(others, self.array.type)
        return self.where(pc.invert(stand_in(self.array, gone.array)))

    def joined(self, others: Ids) -> Ids:
        """Returns these ids, then the `others` that are not among them."""
        if not self or others is self:
            return others
        more = others.without(self)
        return Ids(pa.concat_arrays([self.array, more.array])) if more else self

    def name_among(self, which: str) -> str:
        """Returns a name for the subset of this list that `which` describes; "" if the list has no name."""
        return digest(self.all_of, which) if self.all_of else ""


def gathered(pieces: Iterable[pa.Array], kind: pa.DataType = DIGEST) -> pa.Array:
    """Joins arrays of ids into one array."""
    return pa.chunked_array(list(pieces), kind).combine_chunks()


def raw(ids: pa.Array) -> np.ndarray:
    """Views digests as their bytes, (ids,) S16, without a copy."""
    held = len(ids) and ids.buffers()[1]
    return np.frombuffer(held, "S16", len(ids), 16 * ids.offset) if held else np.empty(0, "S16")


def slabs(pieces: Iterable[T]) -> Iterator[list[T]]:
    """Groups arrays or tables, so that each group has at least `HASHED` rows; the last may have fewer."""
    held, count = list[T](), 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= HASHED:
            yield held
            held, count = [], 0
    if held:
        yield held


def stand_in(ids: pa.Array, there: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Marks the ids that occur in the array `there`: (ids,) bool."""
    mask = pa.array(np.zeros(len(ids), bool))
    for at in range(0, len(there), HASHED) if len(ids) else ():
        some = there.slice(at, HASHED)
        some = some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some
        if len(ids) < len(some):  # hashes the smaller side
            some = some.filter(pc.is_in(some, value_set=ids)).unique()
        mask = pc.or_(mask, pc.is_in(ids, value_set=some)) if len(some) else mask
    return mask


def repeats(ids: pa.Array) -> int:
    """Counts the ids that also occur earlier in the array; 0 means that all are distinct. The count is too
    high if an id occurs in three blocks of `HASHED` ids."""
    count = 0
    for at in range(0, len(ids), HASHED):
        some = ids.slice(at, HASHED)
        later = pc.is_in(ids.slice(at + HASHED), value_set=some)
        count += len(some) - len(some.unique()) + (pc.sum(later).as_py() or 0)
    return count


def looked_up(ids: pa.Array, rows: Iterable[tuple[pa.Array, np.ndarray]]) -> np.ndarray:
    """Returns the number of each id, (ids,) int32; -1 for an id without one. `rows` yields arrays of ids with
    their numbers, which are below 2^31. If several arrays hold an id, the last one counts."""
    out = np.full(len(ids), -1, np.int32)
    for names, numbers in rows:
        if len(ids) < len(names):
            some = pc.is_in(names, value_set=ids)
            names, numbers = names.filter(some), numbers[some.to_numpy(zero_copy_only=False)]
        at = pc.fill_null(pc.index_in(ids, value_set=names), -1).to_numpy()
        out[at >= 0] = numbers[at[at >= 0]]
    return out


LOOKUP_KEYS = 4096  # keys per query: a query of 5,000 takes 57 ms, and its text is parsed in memory
SCAN_RATIO = 250  # rows to scan at the cost of one look-up: a look-up takes 16 us, a scanned row 0.07 us
SCAN_ROWS = 1 << 18  # rows per batch of a scan: 4 MB of digests
READ_AHEAD = 4  # batches that a scan reads ahead; Lance's default is 16


def filters(column: str, values: Sequence[str] | Sequence[int] | Sequence[bytes]) -> Iterator[str]:
    """Yields SQL filters that together select the rows whose `column` has one of `values`. Quotes texts.

    >>> list(filters("id", ["it's"])), list(filters("_rowid", [1, 2])), list(filters("id", []))
    (["id IN ('it''s')"], ['_rowid IN (1, 2)'], [])
    >>> list(filters("source", [b"it's"]))
    ["source IN (X'69742773')"]
    """
    for at in range(0, len(values), LOOKUP_KEYS):
        yield f"{column} IN ({', '.join(map(_literal, values[at : at + LOOKUP_KEYS]))})"


def _literal(value: str | int | bytes) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def wheres(dataset: lance.LanceDataset, column: str, values: Iterable[Any]) -> list[str]:
    """Lists the filters (`filters`) for distinct values: an Arrow array of the column's type, or Python
    values. For a column of digests these are hex strings; other strings match no row and are dropped."""
    if isinstance(values, pa.Array):
        values = values.to_pylist()
    elif dataset.schema.field(column).type == DIGEST:
        values = (bytes.fromhex(v) for v in values if HEX.fullmatch(v))
    return list(filters(column, list(dict.fromkeys(values))))


def rows(
    dataset: lance.LanceDataset, column: str, values: Iterable[Any], columns: Sequence[str] | None = None
) -> pa.Table:
    """Reads the rows whose column has one of the values, by its BTREE if it has one, in no fixed order."""
    wanted, found = columns and list(columns), wheres(dataset, column, values) or ["false"]
    with reaching(dataset.uri):
        return pa.concat_tables([dataset.to_table(columns=wanted, filter=where) for where in found])


def missing(dataset: lance.LanceDataset, column: str, ids: Sequence[str]) -> list[str]:
    """Returns the ids that do not occur in a column, in their order."""
    if not ids:
        return []
    wanted = Ids.of(ids, dataset.schema.field(column).type)
    return list(wanted.where(pc.invert(present(dataset, column, wanted.array))))


def present(dataset: lance.LanceDataset, column: str, wanted: pa.Array) -> pa.Array:
    """Marks which of the `wanted` ids occur in a column: (ids,) bool."""
    with reaching(dataset.uri):
        if len(wanted) * SCAN_RATIO < dataset.count_rows():
            return stand_in(wanted, rows(dataset, column, wanted, [column])[column])
        mask = stand_in(wanted, wanted[:0])
        for values in _values(dataset, column):
            mask = pc.or_(mask, stand_in(wanted, values))
    return mask


def distinct(dataset: lance.LanceDataset, column: str) -> pa.Array:
    """Returns the distinct values of a column."""
    with reaching(dataset.uri):
        pieces = (some for values in _values(dataset, column) for some in values.chunks)
        return gathered(pieces, dataset.schema.field(column).type).unique()


def sources_with_chunks(passages: lance.LanceDataset) -> pa.Array:
    """Returns the sources of a `passages` table that have chunks. Each of them must have rows in a vector
    table. A source's chunks are adjacent, so a source appears twice only if two batches split it."""
    with reaching(passages.uri):
        batches = passages.to_batches(
            columns=["source", "start", "end"], batch_size=SCAN_ROWS, batch_readahead=READ_AHEAD
        )
        real = (batch.filter(pc.greater(batch["end"], batch["start"])) for batch in batches)
        return gathered(batch["source"].unique() for batch in real)


def _values(dataset: lance.LanceDataset, column: str) -> Iterator[pa.ChunkedArray]:
    """Yields the values of a column in groups of at least `HASHED` values (the last may be smaller), without
    adjacent duplicates. Each look-up hashes the smaller side, so few large groups cost less."""
    batches = dataset.to_batches(columns=[column], batch_size=SCAN_ROWS, batch_readahead=READ_AHEAD)
    return map(pa.chunked_array, slabs(pc.run_end_encode(b[column]).values for b in batches if b.num_rows))
