"""Rows that the driver itself puts in: what was ingested. Putting the same again changes nothing.

Rows are put in groups that are whole: a question with all its citations. A group that is not there is added,
one that is there with other rows is replaced, one that is equal is left alone. Sources are named by their
content, so for them there is nothing to replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.records import digest
from raypipe.store.commit import commit
from raypipe.store.database import Store, quoted
from raypipe.store.parts import write_part
from raypipe.store.tables import checked, kind_of

REPLACE_GROUPS = 500  # per commit: Lance joins in 300 MB and fails above; 10,000 rows of 3 kB pass


@dataclass(frozen=True, slots=True)
class Put:
    """What putting rows did, in groups."""

    added: int
    replaced: int
    equal: int


def put(store: Store, table: str, rows: pa.Table) -> Put:
    """Puts rows into one of the ingested tables. After a kill, put the same again."""
    group = str(kind_of(table).unit)
    schema = store.dataset(table).schema
    rows = checked(table, schema, rows)
    names = rows[group].combine_chunks().unique().to_pylist()
    fresh = store.missing(table, group, names)
    if fresh:
        added = rows.filter(pc.is_in(rows[group], value_set=pa.array(fresh, pa.string())))
        run = digest(table, str(store.version(table)), *sorted(fresh))
        write_part(store, table, run, "0", added, {})
        commit(store, table, run, ["0"])
    there = sorted(set(names) - set(fresh))
    changed = [] if table == "sources" else _changed(store, table, group, there, rows)
    for at in range(0, len(changed), REPLACE_GROUPS):
        _replace(store, table, group, changed[at : at + REPLACE_GROUPS], rows)
    store.index(table)  # also where an earlier call was killed between its commit and this line
    return Put(len(fresh), len(changed), len(there) - len(changed))


def _changed(store: Store, table: str, group: str, names: list[str], rows: pa.Table) -> list[str]:
    """The groups whose stored rows are not the given ones."""
    stored = _groups(store.rows(table, group, names), group, names)
    given = _groups(rows, group, names)
    return [n for n in names if stored[n] != given[n]]


def _groups(rows: pa.Table, group: str, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Group -> its rows, in an order that depends on nothing but the rows."""
    out: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    for row in rows.filter(pc.is_in(rows[group], value_set=pa.array(names, pa.string()))).to_pylist():
        out[row[group]].append(row)
    for some in out.values():
        some.sort(key=repr)
    return out


def _replace(store: Store, table: str, group: str, names: list[str], rows: pa.Table) -> None:
    """Replaces whole groups with one commit."""
    given = rows.filter(pc.is_in(rows[group], value_set=pa.array(names, pa.string())))
    merge = store.dataset(table).merge_insert(list(kind_of(table).key))
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete(f"{group} IN ({quoted(names)})").execute(given)
