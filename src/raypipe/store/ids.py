"""Ids as one array: of ten million 360 MB, as Python texts a gigabyte for each list.

Whatever looks ids up hashes at most `HASHED` of them at a time, so that memory does not grow with both sides.
Knows Arrow; knows no table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.records import digest

T = TypeVar("T", bound=Sized)

AT_ONCE = 1 << 16  # ids that are Python texts at a time
HASHED = 2 << 20  # ids in a hash table at a time: some 200 MB with what Arrow keeps for each


class Ids(Sequence[str]):
    """Some ids, each once, in order."""

    def __init__(self, array: pa.Array, all_of: str = "") -> None:
        """`all_of` names all sources of some kinds that a store has, where these are all; else ""."""
        self.all_of = all_of
        self._count = len(array)
        self._read: Callable[[], pa.Array] = lambda: array

    @classmethod
    def unread(cls, count: int, all_of: str, read: Callable[[], pa.Array]) -> Ids:
        """All of a name, which are read when an id of them is needed."""
        ids = cls(pa.array([], pa.string()), all_of)
        ids._count, ids._read = count, read
        return ids

    @classmethod
    def of(cls, ids: Iterable[str]) -> Ids:
        """These ids, which may be Python texts."""
        return ids if isinstance(ids, Ids) else cls(pa.array(list(ids), pa.string()))

    @functools.cached_property
    def array(self) -> pa.Array:
        return self._read()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self), AT_ONCE):
            yield from self.array.slice(at, AT_ONCE).to_pylist()

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> str | Ids:
        found = self.array[at]
        return Ids(found) if isinstance(at, slice) else str(found.as_py())

    def where(self, mask: pa.Array) -> Ids:
        """Those where `mask` ((ids,) bool) is true; these very ones where it is true for all."""
        return self if pc.all(mask, min_count=0).as_py() else Ids(self.array.filter(mask))

    def among(self, there: pa.Array | pa.ChunkedArray, which: str) -> Ids:
        """Those that stand in an array. `which` names what it has."""
        return Ids(self.array.filter(stand_in(self.array, there)), self.name_among(which))

    def without(self, others: Iterable[str]) -> Ids:
        """Those that are none of the others."""
        gone = Ids.of(others)
        if gone is self:
            return Ids.of(())
        return self.where(pc.invert(stand_in(self.array, gone.array))) if self and gone else self

    def joined(self, others: Ids) -> Ids:
        """These, then those of the others that are not among them."""
        if not self or others is self:
            return others
        more = others.without(self) if others else others
        return Ids(pa.concat_arrays([self.array, more.array])) if more else self

    def name_among(self, which: str) -> str:
        """What names those, where these are all of some kinds; else an empty text."""
        return digest(self.all_of, which) if self.all_of else ""


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
    """How many of the ids stand there before."""
    count = 0
    for at in range(0, len(ids), HASHED):
        some = ids.slice(at, HASHED)
        later = pc.is_in(ids.slice(at + HASHED), value_set=some)
        count += len(some) - len(some.unique()) + (pc.sum(later).as_py() or 0)
    return count


def looked_up(ids: pa.Array, rows: Iterable[tuple[pa.Array, np.ndarray]]) -> np.ndarray:
    """(ids,) int64: the number of each id in some rows (ids, (ids,) int64), -1 where it is in none."""
    out = np.full(len(ids), -1, np.int64)
    for names, numbers in rows:
        if len(ids) < len(names):
            mine = pc.is_in(names, value_set=ids)
            names, numbers = names.filter(mine), numbers[mine.to_numpy(zero_copy_only=False)]
        at = pc.fill_null(pc.index_in(ids, value_set=names), -1).to_numpy()
        out[at >= 0] = numbers[at[at >= 0]]
    return out
