"""The memo on disk: results of all runs of a store, found by value.

Workers read the memo tables as they were when the run began. They write what they ask themselves at once to
a file of its own that is named by its content, and keep it in memory once it is there; such files are folded
into the tables, by the driver or by workers. A lost value is computed again, one that is there twice is read
once: no transaction is needed. A value whose write failed is owed: the next call writes it before it looks.

A plan takes what a finished run asked for cached as long as its table never lost anything. So each loss is
noted, by an empty file of its own: processes need not agree on an order.

A damaged table never ends a run. One whose newest manifest cannot be read goes back to the version before;
fragments that cannot be read go; an index that cannot be read is built again. A file counts as damaged if its
bytes can be read, or it is gone, and Lance can make nothing of it. A store that cannot be reached raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.calls import About, now
from raypipe.core.errors import DiskFull
from raypipe.core.llm import Generated
from raypipe.core.records import digest
from raypipe.store.commit import append
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, StoreUnavailable, reaching
from raypipe.store.files import MEMO, MEMO_LOSSES, manifest_version
from raypipe.store.ids import missing, rows
from raypipe.store.keep import key_ranges
from raypipe.store.memo.memo import MemoryMemo, MemoTable, Values
from raypipe.store.parts import write_rows
from raypipe.store.tables import OF_MEMO, REPLIES, SCORES, embeddings_schema, kind_of

# Bytes of computed keys and values that a process keeps in memory: 10,000 vectors of 768 numbers, those of
# five questions with fifty real pages each. A text that comes back later than that is computed again.
FRESH_BYTES = 32 << 20
_REPLACES = b"raypipe.replaces"  # in the metadata of a cache file: its replies were asked for afresh
# Bytes of values per commit of a fold. A driver over 7,176 sources peaks 97 MB above one over 704 with 16
# MiB, 79 with 8 and 40 with 4; each commit reads the keys that no index has yet, so fewer are faster.
FOLD_BYTES = 8 << 20


def memo_tables(store: Store) -> list[str]:
    return [t.removesuffix(".lance") for t in store.files.names("") if t.startswith(OF_MEMO)]


def memo_versions(store: Store) -> dict[str, int]:
    """The memo tables there are, at their newest version: what a run's workers read."""
    return {name: store.version(name) for name in memo_tables(store)}


class StoreMemo:
    """A memo over a store (`memo.Memo`). `versions` pins the tables: see `memo_versions`. `fresh`: it reads
    no replies of earlier runs, and those that it keeps take their place."""

    def __init__(self, uri: str, versions: Mapping[str, int], fresh: bool = False) -> None:
        self._store, self._replaces = Store.open(uri), fresh
        versions = {n: v for n, v in versions.items() if not (fresh and n.startswith("replies-"))}
        self._old = {name: self._store.dataset(name, version) for name, version in versions.items()}
        self._fresh = MemoryMemo(FRESH_BYTES)  # of what is on disk
        self._owed: deque[tuple[MemoTable, Sequence[str], Values, About]] = deque()  # puts whose write failed
        self._paying = asyncio.Lock()

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        """As `Memo`. Raises StoreUnavailable or DiskFull where what is owed cannot be written."""
        await self._pay()
        known, values = await self._fresh.get_many(table, keys)
        if table.name not in self._old or known.all():
            return known, values
        rest = np.flatnonzero(~known)
        wanted = [keys[i] for i in rest]
        found, read = await asyncio.to_thread(_read, self._old[table.name], table, wanted)
        out = table.empty(len(keys))
        out[known] = values
        out[rest[found]] = read
        known[rest[found]] = True
        return known, out[known]

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        """As `Memo`. Raises StoreUnavailable or DiskFull where they cannot be written; then they are owed."""
        try:
            await asyncio.to_thread(self._write, table, keys, values, now())
        except BaseException:  # a deadline too: whether the thread still writes them is not known
            self._owed.append((table, keys, values, now()))
            raise
        await self._fresh.put_many(table, keys, values)

    async def _pay(self) -> None:
        """Writes what is owed. Until it is on disk, no caller finds it and none asks for it again."""
        while self._owed:
            async with self._paying:
                if self._owed:
                    await asyncio.to_thread(self._write, *self._owed[0])
                    await self._fresh.put_many(*self._owed.popleft()[:3])

    def _write(self, table: MemoTable, keys: Sequence[str], values: Values, of: About) -> None:
        """Writes a file, whole or not at all. Its name is its digest: a lost bit shows."""
        if not keys:
            return
        if table.replies:
            rows = [
                {"key": key, **asdict(reply), "recipe": of.recipe, "questions": list(of.owners(key))}
                for key, reply in zip(keys, values, strict=True)
            ]
            data = pa.Table.from_pylist(rows, schema=REPLIES)
            if self._replaces:
                data = data.replace_schema_metadata({_REPLACES: b"1"})
        else:
            numbers = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
            column = pa.FixedSizeListArray.from_arrays(numbers, table.dim) if table.dim else numbers
            schema = embeddings_schema(table.dim) if table.dim else SCORES
            data = pa.Table.from_arrays([arrow.id_column(keys), column], schema=schema)
        content = arrow.file_of(data).to_pybytes()
        self._store.files.write(f"{MEMO}/{table.name}/{digest(content)}.arrow", content)


def _replaces(schema: pa.Schema) -> bool:
    return _REPLACES in (schema.metadata or {})


def _read(dataset: lance.LanceDataset, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
    """(keys,) bool and the values found, in key order."""
    columns = [f.name for f in fields(Generated)] if table.replies else ["vector" if table.dim else "score"]
    found = rows(dataset, "key", keys, ["key", *columns, "_rowid"])
    # Two folds at once may have added a key twice: the value of the oldest row holds.
    found = found.take(pc.sort_indices(found, [("_rowid", "ascending")]))
    place: dict[str, int] = {}
    for i, key in enumerate(arrow.id_texts(found["key"])):
        place.setdefault(key, i)
    known = np.array([k in place for k in keys], bool)
    if table.replies:
        values = table.empty(found.num_rows)
        values[:] = [Generated(**row) for row in found.select(columns).to_pylist()]
    else:
        column = found[columns[0]].combine_chunks()
        values = column.flatten().to_numpy().reshape(-1, table.dim) if table.dim else column.to_numpy()
    return known, values[[place[k] for k in keys if k in place]]


@dataclass(frozen=True, slots=True)
class MergeSummary:
    files: int  # folded and removed
    values: int  # that are in a table now and were in none before
    damaged: int  # files that were not what their name says; their values will be computed again


def waiting(store: Store) -> dict[str, dict[str, int]]:
    """Memo table -> cache files that no merge has put into it yet -> bytes."""
    found = {table: store.files.sizes(f"{MEMO}/{table}") for table in store.files.names(MEMO)}
    for table in found:
        kind_of(table)
    return {t: {f"{MEMO}/{t}/{name}": size for name, size in files.items()} for t, files in found.items()}


def cut(files: Mapping[str, int], most: int) -> list[list[str]]:
    """Files (name -> bytes) in order, in groups that end with the file that brings them to `most` bytes.

    >>> cut({"a": 3, "b": 2, "c": 9, "d": 1}, 5)
    [['a', 'b'], ['c'], ['d']]
    """
    groups, size = list[list[str]](), most
    for name, own in files.items():
        if size >= most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += own
    return groups


def replaces(store: Store, name: str) -> bool:
    """Returns whether the replies in a cache file take the place of older ones; reads no values."""
    if (file := store.files.open(name)) is not None:
        with file, suppress(pa.ArrowException):  # damaged, as will be seen when it is read whole
            return _replaces(pa.ipc.open_file(file).schema)
    return False


def merge_memo(store: Store) -> MergeSummary:
    """Merges the cache files of workers into the memo tables, in this process. Replies that were asked for
    afresh replace older ones, in any later merge. Much is merged by tasks (`runs.pipeline.store_tasks`)."""
    done = MergeSummary(0, 0, 0)
    for table, files in waiting(store).items():
        for names in cut(files, FOLD_BYTES):
            ensure_memo(store, table, names)
            rows, replaced, damaged = fold(store, table, names)
            if here := len(names) - damaged:
                fragments = write_rows(store, table, rows) if rows.num_rows else []
                add_folded(store, table, digest("fold", *names), fragments, replaced, names)
            done = MergeSummary(done.files + here, done.values + rows.num_rows, done.damaged + damaged)
        if store.has(table):
            store.index(table)
    return done


def ensure_memo(store: Store, table: str, names: Sequence[str]) -> None:
    """Makes a memo table that is not there, with the columns of one of its cache files."""
    for name in names if not store.has(table) else ():
        content = store.files.read(name)
        if content is not None and intact(name.rpartition("/")[2], content):
            store.ensure(table, pa.ipc.open_file(content).schema.remove_metadata())
            return


def fold(store: Store, table: str, names: Sequence[str]) -> tuple[pa.Table, list[str], int]:
    """Rows that these cache files bring their table, which must be there: the first value of each key that is
    to be added; keys of these whose older values in the table go; and how many files were not what their name
    says, and are removed."""
    tables, damaged = list[pa.Table](), 0
    for name in names:
        content = store.files.read(name)  # None: another driver folded it meanwhile
        if content is not None and intact(name.rpartition("/")[2], content):
            tables.append(arrow.rows_of(content))
        elif content is not None:
            note_loss(store, table, name)
            damaged += 1
            store.files.remove(name)
    if not tables:
        return pa.table({}), [], damaged
    # Values that replace others come first: of two values of a key the first one is kept.
    tables.sort(key=lambda t: not _replaces(t.schema))
    newer = {key for t in tables if _replaces(t.schema) for key in arrow.id_texts(t["key"])}
    content = pa.concat_tables([t.replace_schema_metadata(None) for t in tables])
    first: dict[str, int] = {}
    for i, key in enumerate(arrow.id_texts(content["key"])):
        first.setdefault(key, i)
    dataset = store.dataset(table)
    lacking = set(missing(dataset, "key", list(first)))
    fresh = [key for key in first if key in lacking or key in newer]
    at = pa.array([first[key] for key in fresh], pa.int64())
    return content.take(at), [key for key in fresh if key not in lacking], damaged


def add_folded(
    store: Store,
    table: str,
    run: str,
    fragments: list[lance.FragmentMetadata],
    replaced: Sequence[str],
    names: Iterable[str],
) -> None:
    """Adds rows of cache files to their table, and only then removes the files."""
    with reaching(store.table_uri(table)), store.durable(table):
        if replaced:
            store.forget(table, "key", replaced)
        if fragments:
            append(store, table, run, fragments, store.version(table))
    for name in names:
        store.files.remove(name)


def note_loss(store: Store, table: str, what: str) -> None:
    """Notes that values of a memo table are gone. `what` names the loss: the same one twice is one note."""
    store.files.write(f"{MEMO_LOSSES}/{table}/{digest(what)}", b"")


def has_lost(store: Store, table: str) -> bool:
    """Returns whether values of a memo table are gone, or lie in a damaged file that is not merged yet. A
    table that is not there has lost whatever it held."""
    if store.files.names(f"{MEMO_LOSSES}/{table}"):
        return True
    names = store.files.names(f"{MEMO}/{table}")
    if not names and not store.has(table):
        return True
    held = ((name, store.files.read(f"{MEMO}/{table}/{name}")) for name in names)
    return any(content is not None and not intact(name, content) for name, content in held)


def intact(name: str, content: bytes) -> bool:
    """Returns whether a cache file holds what its writer put there: its name is the digest of its content."""
    return digest(content) == name.removesuffix(".arrow")


log = logging.getLogger("raypipe.store.memo")


def mend_memo(store: Store) -> int:
    """Mends every memo table; how many were damaged. For the holder of the driver's lease."""
    return sum(_mend(store, table) for table in memo_tables(store))


def _mend(store: Store, table: str) -> bool:
    damaged = False
    if not store.has(table) and not store.files.names(f"{table}.lance/data"):
        store.files.remove_folder(f"{table}.lance")  # a kill left it while it was made: no values
        return False
    while not _reads(store, table, lambda: store.dataset(table)):
        damaged = True
        note_loss(store, table, "a manifest was damaged")
        folder = f"{table}.lance/_versions"
        every = store.files.names(folder)
        found = {version: name for name in every if (version := manifest_version(name)) is not None}
        if len(found) <= 1:  # none is left before it
            store.files.remove_folder(f"{table}.lance")
            return True
        newest = found[max(found)]
        log.warning("memo table %s: manifest %s is damaged, the version before it is taken", table, newest)
        for name in (newest, *(n for n in every if manifest_version(n) is None)):
            store.files.remove(f"{folder}/{name}")  # with the hint which one is the newest
    whole = next(key_ranges(store.dataset(table).schema, 0))
    if _reads(store, table, lambda: deque(store.batches(table, ["key"], filter=whole), 0)):
        return damaged  # all keys by the index: each of its pages was read
    dataset = store.dataset(table)
    bad = [
        f.fragment_id
        for f in dataset.get_fragments()
        if not _reads(store, table, lambda f=f: f.to_table())  # type: ignore[misc]
    ]
    log.warning("memo table %s is damaged: its index is built again, %s fragments go", table, len(bad))
    if bad:
        note_loss(store, table, "fragments were damaged")
    with reaching(store.table_uri(table)), store.durable(table):
        for index in dataset.describe_indices():
            dataset.drop_index(index.name)
        if bad:
            version = store.version(table)
            operation = lance.LanceOperation.Delete([], bad, "damaged")
            lance.LanceDataset.commit(store.table_uri(table), lance.Transaction(version, operation))
    store.index(table)
    return True


def _reads(store: Store, table: str, read: Callable[[], object]) -> bool:
    try:
        with reaching(store.table_uri(table)):
            read()
    except DiskFull:
        raise
    except (StoreUnavailable, StoreError):
        for name in store.files.walk(f"{table}.lance"):
            store.files.read(name)  # raises while the store is down
        return False
    return True
