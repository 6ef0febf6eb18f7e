"""Removal from a store: tags that protect a version, tables and rows that are taken out, fragments written as
fewer ones, and what processes that were killed left.

Knows Lance's tags, deletions, compaction and cleanup. Does not know why something may go: `runs.prune` does.
Leftovers are parts that no plan names, files that no version of a table names, and files that were being
written: only the holder of the driver's lease may take them away, and only while no work is unfinished.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult

from raypipe.core.arrow import DIGEST
from raypipe.store.commit import read_transaction
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, reaching
from raypipe.store.files import COVERAGE, PARTS, PLANNED, READS, RUNS
from raypipe.store.ids import HASHED, filters
from raypipe.store.parts import end, run_of
from raypipe.store.sources import keep_rows_id, rows_id
from raypipe.store.tables import OF_MEMO, kind_of

TAGS = "_refs/tags"  # folder of a table
FRAGMENTS = 64  # a commit adds one or two; a look-up opens each
OPTIONS = CompactionOptions(num_threads=1, batch_size=1024)  # 22 MB of real texts at a time
WITHOUT_DELETED = CompactionOptions(num_threads=1, batch_size=1024, materialize_deletions_threshold=0.0)
_EVER = timedelta(days=36_500)  # no version is older: versions stay, see `clean`
KEPT = timedelta(days=1)  # a version that is younger may still be read by a run or a request


def tag(store: Store, table: str, name: str, version: int) -> None:
    """Protects a version of a table under a name. Raises StoreError if the version is gone."""
    here = tagged(store, table)
    if name not in here:
        store.dataset(table, version).tags.create(name, version)
        store.files.sync(f"{table}.lance/{TAGS}/{name}.json")  # Lance does not
    elif here[name] != version:
        raise StoreError(f"table {table} at {store.uri} has tag {name} at another version than {version}")


def versions(store: Store, table: str) -> list[int]:
    """The versions of a table that can be opened, oldest first; none of one that is not there."""
    here = store.has(table)
    return sorted(v["version"] for v in store.dataset(table).versions()) if here else []


def untag(store: Store, table: str, name: str) -> None:
    """Takes a tag away; one that is gone already is no error."""
    if store.has(table) and name in tagged(store, table):
        store.dataset(table).tags.delete(name)


def tagged(store: Store, table: str) -> dict[str, int]:
    """Tag -> version of a table. A tag of which a power cut left a part is removed: who made it, and had not
    ended, makes it again."""
    folder = f"{table}.lance/{TAGS}"
    for name in store.files.names(folder):
        raw, whole = store.files.read(f"{folder}/{name}"), False
        with suppress(ValueError):
            whole = raw is None or bool(json.loads(raw))  # None: gone meanwhile
        if not whole:
            store.files.remove(f"{folder}/{name}")
    return {name: t["version"] for name, t in store.dataset(table).tags.list().items()}


def tables(store: Store) -> list[str]:
    names = [n.removesuffix(".lance") for n in store.files.names("") if n.endswith(".lance")]
    return [n for n in names if store.has(n)]


def drop(store: Store, table: str) -> None:
    """Removes a table with all its versions. Raises StoreError for one with a tag."""
    if found := tagged(store, table):
        raise StoreError(f"table {table} at {store.uri} is protected by {', '.join(sorted(found))}")
    store.files.remove_folder(f"{table}.lance")
    for name in (table, f"{table}-chunks", f"{table}-rows"):
        store.files.remove(f"{COVERAGE}/{name}.json")


def unfinished(store: Store) -> list[str]:
    """Names of the work that was begun and is not committed: its parts lie in files that no version names."""
    return [n.removesuffix(".json") for n in store.files.names(RUNS) if n.endswith(".json")]


def clean(store: Store, table: str, keep: Collection[int] = (), kept: timedelta = KEPT) -> int:
    """Removes versions older than `kept`, but neither the newest, nor tagged ones, nor those to `keep`; the
    bytes that this frees. Raises StoreError while work is unfinished: whether a run was committed is read
    from old versions."""
    if left := unfinished(store):
        raise StoreError(
            f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), so no old "
            "version may go. Run the same command again to its end, or `raypipe prune --abandon NAME`"
        )
    dataset = store.dataset(table)
    safe = {*keep, *tagged(store, table).values(), dataset.version}
    before = datetime.now() - kept  # Lance gives local times
    old = [v["version"] for v in dataset.versions() if v["timestamp"] < before and v["version"] not in safe]
    if not old:
        return 0
    freed: int = dataset.cleanup_old_versions(versions=old).bytes_removed
    return freed


def drop_twins(store: Store, table: str) -> int:
    """Deletes rows of a memo table whose key an earlier row has, and returns how many. Two folds at once may
    leave them. The first row stays: readers use it already."""
    dataset, twins = store.dataset(table), list[int]()
    for where in key_ranges(dataset.schema, dataset.count_rows()):
        keys = store.scan(table, ["key"], dataset.version, filter=where, with_row_id=True).sort_by("_rowid")
        # The place of the first row with this key.
        first = pc.index_in(keys["key"], value_set=keys["key"].combine_chunks())
        later = pc.not_equal(first, pa.array(np.arange(keys.num_rows, dtype=np.int32)))
        twins += keys["_rowid"].filter(later).to_pylist()
    for where in filters("_rowid", twins):
        dataset.delete(where)
    return len(twins)


def key_ranges(schema: pa.Schema, rows: int) -> Iterator[str]:
    """Filters that cut the keys of a memo table, which are digests or begin with one, into ranges of at most
    HASHED, about.

    >>> schema = pa.schema({"key": pa.string()})
    >>> list(key_ranges(schema, 10)), len(list(key_ranges(schema, 20 * HASHED)))
    (["key >= '00000000000000000000000000000000'"], 256)
    """
    digits = max(0, math.ceil(math.log(max(rows, 1) / HASHED, 16)))
    sign = "X" if schema.field("key").type == DIGEST else ""
    starts = [f"{n:0{digits}x}".ljust(32, "0") if digits else "0" * 32 for n in range(16**digits)]
    for low, high in zip(starts, [*starts[1:], None], strict=True):
        yield f"key >= {sign}'{low}'" + (f" AND key < {sign}'{high}'" if high else "")


def rewrite_deleted(store: Store, table: str) -> None:
    """Writes each fragment that has deleted rows again without them, and the table's BTREEs: a deletion of
    Lance leaves the bytes of a row in its file, and its key in an index."""
    with reaching(store.table_uri(table)), store.durable(table):
        if table.startswith(OF_MEMO):
            drop_twins(store, table)
        if any(f.deletion_file() for f in store.dataset(table).get_fragments()):
            Compaction.execute(store.dataset(table), WITHOUT_DELETED)
        for column in kind_of(table).indexes:
            store.dataset(table).create_scalar_index(column, "BTREE", replace=True)


def keep_only(store: Store, table: str, keep: Collection[int]) -> None:
    """Removes all versions but these and the newest, tagged ones too, and all files that no version names."""
    dataset = store.dataset(table)
    safe = {*keep, dataset.version}
    for name, version in tagged(store, table).items():
        if version not in safe:
            untag(store, table, name)
    if old := [v for v in versions(store, table) if v not in safe]:
        with reaching(store.table_uri(table)):
            dataset.cleanup_old_versions(versions=old)
    free_table(store, table)


def compact_here(store: Store, table: str, version: int) -> None:
    """Compacts a table, which stands at this version, in this process."""
    Compaction.execute(store.dataset(table, version), OPTIONS)


def table_bytes(store: Store, table: str, version: int) -> int:
    """Bytes of all rows of a table."""
    found = store.dataset(table, version).get_fragments()
    return sum(file.file_size_bytes for fragment in found for file in fragment.metadata.files)


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """Bytes of the files of all tables."""

    live: int  # that the newest versions name
    old: int  # all others: of versions that are kept for readers, releases or a day, and of killed writers


def disk_bytes(store: Store) -> DiskBytes:
    live = whole = 0
    for table in tables(store):
        with reaching(store.table_uri(table)):
            dataset = store.dataset(table)
            named = dataset.tracked_files(min_version=dataset.version).read_all()["path"]
            files = dataset.all_files().read_all()
        newest = files.filter(pc.is_in(files["path"], value_set=named.combine_chunks()))
        whole += sum(files["size_bytes"].to_pylist())
        live += sum(newest["size_bytes"].to_pylist())
    return DiskBytes(live, whole - live)


def groups(store: Store, table: str, version: int) -> list[str]:
    """The groups of fragments that become one each, as Lance describes them."""
    return [group.json() for group in Compaction.plan(store.dataset(table, version), OPTIONS).tasks]


def write_group(store: Store, table: str, version: int, group: str) -> str:
    """Writes a group of fragments. Returns what was written, for `replace_groups`."""
    with reaching(store.table_uri(table)):
        written: str = CompactionTask.from_json(group).execute(store.dataset(table, version)).json()
    return written


def replace_groups(store: Store, table: str, version: int, written: Iterable[str]) -> None:
    """Commits groups in the place of the fragments they were written from."""
    Compaction.commit(store.dataset(table, version), list(map(RewriteResult.from_json, written)), OPTIONS)


def compact(
    store: Store, table: str, most: int = FRAGMENTS, by: Callable[[Store, str, int], None] = compact_here
) -> bool:
    """Compacts a table of more than `most` fragments, and returns whether it did. Rows stay as they
    are and old versions keep the old files. Parts that a run has written and not committed are none of the
    table's yet: their commit comes on top."""
    if len(store.dataset(table).get_fragments()) <= most:
        return False
    with store.durable(table):
        if table.startswith(OF_MEMO):
            drop_twins(store, table)  # first: afterwards it is not known which of two came first
        dataset = store.dataset(table)
        name, count = rows_id(store, table, dataset), dataset.count_rows()
        by(store, table, dataset.version)
        store.index(table)
    if store.drives and store.count(table) == count:  # else another process may have written meanwhile
        keep_rows_id(store, table, name)
    return True


def abandon(store: Store, what: str) -> str | None:
    """Gives up unfinished work: its parts, then its plan. Returns its run; None: the plan is damaged."""
    run = run_of(store, what)
    for table in store.files.names(PARTS) if run else ():
        store.files.remove_folder(f"{PARTS}/{table}/{run}")
    end(store, what)
    return run


def staged(store: Store) -> list[str]:
    """Runs with parts, as `TABLE/RUN`."""
    tables = store.files.names(PARTS)
    return [f"{table}/{run}" for table in tables for run in store.files.names(f"{PARTS}/{table}")]


def free(store: Store) -> None:
    """Removes all parts, ids of runs, and all files next to the tables that nothing writes any more."""
    store.files.remove_folder(PARTS)
    store.files.remove_folder(READS)
    store.files.remove_folder(PLANNED)
    for name in store.files.half_written(time.time()):
        store.files.remove(name)


def free_table(store: Store, table: str) -> None:
    """Removes the files of a table that no version names: data, deletions, indexes, transactions."""
    dataset = store.dataset(table)
    with store.durable(table):
        dataset.cleanup_old_versions(_EVER, delete_unverified=True, error_if_tagged_old_versions=False)
    here = f"{table}.lance"
    deletions = store.files.names(f"{here}/_deletions")
    transactions = store.files.names(f"{here}/_transactions")
    named = set[str]()
    for version in (v["version"] for v in dataset.versions()):
        transaction = read_transaction(dataset, version)
        if transaction is not None:
            named.add(f"{transaction.read_version}-{transaction.uuid}.txn")
        else:  # a compaction's file: it was made over the version before
            named |= {n for n in transactions if n.startswith(f"{version - 1}-")}
        if deletions:
            fragments = store.dataset(table, version).get_fragments()
            named |= {str(f.deletion_file()).rpartition("/")[2] for f in fragments}
    for folder in ("_transactions", "_deletions"):
        for name in store.files.names(f"{here}/{folder}"):
            if name not in named:
                store.files.remove(f"{here}/{folder}/{name}")
    for folder in ("_versions", TAGS):
        for name in store.files.names(f"{here}/{folder}"):
            if "#" in name or name.startswith(".tmp"):  # that was never linked to its name
                store.files.remove(f"{here}/{folder}/{name}")
