"""Housekeeping of tables: version tags, removal of tables and rows, compaction, and leftovers of killed
processes.

This module uses Lance's tags, deletions, compaction and cleanup; `runs.prune` decides what may be removed.
Leftovers are parts that no plan names, files that no table version names, and half-written files. Only the
holder of the driver's lease may remove them, and only if no work is unfinished.
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

TAGS = "_refs/tags"  # where Lance keeps the tags, in a table's folder
FRAGMENTS = 64  # most fragments without a compaction: a commit adds one or two, a look-up opens each
OPTIONS = CompactionOptions(num_threads=1, batch_size=1024)  # 1024 rows: 22 MB of real texts
WITHOUT_DELETED = CompactionOptions(num_threads=1, batch_size=1024, materialize_deletions_threshold=0.0)
_EVER = timedelta(days=36_500)  # longer than any version's age, so a cleanup removes no version
KEPT = timedelta(days=1)  # a younger version may still be read by a run or a request


def tag(store: Store, table: str, name: str, version: int) -> None:
    """Tags a version. Raises StoreError if it does not exist, or if another version has this tag."""
    here = tagged(store, table)
    if name not in here:
        store.dataset(table, version).tags.create(name, version)
        store.files.sync(f"{table}.lance/{TAGS}/{name}.json")  # Lance leaves it unsynced
    elif here[name] != version:
        raise StoreError(f"table {table} at {store.uri} has tag {name} at another version than {version}")


def versions(store: Store, table: str) -> list[int]:
    """Lists the versions of a table that can be opened, oldest first; none for a missing table."""
    here = store.has(table)
    return sorted(v["version"] for v in store.dataset(table).versions()) if here else []


def untag(store: Store, table: str, name: str) -> None:
    """Removes a tag; a missing one is no error."""
    if store.has(table) and name in tagged(store, table):
        store.dataset(table).tags.delete(name)


def tagged(store: Store, table: str) -> dict[str, int]:
    """Maps a table's tags to versions. Removes tag files that a power cut truncated; their writer writes them
    again when it resumes."""
    folder = f"{table}.lance/{TAGS}"
    for name in store.files.names(folder):
        raw, whole = store.files.read(f"{folder}/{name}"), False
        with suppress(ValueError):
            whole = raw is None or bool(json.loads(raw))  # None: another process removed it meanwhile
        if not whole:
            store.files.remove(f"{folder}/{name}")
    return {name: t["version"] for name, t in store.dataset(table).tags.list().items()}


def tables(store: Store) -> list[str]:
    names = [n.removesuffix(".lance") for n in store.files.names("") if n.endswith(".lance")]
    return [n for n in names if store.has(n)]


def drop(store: Store, table: str) -> None:
    """Removes a table with all its versions. Raises StoreError if it has a tag."""
    if found := tagged(store, table):
        raise StoreError(f"table {table} at {store.uri} is protected by {', '.join(sorted(found))}")
    store.files.remove_folder(f"{table}.lance")
    for name in (table, f"{table}-chunks", f"{table}-rows"):
        store.files.remove(f"{COVERAGE}/{name}.json")


def unfinished(store: Store) -> list[str]:
    """Lists the names of unfinished work. The files of its parts may not be in any table version yet."""
    return [n.removesuffix(".json") for n in store.files.names(RUNS) if n.endswith(".json")]


def clean(store: Store, table: str, keep: Collection[int] = (), kept: timedelta = KEPT) -> int:
    """Removes versions older than `kept`, except the newest, tagged ones and those in `keep`. Returns the
    freed bytes. Raises StoreError if work is unfinished, since old versions record whether a run was
    committed."""
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
    """Deletes duplicates from a memo table: rows with the key of an earlier row. Returns their number. Two
    concurrent merges may leave such rows. The first row stays, since readers already use it."""
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
    """Yields filters that cut a memo table's keys into ranges of at most about HASHED keys. A key is a
    digest, or begins with one.

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
    """Removes deleted rows from the files, because a deletion by Lance leaves a row's bytes in its file and
    its key in an index. Rewrites the fragments and rebuilds the BTREE indexes. First deletes duplicates of a
    memo table."""
    with reaching(store.table_uri(table)), store.durable(table):
        if table.startswith(OF_MEMO):
            drop_twins(store, table)
        if any(f.deletion_file() for f in store.dataset(table).get_fragments()):
            Compaction.execute(store.dataset(table), WITHOUT_DELETED)
        for column in kind_of(table).indexes:
            store.dataset(table).create_scalar_index(column, "BTREE", replace=True)


def keep_only(store: Store, table: str, keep: Collection[int]) -> None:
    """Removes all versions, even tagged ones, except the newest and those in `keep`. Then removes the files
    that no version names."""
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
    """Compacts a table, whose newest version is `version`, in this process."""
    Compaction.execute(store.dataset(table, version), OPTIONS)


def table_bytes(store: Store, table: str, version: int) -> int:
    """Returns the bytes of a table's data files at a version."""
    found = store.dataset(table, version).get_fragments()
    return sum(file.file_size_bytes for fragment in found for file in fragment.metadata.files)


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """Bytes of the files of all tables, by use."""

    live: int  # files of the newest versions
    old: int  # all others: versions kept for readers, releases or a day, and leftovers of killed writers


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
    """Plans a compaction: groups of fragments, as Lance's JSON; each group becomes one fragment."""
    return [group.json() for group in Compaction.plan(store.dataset(table, version), OPTIONS).tasks]


def write_group(store: Store, table: str, version: int, group: str) -> str:
    """Writes the merged fragment of one group. Returns the result for `replace_groups`."""
    with reaching(store.table_uri(table)):
        written: str = CompactionTask.from_json(group).execute(store.dataset(table, version)).json()
    return written


def replace_groups(store: Store, table: str, version: int, written: Iterable[str]) -> None:
    """Commits merged fragments in place of the fragments from which they were written."""
    Compaction.commit(store.dataset(table, version), list(map(RewriteResult.from_json, written)), OPTIONS)


def compact(
    store: Store, table: str, most: int = FRAGMENTS, by: Callable[[Store, str, int], None] = compact_here
) -> bool:
    """Compacts a table of more than `most` fragments; returns whether it did. Rows keep their content, old
    versions keep their files, and uncommitted parts of a run stay valid. First deletes duplicates of a
    memo table."""
    if len(store.dataset(table).get_fragments()) <= most:
        return False
    with store.durable(table):
        if table.startswith(OF_MEMO):
            drop_twins(store, table)  # before: a compaction loses the order of duplicates
        dataset = store.dataset(table)
        name, count = rows_id(store, table, dataset), dataset.count_rows()
        by(store, table, dataset.version)
        store.index(table)
    if store.drives and store.count(table) == count:  # else another process may have written rows meanwhile
        keep_rows_id(store, table, name)
    return True


def abandon(store: Store, what: str) -> str | None:
    """Removes unfinished work: its parts, then its plan. Returns the name of its run. If the plan is damaged
    or missing, returns None, and the parts stay until `free` removes them."""
    run = run_of(store, what)
    for table in store.files.names(PARTS) if run else ():
        store.files.remove_folder(f"{PARTS}/{table}/{run}")
    end(store, what)
    return run


def staged(store: Store) -> list[str]:
    """Lists the runs that have parts, as `TABLE/RUN`."""
    tables = store.files.names(PARTS)
    return [f"{table}/{run}" for table in tables for run in store.files.names(f"{PARTS}/{table}")]


def free(store: Store) -> None:
    """Removes all parts, the results of reading tasks, the ids of planned runs, and half-written files."""
    store.files.remove_folder(PARTS)
    store.files.remove_folder(READS)
    store.files.remove_folder(PLANNED)
    for name in store.files.half_written(time.time()):
        store.files.remove(name)


def free_table(store: Store, table: str) -> None:
    """Removes a table's files that no version names: data, deletions, indexes, transactions, leftovers."""
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
        else:  # the file of a compaction, which read the version before
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
            if "#" in name or name.startswith(".tmp"):  # a temporary file that never got its final name
                store.files.remove(f"{here}/{folder}/{name}")
