"""Rows taken out of every version of a table that stays, so that no file holds them any more.

A deletion of Lance leaves the bytes in the file and in older versions. Here the fragments with such rows are
written again without them: once for the newest version, and once for each older version that something
names. Each result is a version of its own under a tag, so after a kill only what is missing is done. Does not
know why rows go: `runs.forget` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import write_fragments

from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import rows
from raypipe.store.keep import free_table, tag, tagged, untag
from raypipe.store.tables import kind_of

BATCH = 256  # rows of a fragment in memory: 26 MB of real pages

Change = Callable[[pa.RecordBatch], pa.RecordBatch]
"""From a batch of a table that holds such rows to what is kept of it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a table: those whose column has one of the values."""

    table: str
    column: str
    values: tuple[str, ...]


def held(store: Store, some: Rows, version: int | None = None) -> int:
    """How many of these rows a version of the table has; None: the newest."""
    found: int = rows(store.dataset(some.table, version), some.column, some.values, [some.column]).num_rows
    return found


def versions(store: Store, table: str) -> list[int]:
    """The versions of a table that can be opened, oldest first."""
    return sorted(v["version"] for v in store.dataset(table).versions())


def rewrite(
    store: Store, some: Rows, name: str, newest: int, pinned: Collection[int], change: Change | None = None
) -> dict[int, int]:
    """Writes the newest version and each pinned one again, without some rows. Gives old version -> its copy.

    `newest` is the version before the first call: it is written last, so the table ends as it was but for the
    rows. `change`: what becomes of a batch that holds such rows; None: they go. Each copy is tagged
    `NAME-VERSION`, so the same call again does only what is missing. Nothing else may write meanwhile."""
    for version in (*sorted(set(pinned) - {newest}), newest):
        if (of := f"{name}-{version}") not in tagged(store, some.table):
            with store.durable(some.table):
                _write(store, some, version, change)
            tag(store, some.table, of, store.version(some.table))
    return made(store, some.table, name)


def made(store: Store, table: str, name: str) -> dict[int, int]:
    """What `rewrite` has made of a table under a name: old version -> its version."""
    found = tagged(store, table).items()
    return {int(t.removeprefix(f"{name}-")): v for t, v in found if t.startswith(f"{name}-")}


def untag_made(store: Store, table: str, name: str) -> None:
    """Takes off the tags of `rewrite`."""
    for version in made(store, table, name):
        untag(store, table, f"{name}-{version}")


def keep_only(store: Store, table: str, keep: Collection[int]) -> None:
    """Removes all versions but these and the newest, and all files that no version names."""
    dataset = store.dataset(table)
    safe = {*keep, *tagged(store, table).values(), dataset.version}
    old = [v for v in versions(store, table) if v not in safe]
    with reaching(store.table_uri(table)):
        if old:
            dataset.cleanup_old_versions(versions=old)
        free_table(store, table)


def _write(store: Store, some: Rows, version: int, change: Change | None) -> None:
    """Commits `version` as the newest, without these rows, and builds its indexes again."""
    with reaching(store.table_uri(some.table)):
        if version != store.version(some.table):
            store.dataset(some.table, version).restore()
        dataset = store.dataset(some.table)
        found = rows(dataset, some.column, some.values, [some.column, "_rowaddr"])["_rowaddr"].to_numpy()
        if not len(found):
            return
        gone = np.unique(found >> 32).tolist()  # fragments: the upper half of a row's address in Lance
        written: list[lance.FragmentMetadata] = []
        for fragment in gone:
            here = int((found >> 32 == fragment).sum())
            if change is None and here == dataset.get_fragment(fragment).count_rows():
                continue
            reader = pa.RecordBatchReader.from_batches(
                dataset.schema, _batches(dataset, fragment, some, change)
            )
            written += write_fragments(reader, dataset)
        operation = lance.LanceOperation.Update(gone, [], written)
        lance.LanceDataset.commit(store.table_uri(some.table), lance.Transaction(dataset.version, operation))
        for column in kind_of(some.table).indexes:  # its pages hold the values of rows that are gone
            store.dataset(some.table).create_scalar_index(column, "BTREE", replace=True)


def _batches(
    dataset: lance.LanceDataset, fragment: int, some: Rows, change: Change | None
) -> Iterator[pa.RecordBatch]:
    values = pa.array(some.values, pa.string())
    for batch in dataset.get_fragment(fragment).to_batches(batch_size=BATCH):
        named = pc.is_in(batch[some.column], value_set=values)
        kept = batch.filter(pc.invert(named)) if change is None else change(batch)
        yield pa.RecordBatch.from_arrays(kept.columns, schema=dataset.schema)


def pinned_versions(
    store: Store, tables: Collection[str], named: Sequence[Mapping[str, int]]
) -> dict[str, set[int]]:
    """Table -> versions that tags or some records (table -> version) name and that can be opened."""
    found: dict[str, set[int]] = {}
    for table in tables:
        there = set(versions(store, table))
        wanted = {*tagged(store, table).values(), *(n[table] for n in named if table in n)}
        found[table] = wanted & there
    return found
