"""Projections of a relation: its rows, a column's values, their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from raypipe.core.kg import Value
from raypipe.kg.relation import ORDER, Column, Relation
from raypipe.kg.tables import Tables, named_values, quoted, read

MOST_ROWS: Final = 1_000  # of one line that later lines get; counts, means and sorts are over all rows


def column_values(relation: Relation, column: Column, tables: Tables, limit: int) -> list[Value]:
    """The first values of a column, by row, a list's items one by one; of the `limit`, nulls are dropped."""
    if column.kind == "list":
        items = f"({relation.sql}) AS r, json_each({column.sql}) AS j"
        sql = f"SELECT j.value FROM {items} ORDER BY r.{ORDER}, j.key"
        params = (*relation.params, *column.params)
    else:
        sql = f"SELECT {column.sql} FROM ({relation.sql}) AS r ORDER BY r.{ORDER}"
        params = (*column.params, *relation.params)
    found = tables.query(f"{sql} LIMIT {limit}", params)
    kind = "text" if column.kind in (None, "list") else column.kind
    return [read(v, kind) for (v,) in found if v is not None]


def first_rows(relation: Relation, tables: Tables, limit: int) -> tuple[Mapping[str, Any], ...]:
    listed = ", ".join(f"r.{quoted(c)}" for c in relation.columns)
    sql = f"SELECT {listed} FROM ({relation.sql}) AS r ORDER BY r.{ORDER} LIMIT {limit}"
    return tuple(named_values(relation.columns, row) for row in tables.query(sql, relation.params))


def counted(relation: Relation, column: Column | None, tables: Tables) -> int:
    """The number of rows, or of values of a column."""
    rows, params = f"({relation.sql}) AS r", relation.params
    if column is None:
        sql = f"SELECT count(*) FROM {rows}"
    elif column.kind == "list":
        sql = f"SELECT count(j.value) FROM {rows}, json_each({column.sql}) AS j"
        params = (*params, *column.params)
    else:
        sql = f"SELECT count({column.sql}) FROM {rows}"
        params = (*column.params, *params)
    return int(tables.query(sql, params)[0][0])
