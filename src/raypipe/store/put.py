"""Rows that the driver itself puts in: what was ingested. Putting the same again changes nothing.

Each row has an id of its own. A row whose id is not there is added, one that is there with other content is
replaced, one that is equal is left alone. Sources are named by their content, so for them there is nothing to
replace.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.records import digest
from raypipe.store.commit import commit
from raypipe.store.database import Store
from raypipe.store.parts import write_part
from raypipe.store.tables import checked, kind_of

REPLACED_AT_ONCE = 500  # rows a commit: Lance joins in 300 MB and fails above; 10,000 rows of 3 kB pass


@dataclass(frozen=True, slots=True)
class Put:
    """What putting rows did."""

    added: int
    replaced: int
    equal: int


def put(store: Store, table: str, rows: pa.Table) -> Put:
    """Puts rows into one of the ingested tables. After a kill, put the same again."""
    [id] = kind_of(table).key
    rows = checked(table, store.dataset(table).schema, rows)
    names = rows[id].to_pylist()
    fresh = store.missing(table, id, names)
    if fresh:
        run = digest(table, str(store.version(table)), *sorted(fresh))
        write_part(store, table, run, "0", _named(rows, id, fresh), {})
        commit(store, table, run, ["0"])
    there = sorted(set(names) - set(fresh))
    changed = [] if table == "sources" else _changed(store, table, id, there, rows)
    for at in range(0, len(changed), REPLACED_AT_ONCE):
        given = _named(rows, id, changed[at : at + REPLACED_AT_ONCE])
        with store.durable(table):
            store.dataset(table).merge_insert(id).when_matched_update_all().execute(given)
    store.index(table)  # also where an earlier call was killed between its commit and this line
    return Put(len(fresh), len(changed), len(there) - len(changed))


def _changed(store: Store, table: str, id: str, names: list[str], rows: pa.Table) -> list[str]:
    """The ids whose stored row is not the given one."""
    stored = {r[id]: r for r in store.rows(table, id, names).to_pylist()}
    given = {r[id]: r for r in _named(rows, id, names).to_pylist()}
    return [n for n in names if stored[n] != given[n]]


def _named(rows: pa.Table, id: str, names: list[str]) -> pa.Table:
    """The rows with one of these ids."""
    return rows.filter(pc.is_in(rows[id], value_set=pa.array(names, pa.string())))
