"""Ids as one array, and rows of a table that is open at a version, found by the values of a column.

Of ten million digests an array has 160 MB, a list of Python texts a gigabyte. A digest is held as the 16
bytes that its 32 hex digits say; where one id of an array is none, all of them are held as texts. Whatever
looks ids up hashes at most `HASHED` of them at a time, so that memory does not grow with both sides. Few rows
are found by the BTREE of their column, many by one scan. Knows Arrow and Lance; knows no store.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TypeVar, overload

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.records import digest
from raypipe.store.errors import reaching

T = TypeVar("T", bound=Sized)

BYTES = 16  # of a digest
DIGEST = pa.binary(BYTES)
AT_ONCE = 1 << 16  # ids that are Python texts at a time
HASHED = 2 << 20  # ids in a hash table at a time: some 200 MB with what Arrow keeps for each


class Ids(Sequence[str]):
    """Some ids, each once, in order."""

    def __init__(self, array: pa.Array, all_of: str = "") -> None:
        """`array`: texts, or digests as `packed` has them. `all_of` names all sources of some kinds that a
        store has, where these are all; else ""."""
        self.all_of = all_of
        self._count = len(array)
        self._array: pa.Array | None = packed(array)
        self._read: Callable[[], pa.Array]

    @classmethod
    def unread(cls, count: int, all_of: str, read: Callable[[], pa.Array]) -> Ids:
        """All of a name, which are read when an id of them is needed."""
        ids = cls(pa.array([], DIGEST), all_of)
        ids._count, ids._array, ids._read = count, None, read
        return ids

    @classmethod
    def of(cls, ids: Iterable[str]) -> Ids:
        """These ids, which may be Python texts."""
        return ids if isinstance(ids, Ids) else cls(pa.array(list(ids), pa.string()))

    @property
    def array(self) -> pa.Array:
        """(ids,) as `packed` has them."""
        if self._array is None:
            self._array = packed(self._read())
        return self._array

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for some in self.texts(AT_ONCE):
            yield from some.to_pylist()

    def texts(self, size: int) -> Iterator[pa.Array]:
        """The ids as texts, `size` at a time."""
        for at in range(0, len(self), size):
            yield texts(self.array.slice(at, size))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> str | Ids:
        if isinstance(at, slice):
            return Ids(self.array[at])
        found: str = texts(self.array[at : at + 1 or None])[0].as_py()
        return found

    def where(self, mask: pa.Array) -> Ids:
        """Returns those where `mask` ((ids,) bool) is true; these very ones where it is true for all."""
        return self if pc.all(mask, min_count=0).as_py() else Ids(self.array.filter(mask))

    def among(self, there: pa.Array | pa.ChunkedArray, which: str) -> Ids:
        """Returns those that stand in an array. `which` names what it has."""
        return Ids(self.array.filter(stand_in(self.array, there)), self.name_among(which))

    def without(self, others: Iterable[str]) -> Ids:
        """Returns those that are none of the others."""
        gone = Ids.of(others)
        if gone is self:
            return Ids.of(())
        return self.where(pc.invert(stand_in(self.array, gone.array))) if self and gone else self

    def joined(self, others: Ids) -> Ids:
        """These, then those of the others that are not among them."""
        if not self or others is self:
            return others
        more = others.without(self) if others else others
        return Ids(pa.concat_arrays(_alike(self.array, more.array))) if more else self

    def name_among(self, which: str) -> str:
        """Returns what names those, where these are all of some kinds; else an empty text."""
        return digest(self.all_of, which) if self.all_of else ""


def packed(ids: pa.Array) -> pa.Array:
    """(ids,) texts as the bytes of digests; as they are where one is no digest.

    >>> packed(pa.array(["0" * 31 + "a", "f" * 32])).type, packed(pa.array(["F" * 32])).type
    (FixedSizeBinaryType(fixed_size_binary[16]), DataType(string))
    """
    raw = None if ids.type == DIGEST else digest_bytes(ids)
    return ids if raw is None else _of_bytes(raw)


def _of_bytes(raw: bytes | bytearray) -> pa.Array:
    return pa.Array.from_buffers(DIGEST, len(raw) // BYTES, [None, pa.py_buffer(raw)])


def digest_bytes(ids: pa.Array) -> bytes | None:
    """Returns what the hex digits of some texts say, 16 bytes each; None where one is no digest."""
    if not len(ids):
        return b""
    _, offsets, text = ids.buffers()
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    if ids.null_count or (np.diff(ends) != 2 * BYTES).any():
        return None
    digits = np.frombuffer(text, np.uint8)[ends[0] : ends[-1]]
    try:
        raw = binascii.unhexlify(digits.data)
    except ValueError:
        return None
    # Not where a digit is a capital. As memory views they would be compared one by one, in 20 ns each.
    return raw if np.array_equal(digits, np.frombuffer(binascii.hexlify(raw), np.uint8)) else None


def texts(ids: pa.Array) -> pa.Array:
    """(ids,) as texts, 36 bytes each; as they are where they are texts."""
    if ids.type != DIGEST:
        return ids
    raw = memoryview(ids.buffers()[1])[BYTES * ids.offset : BYTES * (ids.offset + len(ids))]
    ends = np.arange(0, 2 * len(raw) + 1, 2 * BYTES, np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(binascii.hexlify(raw))]
    return pa.Array.from_buffers(pa.string(), len(ids), buffers)


def gathered(pieces: Iterable[pa.Array]) -> pa.Array:
    """Ids that come in pieces, as one array (`packed`): never as texts and as bytes at once."""
    held, others = bytearray(), list[pa.Array]()
    for piece in pieces:
        raw = None if others else digest_bytes(piece)
        if raw is None:
            others += [piece] if others else [texts(_of_bytes(held)), piece]
        else:
            held += raw
    return pa.concat_arrays(others) if others else _of_bytes(held)


def _alike(some: pa.Array, others: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Both as bytes where all are digests, else both as texts."""
    some, others = packed(some), packed(others)
    return (some, others) if some.type == others.type else (texts(some), texts(others))


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
        some = gathered(some.chunks) if isinstance(some, pa.ChunkedArray) else some
        mine, some = _alike(ids, some)
        if len(mine) < len(some):  # the fewer ones are hashed
            some = some.filter(pc.is_in(some, value_set=mine)).unique()
        mask = pc.or_(mask, pc.is_in(mine, value_set=some)) if len(some) else mask
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
        mine, names = _alike(ids, names)
        if len(mine) < len(names):
            some = pc.is_in(names, value_set=mine)
            names, numbers = names.filter(some), numbers[some.to_numpy(zero_copy_only=False)]
        at = pc.fill_null(pc.index_in(mine, value_set=names), -1).to_numpy()
        out[at >= 0] = numbers[at[at >= 0]]
    return out


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
