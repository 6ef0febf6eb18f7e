"""Ids as one array, and rows of a table that is open at a version, found by the values of a column.

Of ten million digests an array has 160 MB, a list of Python texts a gigabyte. Whatever looks ids up hashes at
most `HASHED` of them at a time, so that memory does not grow with both sides. Few rows are found by the BTREE
of their column, many by one scan. Knows Arrow and Lance; knows no store.
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

HEX = re.compile("[0-9a-f]{32}")  # of a digest
AT_ONCE = 1 << 16  # ids that are Python texts at a time
HASHED = 2 << 20  # ids in a hash table at a time: some 200 MB with what Arrow keeps for each


class Ids(Sequence[str]):
    """Some ids, each once, in order: digests, or texts of questions."""

    def __init__(self, array: pa.Array, all_of: str = "") -> None:
        """`all_of` names all sources of some kinds that a store has, where these are all; else ""."""
        self.all_of = all_of
        self._count = len(array)
        self._array: pa.Array | None = array
        self._read: Callable[[], pa.Array]

    @classmethod
    def unread(cls, count: int, all_of: str, read: Callable[[], pa.Array]) -> Ids:
        """All of a name, which are read when an id of them is needed."""
        ids = cls(pa.array([], DIGEST), all_of)
        ids._count, ids._array, ids._read = count, None, read
        return ids

    @classmethod
    def of(cls, ids: Iterable[str], kind: pa.DataType = DIGEST) -> Ids:
        """These ids, which may be Python texts: then of a kind."""
        return ids if isinstance(ids, Ids) else cls(id_column(ids, kind))

    @property
    def array(self) -> pa.Array:
        """(ids,)"""
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
        """Returns those where `mask` ((ids,) bool) is true; these very ones where it is true for all."""
        return self if pc.all(mask, min_count=0).as_py() else Ids(self.array.filter(mask))

    def among(self, there: pa.Array | pa.ChunkedArray, which: str) -> Ids:
        """Returns those that stand in an array. `which` names what it has."""
        return Ids(self.array.filter(stand_in(self.array, there)), self.name_among(which))

    def without(self, others: Collection[str]) -> Ids:
        """Returns those that are none of the others."""
        if others is self:
            return Ids.of(())
        if not self or not others:
            return self
        gone = Ids.of(others, self.array.type)
        return self.where(pc.invert(stand_in(self.array, gone.array)))

    def joined(self, others: Ids) -> Ids:
        """These, then those of the others that are not among them."""
        if not self or others is self:
            return others
        more = others.without(self) if others else others
        return Ids(pa.concat_arrays([self.array, more.array])) if more else self

    def name_among(self, which: str) -> str:
        """Names the subset `which`; "" if this list is not a store's sources of some kinds, whole."""
        return digest(self.all_of, which) if self.all_of else ""


def gathered(pieces: Iterable[pa.Array], kind: pa.DataType = DIGEST) -> pa.Array:
    """Ids that come in pieces, as one array."""
    return pa.chunked_array(list(pieces), kind).combine_chunks()


def raw(ids: pa.Array) -> np.ndarray:
    """(ids,) S16: the bytes of digests, in place."""
    held = len(ids) and ids.buffers()[1]
    return np.frombuffer(held, "S16", len(ids), 16 * ids.offset) if held else np.empty(0, "S16")


def slabs(pieces: Iterable[T]) -> Iterator[list[T]]:
    """Arrays or tables in groups of at least `HASHED` rows together, but for the last."""
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
    """(ids,) bool: which of the ids stand in an array."""
    mask = pa.array(np.zeros(len(ids), bool))
    for at in range(0, len(there), HASHED) if len(ids) else ():
        some = there.slice(at, HASHED)
        some = some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some
        if len(ids) < len(some):  # the fewer ones are hashed
            some = some.filter(pc.is_in(some, value_set=ids)).unique()
        mask = pc.or_(mask, pc.is_in(ids, value_set=some)) if len(some) else mask
    return mask


def repeats(ids: pa.Array) -> int:
    """Returns how many of the ids stand there before."""
    count = 0
    for at in range(0, len(ids), HASHED):
        some = ids.slice(at, HASHED)
        later = pc.is_in(ids.slice(at + HASHED), value_set=some)
        count += len(some) - len(some.unique()) + (pc.sum(later).as_py() or 0)
    return count


def looked_up(ids: pa.Array, rows: Iterable[tuple[pa.Array, np.ndarray]]) -> np.ndarray:
    """(ids,) int32: the number, below 2^31, of each id in some rows (ids, numbers); -1: it is in none."""
    out = np.full(len(ids), -1, np.int32)
    for names, numbers in rows:
        if len(ids) < len(names):
            some = pc.is_in(names, value_set=ids)
            names, numbers = names.filter(some), numbers[some.to_numpy(zero_copy_only=False)]
        at = pc.fill_null(pc.index_in(ids, value_set=names), -1).to_numpy()
        out[at >= 0] = numbers[at[at >= 0]]
    return out


LOOKUP_KEYS = 4096  # per query: one of 5,000 keys takes 57 ms, and the query text is parsed in memory
SCAN_RATIO = 250  # a BTREE look-up takes 16 us, a row of a scanned key column .07 us
SCAN_ROWS = 1 << 18  # per batch of a scan: 4 MB of digests
READ_AHEAD = 4  # batches that a scan has ready; Lance has 16


def filters(column: str, values: Sequence[str] | Sequence[int] | Sequence[bytes]) -> Iterator[str]:
    """Filters that together find the rows with one of the values. What is in a text stays data.

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
    """The same of a column that may have digests, whose values are texts of ids, or an array as the column
    has them. In such a column no other text stands."""
    if isinstance(values, pa.Array):
        values = values.to_pylist()
    elif dataset.schema.field(column).type == DIGEST:
        values = (bytes.fromhex(v) for v in values if HEX.fullmatch(v))
    return list(filters(column, list(dict.fromkeys(values))))


def rows(
    dataset: lance.LanceDataset, column: str, values: Iterable[Any], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows whose column has one of the values, found by BTREE, in no order. `columns` None: all."""
    found = []
    for where in wheres(dataset, column, values) or ["false"]:
        with reaching(dataset.uri):
            found.append(dataset.to_table(columns=columns and list(columns), filter=where))
    return pa.concat_tables(found)


def missing(dataset: lance.LanceDataset, column: str, ids: Sequence[str]) -> list[str]:
    """Which of the ids do not stand in a column, in their order."""
    if not ids:
        return []
    wanted = Ids.of(ids, dataset.schema.field(column).type)
    return list(wanted.where(pc.invert(present(dataset, column, wanted.array))))


def present(dataset: lance.LanceDataset, column: str, wanted: pa.Array) -> pa.Array:
    """(ids,) bool: which of the ids stand in a column."""
    with reaching(dataset.uri):
        if len(wanted) * SCAN_RATIO < dataset.count_rows():
            return stand_in(wanted, rows(dataset, column, wanted, [column])[column])
        mask = stand_in(wanted, wanted[:0])
        for values in _values(dataset, column):
            mask = pc.or_(mask, stand_in(wanted, values))
    return mask


def distinct(dataset: lance.LanceDataset, column: str) -> pa.Array:
    """The values of a column, each once."""
    with reaching(dataset.uri):
        pieces = (some for values in _values(dataset, column) for some in values.chunks)
        return gathered(pieces, dataset.schema.field(column).type).unique()


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
    """Yields the values of a column in large groups, adjacent duplicates once. A batch never crosses a
    fragment, and each look-up hashes the smaller side once: larger groups take fewer of both."""
    batches = dataset.to_batches(columns=[column], batch_size=SCAN_ROWS, batch_readahead=READ_AHEAD)
    return map(pa.chunked_array, slabs(pc.run_end_encode(b[column]).values for b in batches if b.num_rows))
