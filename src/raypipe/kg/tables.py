"""A knowledge graph as tables in an embedded SQL engine: from a folder of Parquet, CSV or JSON files.

The engine is SQLite. Tables have some ten thousand rows and a call reads a handful of them by an indexed
name; SQLite comes with Python, opens in memory in milliseconds, has JSON, window functions and NULLS LAST,
and indexes an expression with our own `fold`. DuckDB would scan columns faster, which nothing here does, and
would be one more native dependency in every actor.

Knows files, kinds of columns and SQL. Does not know calls. Identifiers in SQL come from this module and from
the columns of loaded tables, quoted; every value is a bound parameter.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from raypipe.core.errors import ConfError, DataError
from raypipe.kg.normalize import fold, typed
from raypipe.kg.schema import NAMES, TABLES, Kind

MOST_SECONDS: Final = 5.0  # one query; programs are bounded, so only a fault could take that long
_STORED: Final[dict[Kind, str]] = {
    "text": "TEXT", "int": "INTEGER", "real": "REAL", "bool": "INTEGER", "date": "TEXT", "list": "TEXT",
    "map": "TEXT",
}  # fmt: skip
_INDEXED: Final = {(table, column) for places in NAMES.values() for table, column, _ in places}


class Tables:
    """Every table of `schema.TABLES`, filled or empty, and their columns."""

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
        declared = ", ".join(f"{quoted(name)} {_STORED[kind]}" for name, kind in columns.items())
        self._db.execute(f"CREATE TABLE {quoted(table)} ({declared})")
        for name in columns:
            if (table, name) in _INDEXED:
                self._db.execute(
                    f"CREATE INDEX {quoted(f'{table}.{name}')} ON {quoted(table)} (fold({quoted(name)}))"
                )
        if table in ("price", "price_detail", "dividend"):
            self._db.execute(f"CREATE INDEX {quoted(f'{table}.day')} ON {quoted(table)} (ticker, date)")
        self.columns[table] = dict(columns)

    def define(self, table: str, columns: Mapping[str, Kind]) -> None:
        """Replaces a table by an empty one, with these columns and those that calls rely on."""
        known = TABLES.get(table, {})
        self._create(table, {**known, **{n: known.get(n, k) for n, k in columns.items()}})

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows; a column that a row lacks is null, a key that is no column is ignored."""
        columns = self.columns[table]
        marks = ", ".join("?" * len(columns))
        self._db.executemany(
            f"INSERT INTO {quoted(table)} VALUES ({marks})",
            ([_stored(row.get(name), kind) for name, kind in columns.items()] for row in rows),
        )

    def change(self, table: str, column: str, value: Any, where: str, equals: Any) -> None:
        """Sets a column in the rows whose other column has a value."""
        kind = self.columns[table][column]
        sql = f"UPDATE {quoted(table)} SET {quoted(column)} = ? WHERE {quoted(where)} = ?"
        self._db.execute(sql, (_stored(value, kind), equals))

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT. Raises sqlite3.Error, for one that runs longer than MOST_SECONDS too."""
        self._until = time.monotonic() + MOST_SECONDS
        try:
            return self._db.execute(sql, params).fetchall()
        finally:
            self._until = math.inf


def quoted(name: str) -> str:
    """An identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def read(value: Any, kind: Kind) -> Any:
    """Decodes a stored value: bool, list and dict again."""
    if value is None:
        return None
    if kind == "bool":
        return bool(value)
    return json.loads(value) if kind in ("list", "map") else value


def _stored(value: Any, kind: Kind) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if kind == "list":
        items = value if isinstance(value, list | tuple) else [value]
        return json.dumps([_name(i) for i in items if i is not None], ensure_ascii=False)
    if kind == "map":
        return json.dumps(dict(value), ensure_ascii=False, default=str)
    if kind == "bool":
        return (
            int(value.strip().lower() in ("true", "1", "yes")) if isinstance(value, str) else int(bool(value))
        )
    if kind == "date":
        return str(value)[:10]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value if kind != "text" else str(value)
    return (
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
    )


def _name(item: Any) -> Any:
    """A list's item; of an object with a name, as in {"id": 18, "name": "Drama"}, the name."""
    if isinstance(item, Mapping):
        return item.get("name") or json.dumps(dict(item), ensure_ascii=False, default=str)
    return item


# ---------------------------------------------------------------- files

_SUFFIXES: Final = (".parquet", ".csv", ".json", ".jsonl")


def files_of(folder: Path) -> list[Path]:
    """The files of a folder by table name: `movie.parquet`, `cast.csv`, `oscar.json`, ...

    If the folder has a folder `kg`, that is used. Raises DataError for a folder without tables, or with two
    files of one table.
    """
    if (folder / "kg").is_dir():
        folder = folder / "kg"
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of tables (movie.parquet, price.csv, ...), found none")
    files = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.stem in TABLES)
    if not files:
        raise DataError(
            f"{folder}: expected at least one of {', '.join(TABLES)} as {', '.join(_SUFFIXES)}, found none"
        )
    if twice := sorted({p.stem for p in files if sum(p.stem == q.stem for q in files) > 1}):
        raise DataError(f"{folder}: the table {twice[0]} stands there twice. Keep one of its files.")
    return files


Contents: TypeAlias = Mapping[Path, bytes]
"""The files of a folder, each read once: what is loaded is what its digest was made of."""


def read_files(folder: Path) -> Contents:
    """Reads the files of a folder (`files_of`). Raises DataError."""
    try:
        return {path: path.read_bytes() for path in files_of(folder)}
    except OSError as e:
        raise DataError(f"{folder}: cannot be read: {e}") from e


def version_of(contents: Contents) -> str:
    """The digest of the files of a graph: its version."""
    h = hashlib.blake2b(digest_size=16)
    for path, content in contents.items():
        h.update(f"{path.name}\0{len(content)}\0".encode())
        h.update(content)
    return f"tables:{h.hexdigest()}"


def require_version(what: str, where: str, expected: str, found: str) -> None:
    """Raises ConfError for files that are not those that a recipe was resolved with: another process may see
    other files under the same path, and a release outlives an edit."""
    if found != expected:
        raise ConfError(
            f"{what}: {where} is not what the recipe was resolved with: expected {expected}, found {found}. "
            f"Put back what was there, and the same on every machine; or start again, and for a release run "
            f"eval and promote again"
        )


def load(folder: Path) -> Tables:
    """Loads the graph in a folder (`files_of`). Raises DataError, also for a file that is no table."""
    return tables_of(read_files(folder))


def tables_of(contents: Contents) -> Tables:
    """The tables in these files. Raises DataError for a file that is no table."""
    tables = Tables()
    for path, content in contents.items():
        table = _parsed(path, content)
        columns = {f.name: _kind(f) for f in table.schema}
        tables.define(path.stem, columns)
        tables.insert(path.stem, table.to_pylist())
    return tables


def _parsed(path: Path, content: bytes) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            return pq.read_table(pa.BufferReader(content))
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(pa.BufferReader(content))
        rows = _json_rows(content.decode("utf-8"))
        return pa.Table.from_pylist([dict(r) for r in rows])
    except (OSError, ValueError, TypeError, pa.ArrowException) as e:
        raise DataError(f"{path}: cannot be read as a table: {' '.join(str(e).split())[:300]}") from e


def _json_rows(text: str) -> list[Any]:
    """The rows of a JSON array of objects, or of one object per line."""
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not all(isinstance(r, dict) for r in rows):
        raise ValueError("expected an array of objects, or one object a line")
    return list(rows)


_DAY = re.compile(r".*(?:date|birthday)$")


def _kind(field: Any) -> Kind:
    t = field.type
    if pa.types.is_boolean(t):
        return "bool"
    if pa.types.is_integer(t):
        return "int"
    if pa.types.is_floating(t) or pa.types.is_decimal(t):
        return "real"
    if pa.types.is_date(t) or pa.types.is_timestamp(t):
        return "date"
    if pa.types.is_map(t) or pa.types.is_struct(t):
        return "map"
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return "list"
    return "date" if _DAY.fullmatch(field.name) else "text"
