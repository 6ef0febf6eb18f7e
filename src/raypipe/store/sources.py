"""All sources of a store: a name for the whole set, the sources that a table lacks, text lengths, chunks.

An id is a digest of 128 bits, so the sum of all ids identifies the set of sources. A file keeps the sum per
fragment: when a store grows by a fragment, only that fragment's ids are read. A note lists the sources that a
table lacks. It holds for one name of the set (`corpus_sum`) and one name of the table's rows (`rows_id`).
While both names stay the same, no id is read again. Sums, notes and lengths are small files. If one is
missing, the tables are read.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core import arrow
from raypipe.core.arrow import SPANS, id_column, id_texts
from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.files import CORPUS_SUMS, COVERAGE, SIZES
from raypipe.store.ids import (
    HASHED,
    SCAN_RATIO,
    SCAN_ROWS,
    Ids,
    distinct,
    filters,
    gathered,
    looked_up,
    present,
    raw,
    rows,
    slabs,
    sources_with_chunks,
    stand_in,
)

BITS = 128  # bits of an id
KEPT = 4  # notes per table: all sources, and all with chunks, for two sets of kinds
NOTED = 10_000  # most ids in a note: to read a longer one takes as long as the work that it saves
READ_AT_ONCE = 1000  # sources whose text is read at a time to measure it; a real page has 100 KB


def corpus_sum(store: Store, more: Collection[str] = ()) -> str:
    """Returns a name of the set of a store's sources and `more`: the sum of ids (hex) and their number."""
    dataset = store.dataset("sources")
    known = json.loads(store.files.read(CORPUS_SUMS) or b"{}")
    here = {**store.sums, **known}
    with reaching(dataset.uri):
        now = dict[str, list[Any]]()
        for fragment in dataset.get_fragments():
            if (found := here.get(name := _name(fragment))) is None:
                total = count = 0
                for batch in fragment.to_batches(columns=["id"], batch_size=SCAN_ROWS):
                    total, count = total + sum_of(batch["id"]), count + batch.num_rows
                found = [f"{total % (1 << BITS):032x}", count]
            now[name] = found
    store.sums = now
    if now != known and store.drives:
        store.files.write(CORPUS_SUMS, json.dumps(now).encode())
    fresh = store.missing("sources", "id", list(more)) if more else []
    whole = sum(int(text, 16) for text, _ in now.values()) + sum_of(id_column(fresh))
    return f"{whole % (1 << BITS):032x} {len(fresh) + sum(count for _, count in now.values())}"


def rows_id(store: Store, table: str, dataset: lance.LanceDataset) -> str:
    """Returns a name of the rows of an open table. A version number is no such name: after a power cut it may
    be reused for other rows. A compaction keeps the name (`keep_rows_id`)."""
    files = _files_id(dataset)
    kept: dict[str, str] = json.loads(store.files.read(f"{COVERAGE}/{table}-rows.json") or b"{}")
    return kept.get(files, files)


def keep_rows_id(store: Store, table: str, id: str) -> None:
    """Keeps the name `id` for the rows of a table whose files a compaction has rewritten."""
    kept = {_files_id(store.dataset(table)): id}
    store.files.write(f"{COVERAGE}/{table}-rows.json", json.dumps(kept).encode())


def _files_id(dataset: lance.LanceDataset) -> str:
    return digest(*sorted(_name(f) for f in dataset.get_fragments()))


def _name(fragment: lance.LanceFragment) -> str:
    """Returns a name of a fragment's rows: its data files, and its file of deleted rows."""
    files = ",".join(f.path for f in fragment.metadata.files)
    return f"{files} {str(fragment.deletion_file() or '').rpartition('/')[2]}"


def sum_of(ids: pa.Array) -> int:
    """Returns the sum of ids, as numbers.

    >>> hex(sum_of(id_column(["0" * 31 + "a", "f" * 16 + "0" * 16])))
    '0xffffffffffffffff000000000000000a'
    """
    words = raw(ids).view(">u4").reshape(-1, 4)  # (ids, 4); the sum of 2^32 ids fits
    return sum(int(total) << 96 - 32 * at for at, total in enumerate(words.sum(axis=0, dtype=np.uint64)))


def all_sources(store: Store, kinds: Iterable[str]) -> Ids:
    """Lists a store's sources of these kinds, in the table's order. The ids are read when first needed."""
    named = sorted(kinds)
    name = digest(corpus_sum(store), *named)
    if not isinstance(store.kept, Ids) or store.kept.all_of != name:
        where, version = next(filters("kind", named)), store.version("sources")

        def read() -> pa.Array:
            return gathered(b["id"] for b in store.batches("sources", ["id"], version=version, filter=where))

        store.kept = Ids.unread(store.count("sources", where, version), name, read)
    return store.kept


def lacked(store: Store, dataset: lance.LanceDataset, table: str, sources: Ids) -> Ids:
    """Returns those of `sources` that have no row in an open table. If `sources` has a name (`all_of`), the
    driver notes a short result for the next call."""
    if (found := noted(store, dataset, table, sources.all_of)) is not None:
        return found
    with reaching(dataset.uri):
        left = sources.where(pc.invert(present(dataset, "source", sources.array)))
    if sources.all_of and len(left) <= NOTED and store.drives:
        of = f"{sources.all_of} {rows_id(store, table, dataset)}"
        last = dict(list({**_notes(store, table), of: list(left)}.items())[-KEPT:])
        store.files.write(f"{COVERAGE}/{table}.json", json.dumps(last).encode())
    return left


def noted(store: Store, dataset: lance.LanceDataset, table: str, all_of: str) -> Ids | None:
    """Reads from a note which sources of the set `all_of` a table lacks; None if there is no note."""
    of = f"{all_of} {rows_id(store, table, dataset)}"
    found = _notes(store, table).get(of) if all_of else None
    return None if found is None else Ids.of(found)


def _notes(store: Store, table: str) -> dict[str, list[str]]:
    """Reads a table's notes, oldest first: (names of the sources and of the rows) -> the missing ids."""
    found: dict[str, list[str]] = json.loads(store.files.read(f"{COVERAGE}/{table}.json") or b"{}")
    return found


def lacking(store: Store, labels: Mapping[str, str], sources: Ids, at: Mapping[str, int]) -> dict[str, Ids]:
    """Returns the missing sources of each label; a label that lacks none is left out. `labels` maps "texts",
    "passages", and a label per table of vectors or lengths to the table. `at` maps tables to versions; other
    tables are read at the newest one. A table that does not exist lacks all sources. A source without a text
    counts only at "texts", and one without passages only at "passages". At the other labels, a source without
    a chunk never counts."""

    def opened(label: str) -> LanceDataset | None:
        table = labels[label]
        return store.dataset(table, at.get(table)) if store.has(table) else None

    def without(label: str) -> Ids:
        dataset = opened(label)
        # Looks up all sources, since that result is noted; then drops sources whose input is missing.
        every = sources if dataset is None else lacked(store, dataset, labels[label], sources)
        return every.without(incomplete)

    missing: dict[str, Ids] = {}
    incomplete = Ids.of(())
    for label in ("texts", "passages"):
        missing[label] = without(label)
        incomplete = incomplete.joined(missing[label])
    passages = opened("passages")
    for label in sorted(labels.keys() - {"texts", "passages"}):
        ids = without(label)
        if passages is None or not ids:  # a source without a chunk has no vectors
            continue
        with reaching(passages.uri):
            if len(ids) * SCAN_RATIO < passages.count_rows():
                spans = rows(passages, "source", ids.array, ["source", "start", "end"])
                there = spans.filter(pc.greater(spans["end"], spans["start"]))["source"]
            else:
                there = sources_with_chunks(passages)
        missing[label] = ids.where(stand_in(ids.array, there))
    return {label: ids for label, ids in missing.items() if ids}


def by_source(lacking: Mapping[str, Ids]) -> dict[str, tuple[str, ...]]:
    """Inverts `lacking`: source -> the labels that lack it."""
    found: dict[str, tuple[str, ...]] = {}
    for label, ids in lacking.items():
        for source in ids:
            found[source] = (*found.get(source, ()), label)
    return found


def sources_without(passages: LanceDataset, lengths: LanceDataset) -> list[str]:
    """Lists the distinct sources that a `passages` table has and a `lengths` table lacks."""
    every = Ids(distinct(passages, "source"))
    return list(every.where(pc.invert(present(lengths, "source", every.array))))


def write_sizes(store: Store, name: str, sources: pa.Table) -> None:
    """Notes the text lengths of these sources (columns id, content), in characters, in a new file."""
    chars = pc.utf8_length(sources["content"]).cast(pa.int64())
    rows = pa.table({"id": sources["id"], "chars": chars})
    store.files.write(f"{SIZES}/{name}.arrow", arrow.file_of(rows))


def merge_sizes(store: Store) -> None:
    """Merges the noted text lengths into one file. Lengths of texts that are not in the store are dropped."""
    names = store.files.names(SIZES)
    here = store.scan("sources", columns=["id"])["id"].combine_chunks()
    if not (tables := list(_size_notes(store))):
        return
    rows = pa.concat_tables(tables).group_by("id").aggregate([("chars", "max")])
    rows = rows.rename_columns(["id", "chars"])
    rows = rows.filter(pc.is_in(rows["id"], value_set=here)).sort_by("id")
    content = arrow.file_of(rows).to_pybytes()
    if names == [name := f"{digest(content)}.arrow"]:
        return
    store.files.write(f"{SIZES}/{name}", content)
    for old in {*names} - {name}:
        store.files.remove(f"{SIZES}/{old}")


def sizes(store: Store, ids: Ids) -> np.ndarray:
    """Returns each source's number of characters, (ids,) int32, from notes or texts; -1 if it is unknown."""

    def notes() -> Iterator[tuple[pa.Array, np.ndarray]]:
        for held in slabs(_size_notes(store)):  # an ingest by tasks writes thousands of small files
            noted = pa.concat_tables(held)
            for some in (noted.slice(at, HASHED) for at in range(0, noted.num_rows, HASHED)):
                yield some["id"].combine_chunks(), some["chars"].to_numpy()

    chars = looked_up(ids.array, notes()) if ids else np.empty(0, np.int32)
    left = ids.where(pa.array(chars < 0))
    read: dict[str, int] = {}
    for at in range(0, len(left), READ_AT_ONCE) if (chars < 0).any() else ():
        rows = store.rows("sources", "id", list(left[at : at + READ_AT_ONCE]), ["id", "content"])
        read.update(zip(id_texts(rows["id"]), pc.utf8_length(rows["content"]).to_pylist(), strict=True))
    if read:
        chars[chars < 0] = [read.get(id, -1) for id in left]
    return chars


def _size_notes(store: Store) -> Iterator[pa.Table]:
    raws = (store.files.read(f"{SIZES}/{name}") for name in store.files.names(SIZES))
    return (arrow.rows_of(raw) for raw in raws if raw is not None)


class Chunks:
    """Chunk counts of sources in a table of passages. The table is read at the first need; a missing one has
    no chunks. The driver notes totals of named sets (`all_of` of `Ids`) and the longest passage in a file."""

    def __init__(self, store: Store, table: str) -> None:
        self._store, self._table = store, table
        self._at = rows_id(store, table, store.dataset(table)) if store.has(table) else ""

    def total(self, sources: Ids) -> int:
        if not sources:
            return 0
        name = sources.name_among(self._at)
        return self._noted(name, lambda: int(self._read[1][self._among(sources)].sum()))

    def each(self, sources: Ids) -> dict[str, int]:
        """Maps sources to their number of chunks; sources without a chunk are left out."""
        mask, found = self._among(sources), Counter[str]()
        named = Ids(self._read[0].filter(pa.array(mask)))
        for source, chunks in zip(named, self._read[1][mask].tolist(), strict=True):
            found[source] += chunks
        return found

    @functools.cached_property
    def longest(self) -> int:
        """Characters of the longest passage."""
        return self._noted(self._at, lambda: self._read[2])

    def _among(self, sources: Ids) -> np.ndarray:
        mask: np.ndarray = stand_in(self._read[0], sources.array).to_numpy(zero_copy_only=False)
        return mask

    @functools.cached_property
    def _read(self) -> tuple[pa.Array, np.ndarray, int]:
        """(sources, counts, longest): source and count per run of adjacent chunks; the longest passage."""
        counts, longest = [np.empty(0, np.int32)], 0

        def sources() -> Iterator[pa.Array]:
            nonlocal longest
            for batch in self._store.batches(self._table, SPANS) if self._at else ():
                real = batch.filter(pc.greater(batch["end"], batch["start"]))
                if real.num_rows:
                    runs = pc.run_end_encode(real["source"])
                    counts.append(np.diff(runs.run_ends.to_numpy(), prepend=0).astype(np.int32))
                    length = pc.max(pc.subtract(real["parent_end"], real["parent_start"])).as_py()
                    longest = max(longest, length)
                    yield runs.values

        names = gathered(sources())
        return names, np.concatenate(counts), longest

    def _noted(self, name: str, count: Callable[[], int]) -> int:
        """Returns the number noted under a name, or counts and notes it. The name "" has no note."""
        if not self._at or not name:
            return count()
        place = f"{COVERAGE}/{self._table}-chunks.json"
        known = json.loads(self._store.files.read(place) or b"{}")
        if known.get("rows") != self._at:
            known = {"rows": self._at}
        if name not in known:
            known[name] = count()
            if self._store.drives:
                self._store.files.write(place, json.dumps(known).encode())
        return int(known[name])
