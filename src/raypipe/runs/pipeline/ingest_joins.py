"""Findings of shards of files, as small files of a store, and the joins that settle what several found.

Each shard writes its outcome and sorted lists of keys: ids of questions and documents, addresses with the
time of their fetch, sources. An id that an earlier shard has, and an address that another shard has fetched
later, go to the shard as rows that came before: it is read again with them. A source that several shards
staged is kept by the first. Keys are joined as arrays, a range of them at a time, so memory stays bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.records import digest
from raypipe.store import Store
from raypipe.store.files import READS
from raypipe.store.parts import sealed, unsealed

KEY = 16  # bytes of a key: `bounded_rows.key_of`
AT_ONCE = 64 << 20  # bytes of lists that are joined at a time; a key with its value has some 90
BATCH = 1 << 16  # keys of a list that are written at a time
_SCHEMA = pa.schema([("key", pa.binary(KEY)), ("value", pa.string())])

Before: TypeAlias = dict[str, dict[bytes, str]]
"""List -> key -> value: rows that came ahead of a shard's own, or pages that were fetched later."""


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The folder in which one read of files keeps what its shards found."""

    store: Store
    run: str  # names the read

    def _name(self, shard: str, what: str) -> str:
        return f"{READS}/{self.run}/{shard}.{what}"

    def write_outcome(self, shard: str, tree: Mapping[str, object]) -> None:
        """Says that a shard is done. Goes last."""
        self.store.files.write(self._name(shard, "json"), sealed(json.dumps(tree)))

    def outcome(self, shard: str) -> dict[str, Any] | None:
        """Returns what a shard that is done wrote; None: it is not, or its file is damaged."""
        text = unsealed(self.store.files.read(self._name(shard, "json")) or b"")
        return None if text is None else dict(json.loads(text))

    def write_list(self, shard: str, which: str, rows: Iterable[tuple[bytes, str]]) -> None:
        """`rows`: (key, value), sorted by key."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as file:
            for some in batches(rows, BATCH):
                keys, values = zip(*some, strict=True)
                file.write_batch(pa.record_batch([pa.array(keys, pa.binary(KEY)), pa.array(values)], _SCHEMA))
        self.store.files.write(self._name(shard, which), sink.getvalue().to_pybytes())

    def _list(self, shard: str, which: str) -> pa.Table:
        raw = self.store.files.read(self._name(shard, which))
        return _SCHEMA.empty_table() if raw is None else arrow.rows_of(raw)

    def before(self, shard: str) -> Before:
        """The rows that came ahead of a shard's own, as far as they are known."""
        tree = json.loads(self.store.files.read(self._name(shard, "before")) or b"{}")
        return {which: {bytes.fromhex(k): v for k, v in rows.items()} for which, rows in tree.items()}

    def add_before(self, shard: str, more: Before) -> None:
        whole = self.before(shard)
        for which, rows in more.items():
            whole.setdefault(which, {}).update(rows)
        tree = {which: {k.hex(): v for k, v in sorted(rows.items())} for which, rows in whole.items()}
        self.store.files.write(self._name(shard, "before"), json.dumps(tree).encode())

    def before_id(self, shard: str) -> str:
        """Names the rows that came before a shard; "" without any."""
        raw = self.store.files.read(self._name(shard, "before"))
        return digest(raw)[:8] if raw else ""

    def write_dropped(self, shard: str, keys: bytes) -> None:
        """The sources of a shard that an earlier one keeps; `keys` one behind the other."""
        self.store.files.write(self._name(shard, "dropped"), keys)

    def dropped(self, shard: str) -> bytes:
        return self.store.files.read(self._name(shard, "dropped")) or b""

    def end(self) -> None:
        self.store.files.remove_folder(f"{READS}/{self.run}")

    def joined(self, shards: Sequence[str], which: str) -> Iterator[JoinedLists]:
        """The lists of all shards, joined, a range of keys at a time."""
        size = sum(self.store.files.size(self._name(s, which)) or 0 for s in shards)
        edges = np.linspace(0, 1 << 16, size // AT_ONCE + 2).astype(int).tolist()
        for low, high in pairwise(edges):
            tables = [_between(self._list(s, which), low, high) for s in shards]
            yield JoinedLists.of(tables)


def _between(table: pa.Table, low: int, high: int) -> pa.Table:
    """The rows of a sorted list whose keys begin with two bytes in a range."""
    heads = np.frombuffer(b"".join(map(_bytes, table["key"].chunks)), ">u2")[:: KEY // 2]
    start, stop = np.searchsorted(heads, [low, high])
    return table.slice(start, stop - start)


def _bytes(chunk: pa.FixedSizeBinaryArray) -> bytes:
    whole: bytes = chunk.buffers()[1].to_pybytes()
    return whole[chunk.offset * KEY : (chunk.offset + len(chunk)) * KEY]


@dataclass(frozen=True, slots=True)
class JoinedLists:
    """Rows of the lists of all shards, one list after the other."""

    rows: pa.Table
    shard: np.ndarray  # (n,) int32
    first: np.ndarray  # (n,) int64: the first row with the same key, of the earliest shard that has it

    @classmethod
    def of(cls, tables: Sequence[pa.Table]) -> JoinedLists:
        rows = pa.concat_tables(tables).combine_chunks()
        shard = np.repeat(np.arange(len(tables), dtype=np.int32), [t.num_rows for t in tables])
        coded = rows["key"].combine_chunks().dictionary_encode().indices.to_numpy()
        _, first = np.unique(coded, return_index=True)
        return cls(rows, shard, first[coded])

    def repeated(self) -> np.ndarray:
        """(m,) int64: rows whose key an earlier shard has."""
        return np.flatnonzero(self.first != np.arange(len(self.first)))

    def value(self, row: int) -> str:
        text: str = self.rows["value"][row].as_py()
        return text

    def key(self, row: int) -> bytes:
        raw: bytes = self.rows["key"][row].as_py()
        return raw


def came_before(found: ShardFiles, shards: Sequence[str]) -> dict[int, Before]:
    """Shard, by its place -> rows that it must not give, since others have them. What was fetched later comes
    first: an id that goes with an older page is no id that repeats."""
    newer = dict[int, Before]()
    for joined in found.joined(shards, "newest"):
        for at, best in _older(joined):
            newer.setdefault(int(joined.shard[at]), {}).setdefault("newest", {})[joined.key(at)] = best
    if newer:
        return newer
    before = dict[int, Before]()
    for which in ("questions", "documents"):
        for joined in found.joined(shards, which):
            for at in joined.repeated().tolist():
                rows = before.setdefault(int(joined.shard[at]), {}).setdefault(which, {})
                rows[joined.key(at)] = joined.value(int(joined.first[at]))
    return before


def _older(joined: JoinedLists) -> Iterator[tuple[int, str]]:
    """The row of each page that another shard has fetched later, and that later fetch."""
    groups = dict[int, list[int]]()
    for at in joined.repeated().tolist():
        start = int(joined.first[at])
        groups.setdefault(start, [start]).append(at)
    for group in groups.values():
        values = [joined.value(at) for at in group]
        best = max(values)
        yield from ((at, best) for at, value in zip(group, values, strict=True) if value != best)


def staged_twice(found: ShardFiles, shards: Sequence[str]) -> dict[int, bytes]:
    """Shard, by its place -> keys of sources that an earlier shard keeps."""
    dropped = dict[int, bytes]()
    for joined in found.joined(shards, "sources"):
        repeated = joined.repeated()
        owners = joined.shard[repeated]
        for shard in np.unique(owners).tolist():
            rows = joined.rows.select(["key"]).take(repeated[owners == shard])
            dropped[shard] = dropped.get(shard, b"") + b"".join(map(_bytes, rows["key"].chunks))
    return dropped


def held(found: ShardFiles, shards: Sequence[str], keys: set[bytes]) -> set[bytes]:
    """Those of some keys of sources that a shard has read."""
    wanted = pa.array(sorted(keys), pa.binary(KEY))
    there = set[bytes]()
    for joined in found.joined(shards, "sources") if keys else ():
        there.update(joined.rows["key"].filter(pc.is_in(joined.rows["key"], wanted)).to_pylist())
    return there
