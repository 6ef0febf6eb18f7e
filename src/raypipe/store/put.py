"""Rows that the driver itself puts in: what was ingested. Putting the same again changes nothing.

Each row has an id of its own. A row whose id is not there is added, one that is there with other content is
replaced, one that is equal is left alone. Sources are named by their content, so for them there is nothing to
replace. Rows are staged as parts first, so that any number of them comes in with one commit.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.store.commit import commit
from raypipe.store.database import Store
from raypipe.store.parts import write_part
from raypipe.store.tables import checked, kind_of


@dataclass(frozen=True, slots=True)
class Staged:
    """What putting rows does, once they are committed with `replace`."""

    added: tuple[str, ...]  # ids
    replaced: tuple[str, ...]  # ids
    equal: int


def stage(store: Store, table: str, run: str, part: str, rows: pa.Table) -> Staged:
    """Writes the rows that are not in one of the ingested tables as they are given, as a part of a run: none,
    where all of them are."""
    [id] = kind_of(table).key
    rows = checked(table, store.dataset(table).schema, rows)
    names = rows[id].to_pylist()
    fresh = store.missing(table, id, names)
    there = sorted(set(names) - set(fresh))
    changed = [] if table == "sources" else _changed(store, table, id, there, rows)
    if fresh or changed:
        write_part(store, table, run, part, _named(rows, id, [*fresh, *changed]), {})
    return Staged(tuple(fresh), tuple(changed), len(there) - len(changed))


def put(store: Store, table: str, rows: pa.Table) -> Staged:
    """Puts rows into one of the ingested tables, with one commit. After a kill, put the same again."""
    run = uuid.uuid4().hex
    staged = stage(store, table, run, "0", rows)
    if staged.added or staged.replaced:
        commit(store, table, run, ["0"], replace=table != "sources")
    else:
        store.index(table)  # an earlier call may have been killed between its commit and its index
    return staged


def _changed(store: Store, table: str, id: str, names: list[str], rows: pa.Table) -> list[str]:
    """The ids whose stored row is not the given one."""
    stored = {r[id]: r for r in store.rows(table, id, names).to_pylist()}
    given = {r[id]: r for r in _named(rows, id, names).to_pylist()}
    return [n for n in names if stored[n] != given[n]]


def _named(rows: pa.Table, id: str, names: list[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows[id], value_set=pa.array(names, pa.string())))
