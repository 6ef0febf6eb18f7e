"""Damaged memo tables: what can still be read of them is kept, the rest is computed again.

A memo may forget, and never ends a run. A table whose newest manifest cannot be read goes back to the
version before; fragments that cannot be read go; an index that cannot be read is built again. A file counts
as damaged if its bytes can be read, or it is gone, and Lance can make nothing of it. A store that cannot be
reached is another matter, and raises.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import lance

from raypipe.store.database import Store
from raypipe.store.durable import manifest_version
from raypipe.store.errors import DiskFull, StoreError, StoreUnavailable, reaching
from raypipe.store.memo.disk import memo_tables, note_loss

log = logging.getLogger("raypipe.store.memo")


def mend_memo(store: Store) -> int:
    """Mends every memo table; how many were damaged. For the holder of the driver's lease."""
    return sum(_mend(store, table) for table in memo_tables(store))


def _mend(store: Store, table: str) -> bool:
    damaged = False
    if not store.has(table) and not store.files.names(f"{table}.lance/data"):
        store.files.remove_folder(
            f"{table}.lance"
        )  # what a kill left of a table while it was made: no values
        return False
    while not _reads(store, table, lambda: store.dataset(table)):
        damaged = True
        note_loss(store, table, "a manifest was damaged")
        if not _without_newest(store, table):
            store.files.remove_folder(f"{table}.lance")
            return True
    if _reads(store, table, lambda: deque(store.batches(table, ["key"], filter="key >= ''"), 0)):
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
    with store.durable(table):
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


def _without_newest(store: Store, table: str) -> bool:
    """Removes the newest manifest of a table; False if it was the last one."""
    folder = f"{table}.lance/_versions"
    every = store.files.names(folder)
    found = {version: name for name in every if (version := manifest_version(name)) is not None}
    if not found:
        return False
    newest = found[max(found)]
    log.warning("memo table %s: manifest %s is damaged, the version before it is taken", table, newest)
    for name in (newest, *(n for n in every if manifest_version(n) is None)):
        store.files.remove(f"{folder}/{name}")  # with the hint which one is the newest
    return len(found) > 1
