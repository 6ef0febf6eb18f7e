"""What processes that were killed left in a store: parts that no plan names, files that no version of a table
names, files that were being written.

Only the holder of the driver's lease may take it away, and only while no work is unfinished: then no process
needs any of it.
"""

from __future__ import annotations

import time
from datetime import timedelta

from raypipe.store.commit import read_transaction
from raypipe.store.database import Store
from raypipe.store.layout import LEASES, PARTS, PLANNED, READS
from raypipe.store.lease import STALE_S
from raypipe.store.parts import end, run_of

_EVER = timedelta(days=36_500)  # no version is older: versions stay, see `keep.clean`


def abandon(store: Store, what: str) -> str | None:
    """Gives up unfinished work, by its name: its parts and then its plan. Returns its run; None where the
    plan is damaged."""
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
    """Removes all parts, ids of runs, and all files next to the tables that were being written."""
    store.files.remove_folder(PARTS)
    store.files.remove_folder(READS)
    store.files.remove_folder(PLANNED)
    for name, age_s in store.files.half_written(time.time()):
        # A reader may be renewing its lease at this moment.
        if not name.startswith(f"{LEASES}/") or age_s > STALE_S:
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
    for folder in ("_versions", "_refs/tags"):
        for name in store.files.names(f"{here}/{folder}"):
            if "#" in name or name.startswith(".tmp"):  # that was never linked to its name
                store.files.remove(f"{here}/{folder}/{name}")
