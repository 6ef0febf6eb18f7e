"""The memo on disk: the cached model results of all runs of a store.

Workers read the memo tables at the versions of the run's start. A worker writes the values that it computes
to a new file at once. This cache file is named by the digest of its content. The worker also keeps its latest
values in memory. The driver or workers later merge cache files into the tables. No transaction is needed: a
lost value is computed again, and of two rows with the same key only the first is read. If a write fails, its
values are owed: the next look-up first repeats the write.

A plan counts the requests of a finished run as cached, unless their table has lost a value. So each loss is
noted by an empty file of its own, which needs no order among processes.

The driver repairs damaged tables before a run (`mend_memo`). If a table's newest manifest is unreadable, the
table returns to the version before. Unreadable fragments are removed, an unreadable index is built again. A
file counts as damaged if it is missing, or if its bytes can be read but Lance cannot parse them. If the store
cannot be reached, the repair raises.
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
from raypipe.core.call_context import CallContext, current
from raypipe.core.errors import DiskFull
from raypipe.core.llm import Generated
from raypipe.core.records import digest
from raypipe.store.commit import append
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, StoreUnavailable, reaching
from raypipe.store.files import MEMO, MEMO_LOSSES, manifest_version
from raypipe.store.housekeeping import key_ranges
from raypipe.store.ids import missing, rows
from raypipe.store.memo.memo import MemoryMemo, MemoTable, Values
from raypipe.store.parts import write_rows
from raypipe.store.tables import OF_MEMO, REPLIES, SCORES, embeddings_schema

# Bytes of computed keys and values that a process keeps in memory: 10,000 vectors of 768 numbers, as many as
# five questions with fifty real pages each need. A text that returns after more than that is computed again.
FRESH_BYTES = 32 << 20
_REPLACES = b"raypipe.replaces"  # metadata of a cache file: its replies replace older ones
# Bytes of values per commit of a merge. The driver's peak memory over 7,176 sources exceeds that over 704 by
# 97 MB at 16 MiB, 79 at 8 and 40 at 4. Each commit reads all keys that no index covers: fewer are faster.
FOLD_BYTES = 8 << 20


def memo_tables(store: Store) -> list[str]:
    return [t.removesuffix(".lance") for t in store.files.names("") if t.startswith(OF_MEMO)]


def memo_versions(store: Store) -> dict[str, int]:
    """Maps the existing memo tables to their newest versions."""
    return {name: store.version(name) for name in memo_tables(store)}


class StoreMemo:
    """A memo (`memo.Memo`) in a store. It reads the tables at `versions` (`memo_versions`), and its own
    values. With `fresh`, it ignores replies of earlier runs, and its replies replace them."""

    def __init__(self, uri: str, versions: Mapping[str, int], fresh: bool = False) -> None:
        self._store, self._replaces = Store.open(uri), fresh
        versions = {n: v for n, v in versions.items() if not (fresh and n.startswith("replies-"))}
        self._old = {name: self._store.dataset(name, version) for name, version in versions.items()}
        self._fresh = MemoryMemo(FRESH_BYTES)  # own values, once they are on disk
        self._owed: deque[tuple[MemoTable, Sequence[str], Values, CallContext]] = deque()  # of failed writes
        self._paying = asyncio.Lock()

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        """Looks up keys as `Memo`. Raises StoreUnavailable, or DiskFull if owed values cannot be written."""
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
        """Stores values as `Memo` does. If the write fails, keeps the values to write them later, and raises
        StoreUnavailable or DiskFull."""
        try:
            await asyncio.to_thread(self._write, table, keys, values, current())
        except BaseException:  # also at a deadline: the thread may or may not write them
            self._owed.append((table, keys, values, current()))
            raise
        await self._fresh.put_many(table, keys, values)

    async def _pay(self) -> None:
        """Writes the owed values. While it raises, look-ups raise, so no owed value is computed again."""
        while self._owed:
            async with self._paying:
                if self._owed:
                    await asyncio.to_thread(self._write, *self._owed[0])
                    await self._fresh.put_many(*self._owed.popleft()[:3])

    def _write(self, table: MemoTable, keys: Sequence[str], values: Values, of: CallContext) -> None:
        """Writes one file atomically. Its name is the digest of its content, which shows damage."""
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
    """Returns which keys a table has, (keys,) bool, and the values of these keys, in key order."""
    columns = [f.name for f in fields(Generated)] if table.replies else ["vector" if table.dim else "score"]
    found = rows(dataset, "key", keys, ["key", *columns, "_rowid"])
    # Two concurrent merges may have added a key twice: the oldest row's value is used.
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
    """Result of a merge of cache files into memo tables."""

    files: int  # cache files merged and removed
    values: int  # values added to tables
    damaged: int  # files whose content contradicts their name; their values will be computed again


def waiting(store: Store) -> dict[str, dict[str, int]]:
    """Maps each memo table to its unmerged cache files and their bytes."""
    found = {table: store.files.sizes(f"{MEMO}/{table}") for table in store.files.names(MEMO)}
    return {t: {f"{MEMO}/{t}/{name}": size for name, size in files.items()} for t, files in found.items()}


def cut(files: Mapping[str, int], most: int) -> list[list[str]]:
    """Groups files (name -> bytes) in order; a group ends with the file that brings it to `most` bytes.

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
    """Returns whether a cache file has replies that replace older ones; False if damaged or missing."""
    if (file := store.files.open(name)) is not None:
        with file, suppress(pa.ArrowException):  # a damaged file: `fold` removes it
            return _replaces(pa.ipc.open_file(file).schema)
    return False


def merge_memo(store: Store) -> MergeSummary:
    """Merges the workers' cache files into the memo tables, in this process; `runs.pipeline.store_tasks` does
    the same in tasks. Replies of a `fresh` memo replace older ones, whatever the order of the merges."""
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
    """Makes a missing memo table with the columns of the first undamaged file in `names`, if there is one."""
    for name in names if not store.has(table) else ():
        content = store.files.read(name)
        if content is not None and intact(name, content):
            store.ensure(table, pa.ipc.open_file(content).schema.remove_metadata())
            return


def fold(store: Store, table: str, names: Sequence[str]) -> tuple[pa.Table, list[str], int]:
    """Prepares the merge of cache files into their table. The table must exist if one of the files is
    undamaged. Returns the rows to add, the keys whose older rows must be removed, and the number of damaged
    files. A row is added for each key that the table lacks or whose row is replaced. A file is damaged if its
    content contradicts its name; it is removed, and the loss is noted."""
    tables, damaged = list[pa.Table](), 0
    for name in names:
        content = store.files.read(name)  # None: another driver merged it meanwhile
        if content is not None and intact(name, content):
            tables.append(arrow.rows_of(content))
        elif content is not None:
            note_loss(store, table, name)
            damaged += 1
            store.files.remove(name)
    if not tables:
        return pa.table({}), [], damaged
    # Replacing values come first, since the first value of a key is kept.
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
    """Removes the `replaced` rows of a table, adds the merged rows, and only then removes the cache files."""
    with reaching(store.table_uri(table)), store.durable(table):
        if replaced:
            store.forget(table, "key", replaced)
        if fragments:
            append(store, table, run, fragments, store.version(table))
    for name in names:
        store.files.remove(name)


def note_loss(store: Store, table: str, what: str) -> None:
    """Notes that a memo table has lost values. `what` identifies the loss, so it is noted only once."""
    store.files.write(f"{MEMO_LOSSES}/{table}/{digest(what)}", b"")


def has_lost(store: Store, table: str) -> bool:
    """Returns whether values of a memo table are lost: a loss is noted, or an unmerged cache file is damaged.
    Also returns True if neither the table nor a cache file exists."""
    names = store.files.names(f"{MEMO}/{table}")
    if store.files.names(f"{MEMO_LOSSES}/{table}") or not (names or store.has(table)):
        return True
    held = ((name, store.files.read(f"{MEMO}/{table}/{name}")) for name in names)
    return any(content is not None and not intact(name, content) for name, content in held)


def intact(name: str, content: bytes) -> bool:
    """Returns whether a cache file has its original content: its name is the digest of this content."""
    return digest(content) == name.rpartition("/")[2].removesuffix(".arrow")


log = logging.getLogger("raypipe.store.memo")


def mend_memo(store: Store) -> int:
    """Repairs every memo table; returns the number of damaged ones. Requires the driver's lease."""
    return sum(_mend(store, table) for table in memo_tables(store))


def _mend(store: Store, table: str) -> bool:
    damaged = False
    if not store.has(table) and not store.files.names(f"{table}.lance/data"):
        store.files.remove_folder(f"{table}.lance")  # killed during its creation: it has no values
        return False
    while not _reads(store, table, lambda: store.dataset(table)):
        damaged = True
        note_loss(store, table, "a manifest was damaged")
        folder = f"{table}.lance/_versions"
        names = store.files.names(folder)
        manifests = {version: name for name in names if (version := manifest_version(name)) is not None}
        if len(manifests) <= 1:  # there is no version before it
            store.files.remove_folder(f"{table}.lance")
            return True
        newest = manifests[max(manifests)]
        log.warning("memo table %s: manifest %s is damaged, the version before it is taken", table, newest)
        for name in (newest, *(n for n in names if manifest_version(n) is None)):
            store.files.remove(f"{folder}/{name}")  # also the hint, a file that names the newest version
    whole = next(key_ranges(store.dataset(table).schema, 0))
    if _reads(store, table, lambda: deque(store.batches(table, ["key"], filter=whole), 0)):
        return damaged  # all keys were read by the index, so each of its pages is readable
    dataset = store.dataset(table)
    broken = [
        f.fragment_id
        for f in dataset.get_fragments()
        if not _reads(store, table, lambda f=f: f.to_table())  # type: ignore[misc]
    ]
    log.warning("memo table %s is damaged: its index is built again, %s fragments go", table, len(broken))
    if broken:
        note_loss(store, table, "fragments were damaged")
    with reaching(store.table_uri(table)), store.durable(table):
        for index in dataset.describe_indices():
            dataset.drop_index(index.name)
        if broken:
            version = store.version(table)
            operation = lance.LanceOperation.Delete([], broken, "damaged")
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
