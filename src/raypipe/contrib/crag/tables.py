"""Knowledge graph as tables in an embedded SQL engine, loaded from a folder of Parquet, CSV or JSON files.

The engine is SQLite. Tables have some ten thousand rows, and a call reads a handful of them by an indexed
name. SQLite comes with Python, opens in memory in milliseconds, has JSON, window functions and NULLS LAST,
and indexes an expression with our own `fold`. DuckDB would scan columns faster, but nothing here scans them;
it would be one more native dependency in every actor.

Calls are defined elsewhere (`calls`). Identifiers in SQL come from this module and from the columns of loaded
tables, quoted; every value is a bound parameter.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from raypipe.contrib.crag.names import fold, typed
from raypipe.contrib.crag.schema import NAMES, TABLES, Kind
from raypipe.core.errors import DataError
from raypipe.core.textfile import json_lines

MOST_SECONDS: Final = 5.0  # limit of one query; programs are bounded, so only a defect could take longer
_STORED: Final = {"int": "INTEGER", "bool": "INTEGER", "real": "REAL"}  # SQLite's type of a kind; else TEXT
_INDEXED: Final = {(table, column) for places in NAMES.values() for table, column, _ in places}


class Tables:
    """All tables of `schema.TABLES`, filled or empty, and their columns."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.create_function("fold", 1, fold, deterministic=True)
        self._db.create_function("typed", 1, typed, deterministic=True)
        self._until = math.inf
        self._db.set_progress_handler(lambda: time.monotonic() > self._until, 10_000)
        self.columns: dict[str, dict[str, Kind]] = {}
        for table, columns in TABLES.items():
            self._create(table, columns)

    def _create(self, table: str, columns: Mapping[str, Kind]) -> None:
        self._db.execute(f"DROP TABLE IF EXISTS {quoted(table)}")
        declared = ", ".join(f"{quoted(name)} {_STORED.get(kind, 'TEXT')}" for name, kind in columns.items())
        self._db.execute(f"CREATE TABLE {quoted(table)} ({declared})")
        for name in [n for n in columns if (table, n) in _INDEXED]:
            index = quoted(f"{table}.{name}")
            self._db.execute(f"CREATE INDEX {index} ON {quoted(table)} (fold({quoted(name)}))")
        if table in ("price", "price_detail", "dividend"):
            self._db.execute(f"CREATE INDEX {quoted(f'{table}.day')} ON {quoted(table)} (ticker, date)")
        self.columns[table] = dict(columns)

    def define(self, table: str, columns: Mapping[str, Kind]) -> None:
        known = TABLES.get(table, {})
        self._create(table, {**known, **{n: known.get(n, k) for n, k in columns.items()}})

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows. A column that a row lacks is null; a key that is no column is ignored."""
        columns = self.columns[table]
        marks = ", ".join("?" * len(columns))
        self._db.executemany(
            f"INSERT INTO {quoted(table)} VALUES ({marks})",
            ([_stored(row.get(name), kind) for name, kind in columns.items()] for row in rows),
        )

    def change(self, table: str, column: str, value: Any, where: str, equals: Any) -> None:
        kind = self.columns[table][column]
        sql = f"UPDATE {quoted(table)} SET {quoted(column)} = ? WHERE {quoted(where)} = ?"
        self._db.execute(sql, (_stored(value, kind), equals))

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a SELECT and returns its rows. Raises sqlite3.Error if it fails or exceeds MOST_SECONDS."""
        self._until = time.monotonic() + MOST_SECONDS
        try:
            return self._db.execute(sql, params).fetchall()
        finally:
            self._until = math.inf


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read(value: Any, kind: Kind) -> Any:
    """Decodes a stored bool, list or map; values of other kinds are unchanged."""
    if value is None:
        return None
    if kind == "bool":
        return bool(value)
    return json.loads(value) if kind in ("list", "map") else value


def named_values(columns: Mapping[str, Kind], row: Sequence[Any]) -> dict[str, Any]:
    """Converts a row of a SELECT of all columns to column -> value."""
    return {name: read(v, kind) for (name, kind), v in zip(columns.items(), row, strict=True)}


def _stored(value: Any, kind: Kind) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if kind == "list":
        items = value if isinstance(value, list | tuple) else [value]
        whole = [dict(i) if isinstance(i, Mapping) else i for i in items if i is not None]
        named = (  # an object with a name, such as {"id": 18, "name": "Drama"}, is stored as the name
            i.get("name") or json.dumps(i, ensure_ascii=False, default=str) if isinstance(i, dict) else i
            for i in whole
        )
        return json.dumps(list(named), ensure_ascii=False)
    if kind == "map":
        return json.dumps(dict(value), ensure_ascii=False, default=str)
    if kind == "bool":
        truth = value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else value
        return int(bool(truth))
    if kind == "date":
        return str(value)[:10]
    if isinstance(value, str | int | float) and not isinstance(value, bool) and kind != "text":
        return value
    nested = isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else str(value)


# ---------------------------------------------------------------- files

_SUFFIXES: Final = (".parquet", ".csv", ".json", ".jsonl")


Contents: TypeAlias = Mapping[Path, bytes]
"""File -> its content, read once: tables and version come from the same bytes."""


def read_files(folder: Path) -> Contents:
    """Reads the files of a folder that are named after tables: `movie.parquet`, `cast.csv`, `oscar.json`, ...

    A subfolder `kg` is read instead, if there is one. Raises DataError if there are no tables, if a table has
    two files, and if a file cannot be read.
    """
    if (folder / "kg").is_dir():
        folder = folder / "kg"
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of tables (movie.parquet, price.csv, ...), found none")
    files = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.stem in TABLES)
    if not files:
        expected = f"at least one of {', '.join(TABLES)} as {', '.join(_SUFFIXES)}"
        raise DataError(f"{folder}: expected {expected}, found none")
    if twice := sorted({p.stem for p in files if sum(p.stem == q.stem for q in files) > 1}):
        raise DataError(f"{folder}: found two files of table {twice[0]}. Keep one of them.")
    try:
        return {path: path.read_bytes() for path in files}
    except OSError as e:
        raise DataError(f"{folder}: cannot be read: {e}") from e


def version_of(contents: Contents) -> str:
    """Returns the version of a graph: the digest of its files."""
    h = hashlib.blake2b(digest_size=16)
    for path, content in contents.items():
        h.update(f"{path.name}\0{len(content)}\0".encode())
        h.update(content)
    return f"tables:{h.hexdigest()}"


def load(folder: Path) -> Tables:
    return tables_of(read_files(folder))


def tables_of(contents: Contents) -> Tables:
    """Loads files into tables. Raises DataError if a file is no table."""
    tables = Tables()
    for path, content in contents.items():
        table = _parsed(path, content)
        columns = {f.name: _kind(f) for f in table.schema}
        tables.define(path.stem, columns)
        tables.insert(path.stem, table.to_pylist())
    return tables


def _parsed(path: Path, content: bytes) -> pa.Table:
    """Parses a file as a table. JSON is an array of objects, or one object per line."""
    try:
        if path.suffix == ".parquet":
            return pq.read_table(pa.BufferReader(content))
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(pa.BufferReader(content))
        text = content.decode("utf-8")
        rows = json.loads(text) if text.lstrip().startswith("[") else json_lines(text)
        if not all(isinstance(r, dict) for r in rows):
            raise ValueError("expected an array of objects, or one object a line")
        return pa.Table.from_pylist(rows)
    except (OSError, ValueError, TypeError, pa.ArrowException) as e:
        raise DataError(f"{path}: cannot be read as a table: {' '.join(str(e).split())[:300]}") from e


def _kind(field: Any) -> Kind:
    for kind, tests in _OF_TYPE.items():
        if any(test(field.type) for test in tests):
            return kind
    return "date" if field.name.endswith(("date", "birthday")) else "text"


_OF_TYPE: Final[Mapping[Kind, tuple[Callable[[Any], bool], ...]]] = {
    "bool": (pa.types.is_boolean,),
    "int": (pa.types.is_integer,),
    "real": (pa.types.is_floating, pa.types.is_decimal),
    "date": (pa.types.is_date, pa.types.is_timestamp),
    "map": (pa.types.is_map, pa.types.is_struct),
    "list": (pa.types.is_list, pa.types.is_large_list),
}
