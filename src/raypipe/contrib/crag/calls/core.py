"""Parts that all calls share: linked arguments, and rows of one table by one name.

Rows that are visible at the moment of asking, here and in the other modules of calls:

- films, songs, casts and awards that were out on the asker's day;
- a daily price after its session has closed in New York, and a minute's price after the minute has begun;
- fixtures, but results only after the game: after its day in New York, or two hours after a known kick-off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from raypipe.contrib.crag.language.program import Cond
from raypipe.contrib.crag.language.time_words import When
from raypipe.contrib.crag.relation import ORDER, Relation, Stars
from raypipe.contrib.crag.schema import Kind
from raypipe.contrib.crag.tables import Tables, quoted
from raypipe.text.moments import Moment


@dataclass(frozen=True, slots=True)
class LinkedName:
    """Linked names of one argument of a call."""

    keys: tuple[str, ...] | None  # folded; None: any name; "" is an unknown name; (): a `*` without values
    every: bool = False  # a list in brackets: selects what all of the names share


@dataclass(frozen=True, slots=True)
class LinkedCall:
    tables: Tables
    places: tuple[LinkedName, ...]
    where: tuple[Cond, ...]
    stars: Stars
    when: When | None  # None: the call has no time
    now: Moment
    about: str  # its names and time, in words


CLOSE: Final = "16:00"  # of a session, New York time
_FILM: Final = {"movie_name": "movie film title", "name": "person", "release_date": "date"}
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "movie": {
        "title": "name movie_name film",
        "length": "runtime",
        "genres": "genre",
        "release_date": "date",
        "original_language": "language",
        "revenue": "box_office",
    },
    "person": {"birthday": "birth_date date_of_birth born"},
    "cast": {**_FILM, "name": "person actor", "character": "role"},
    "crew": _FILM,
    "oscar": {"film": "movie movie_name title", "year": "year_ceremony", "name": "person"},
    "artist": {
        "birth_date": "birthday",
        "music": "works songs all_works",
        "birth_place": "birthplace country",
    },
    "song": {"name": "title", "author": "artist", "release_date": "date", "release_country": "country"},
}
"""Table -> column -> other words for it."""
KIND_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    table: {word: column for column, words in columns.items() for word in words.split()}
    for table, columns in _WORDS.items()
}
"""Table -> other word for a column -> the column."""


def listed(tables: Tables, table: str, extra: Mapping[str, str] | None = None) -> str:
    columns = [f"t.{quoted(c)}" for c in tables.columns[table]]
    return ", ".join([*columns, *(f"{sql} AS {quoted(name)}" for name, sql in (extra or {}).items())])


def numbered(columns: Mapping[str, Kind], inner: str, order: str) -> str:
    kept = ", ".join(f"b.{quoted(c)}" for c in columns)
    return f"SELECT {kept}, row_number() OVER (ORDER BY {order}) AS {ORDER} FROM ({inner}) AS b"


def simple(
    call: LinkedCall,
    table: str,
    column: str,
    noun: str,
    kind: str,
    seen: tuple[str, tuple[Any, ...]] = ("1", ()),
    extra: Mapping[str, tuple[str, Kind]] | None = None,
) -> Relation:
    extra = extra or {}
    columns: dict[str, Kind] = {**call.tables.columns[table], **{n: k for n, (_, k) in extra.items()}}
    shown = listed(call.tables, table, {n: sql for n, (sql, _) in extra.items()})
    keys = call.places[0].keys
    text, params = seen
    if keys is None:
        inner, order = f"SELECT {shown}, t.rowid AS _r FROM {quoted(table)} AS t WHERE {text}", "b._r"
    else:
        inner = (
            f"SELECT {shown}, t.rowid AS _r, w.key AS _w FROM json_each(?) AS w "
            f"JOIN {quoted(table)} AS t ON fold(t.{quoted(column)}) = w.value WHERE {text}"
        )
        order, params = "b._w, b._r", (json.dumps(keys), *params)
    rel = Relation(
        numbered(columns, inner, order),
        params,
        columns,
        noun,
        column,
        {kind: column},
        aliases=KIND_WORDS.get(table, {}),
        about=call.about,
    )
    return rel.where(call.where, call.now, call.stars)


def released(now: Moment, dated: bool = True) -> tuple[str, tuple[Any, ...]]:
    """Returns the SQL condition, with parameters, for rows released by the asker's day. `dated`: the table
    has release dates; a row without a date is judged by its year."""
    year = "(t.year IS NULL OR t.year <= ?)"
    if not dated:
        return year, (now.day.year,)
    return f"(t.release_date <= ? OR (t.release_date IS NULL AND {year}))", (str(now.day), now.day.year)
