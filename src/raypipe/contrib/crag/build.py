"""Builder of a graph from a user's own CSV files. It writes the files that `tables` loads.

A YAML file names the files of each table and maps their columns. A row of `entity` is a thing with
attributes; dated values are rows of tables with a date, such as `price`. No facts are extracted from text.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.contrib.crag.names import fold, typed
from raypipe.contrib.crag.schema import NAMES, TABLES, Kind
from raypipe.contrib.crag.tables import read_files, version_of
from raypipe.core import config
from raypipe.core.config import Where, did_you_mean, read_yaml
from raypipe.core.errors import DataError
from raypipe.readers import row_files
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import ReadCounts

Row: TypeAlias = dict[str, Any]

FACTS: Final = "summary_structured"
_TYPES: Final[Mapping[Kind, Any]] = {
    "text": pa.string(),
    "int": pa.int64(),
    "real": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "list": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.string()),
}
_EXPECTED: Final[Mapping[Kind, str]] = {
    "int": "a whole number",
    "real": "a number",
    "date": "a day as 2024-03-05",
    "bool": "true, false, yes, no, 1 or 0",
    "list": "values with ; between them",
}
_BOOLS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class TableFile:
    """File that fills a table."""

    file: str  # CSV or TSV; relative paths start at the YAML file's folder
    columns: Mapping[str, str]  # column of the table -> column of the file
    attributes: tuple[str, ...] = ()  # `entity` only: file columns that become attributes, names unchanged


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Content of the YAML file that describes a graph."""

    tables: Mapping[str, tuple[TableFile, ...]]  # table of the schema -> its files


@dataclass(frozen=True, slots=True)
class BuiltTable:
    table: str
    lines: int  # lines of its files
    rows: int  # rows of the graph; lines about one entity are one row
    keys: tuple[str, ...]  # columns and attributes with values


def build(plan: Path, out: Path) -> tuple[str, list[BuiltTable]]:
    """Writes a graph to a new folder, whole or not at all; returns its version and its tables.

    Raises ConfError if the plan is wrong. Raises DataError if a cell does not fit its column, with file, line
    and column, and if the folder is not empty: a release may answer from its files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        found = "files in it: a release may answer from them" if out.is_dir() else "a file"
        raise DataError(f"{out}: expected a new or an empty folder, found {found}. Name another")
    where = Where(str(plan))
    tables = config.build(GraphPlan, read_yaml(plan), where).tables
    if not tables:
        raise where.at("tables").error(f"expected one at least of {', '.join(TABLES)}, found none")
    for table, files in tables.items():
        _check(table, files, where.at("tables").at(table))
    lines = {t: [row for file in files for row in _rows(t, file, plan.parent)] for t, files in tables.items()}
    rows = {t: _entities(of) if t == "entity" else of for t, of in lines.items()}
    _tie_films(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        whole = Path(folder) / "graph"
        whole.mkdir()
        for table, of in rows.items():
            pq.write_table(_arrow(table, of), whole / f"{table}.parquet", compression="zstd")
        os.replace(whole, out)
    return version_of(read_files(out)), [
        BuiltTable(t, len(lines[t]), len(of), tuple(dict.fromkeys(k for row in of for k in _keys(row))))
        for t, of in rows.items()
    ]


def _keys(row: Row) -> Iterator[str]:
    for column, value in row.items():
        yield from value if column == FACTS else (column,)


# ---------------------------------------------------------------- the plan


def _needed(table: str) -> list[set[str]]:
    """Returns sets of columns; a row needs one of each set: a name, and the date of dated values."""
    names = {meant for places in NAMES.values() for t, _, meant in places if t == table}
    names = names or {"ticker", "name"} & TABLES[table].keys()
    return [some for some in (names, {"date"} & TABLES[table].keys()) if some]


def _check(table: str, files: Sequence[TableFile], where: Where) -> None:
    """Raises ConfError for a table of the plan that is unknown, has unknown columns, or lacks columns."""
    if table not in TABLES:
        raise where.error(f"the graph has no such table; {did_you_mean(table, TABLES)}")
    known = TABLES[table].keys() - {FACTS}
    for i, file in enumerate(files):
        at = where.at(i)
        if strange := sorted(file.columns.keys() - known):
            more = ". Other facts are attributes of `entity`"
            raise at.at("columns").error(f"unknown {strange[0]!r}; {did_you_mean(strange[0], known)}{more}")
        for some in _needed(table):
            if not some & file.columns.keys():
                names = " or ".join(sorted(some))
                raise at.at("columns").error(f"expected {names}: no call finds a row without")
        if file.attributes and table != "entity":
            raise at.at("attributes").error("expected only with entity")
        if row_files.kind_of(Path(file.file)) != "csv":
            raise at.at("file").error(f"expected a name that ends in .csv or .tsv, found {file.file!r}")


# ---------------------------------------------------------------- lines to rows


def _rows(table: str, source: TableFile, folder: Path) -> Iterator[Row]:
    (file,) = row_files.find([folder / source.file])
    line = None
    for line in row_files.rows(file, ReadCounts()):
        if line.fault is not None:
            raise DataError(f"{line.where}: {line.fault.detail}")
        row: Row = {
            column: _value(text, TABLES[table][column], f"{line.where} {of}")
            for column, of in source.columns.items()
            if (text := _cell(line, of))
        }
        if source.attributes:
            row[FACTS] = {of: text for of in source.attributes if (text := _cell(line, of))}
        for some in _needed(table):
            if not some & row.keys():
                empty = " and ".join(source.columns[c] for c in sorted(some & source.columns.keys()))
                raise DataError(f"{line.where} {empty}: expected a value, found none: no call finds the row")
        yield row
    if line is None:
        raise DataError(f"{file.name}: expected lines behind the names of its columns, found none")


def _cell(line: JsonLine, column: str) -> str:
    cells = line.value or {}
    if column not in cells:
        raise DataError(f"{line.file}:1: expected a column {column!r}; {did_you_mean(column, cells)}")
    return str(cells[column]).strip()


def _value(text: str, kind: Kind, where: str) -> Any:
    """Converts a cell to the kind of its column. Raises DataError with `where` if it does not fit."""
    value: Any = text
    if kind in ("int", "real"):
        number = typed(text)
        right = isinstance(number, float) and (kind == "real" or number.is_integer())
        value = (int(number) if kind == "int" else number) if right and number is not None else None
    elif kind == "bool":
        value = _BOOLS.get(text.lower())
    elif kind == "list":
        value = [item.strip() for item in text.split(";") if item.strip()] or None
    elif kind == "date":
        try:
            value = date.fromisoformat(text)
        except ValueError:
            value = None
    if value is None:
        raise DataError(f"{where}: expected {_EXPECTED[kind]}, found {text[:80]!r}")
    return value


def _arrow(table: str, rows: Sequence[Row]) -> pa.Table:
    columns = dict.fromkeys(name for row in rows for name in row)
    plain = [{**row, FACTS: list(row[FACTS].items())} if FACTS in row else row for row in rows]
    schema = pa.schema([(name, _TYPES[TABLES[table][name]]) for name in columns])
    return pa.Table.from_pylist(plain, schema)


# ---------------------------------------------------------------- rows to a graph


def _entities(lines: Iterable[Row]) -> list[Row]:
    """Merges the lines about each name into one row. An attribute keeps all its values, in order."""
    entities: dict[str | None, Row] = {}
    for line in lines:
        row = entities.setdefault(fold(line["name"]), {"name": line["name"], FACTS: {}})
        for key, value in line.get(FACTS, {}).items():
            row[FACTS][key] = _joined(row[FACTS].get(key), value, "; ")
        if text := line.get("summary_text"):
            row["summary_text"] = _joined(row.get("summary_text"), text, " ")
    return list(entities.values())


def _joined(before: str | None, value: str, by: str) -> str:
    if before is None:
        return value
    return before if value in before.split(by) else f"{before}{by}{value}"


def _tie_films(rows: Mapping[str, list[Row]]) -> None:
    """Numbers films and people, and copies the numbers and films' dates to casts and crews. A server finds
    casts by number. A cast without a date would be visible before its film is out."""
    named: dict[str, dict[str | None, Row]] = {}
    for table, column in (("movie", "title"), ("person", "name")):
        of = rows.get(table, [])
        last = max((row["id"] for row in of if "id" in row), default=0)
        for number, row in enumerate(of, last + 1):
            row.setdefault("id", number)
            if "release_date" in row:
                row.setdefault("year", row["release_date"].year)
        named[table] = {fold(row[column]): row for row in reversed(of)}  # of equal names the first
    for row in (*rows.get("cast", ()), *rows.get("crew", ())):
        film = named["movie"].get(fold(row.get("movie_name")), {})
        person = named["person"].get(fold(row.get("name")), {})
        tied = {"movie_id": film.get("id"), "person_id": person.get("id")}
        tied |= {column: film.get(column) for column in ("year", "release_date")}
        row.update({k: v for k, v in tied.items() if v is not None and k not in row})
