"""Films, people, casts, crews and Oscars: their relations, and requests that fetch their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from raypipe.contrib.crag.calls.core import KIND_WORDS, LinkedCall, listed, numbered, released, simple
from raypipe.contrib.crag.graph import FetchedTables, Object, RowRequest, mapping, objects
from raypipe.contrib.crag.names import fold
from raypipe.contrib.crag.relation import Relation, conditions
from raypipe.contrib.crag.tables import quoted


def person(call: LinkedCall) -> Relation:
    return simple(call, "person", "name", "person", "person")


def movie(call: LinkedCall) -> Relation:
    return simple(call, "movie", "title", "movie", "movie", released(call.now))


def tied(table: str, call: LinkedCall) -> Relation:
    """Selects rows of the table cast, crew or oscar, which tie a film and a person. A list of names in
    brackets selects what all of them share, each once: the films that two people were both in."""
    film = "film" if table == "oscar" else "movie_name"
    columns = call.tables.columns[table]
    seen, params = released(call.now, dated=table != "oscar")
    base = f"SELECT {listed(call.tables, table)}, t.rowid AS _r FROM {quoted(table)} AS t WHERE {seen}"
    label = "name" if call.places[0].keys is not None or call.places[1].keys is None else film
    named = {"movie": film, "person": "name"}
    bare = Relation(base, params, columns, table, label, named, aliases=KIND_WORDS[table], about=call.about)
    if call.where:
        text, more = conditions(bare, call.where, call.now, call.stars)
        kept = ", ".join(f"r.{quoted(c)}" for c in columns)
        base, params = f"SELECT {kept}, r._r FROM ({base}) AS r WHERE {text}", (*params, *more)
    inner, inside, order = _narrowed(call, table, film)
    sql = f"WITH f AS ({base}) {numbered(columns, inner, order)}"
    return replace(bare, sql=sql, params=(*params, *inside))


def _narrowed(call: LinkedCall, table: str, film: str) -> tuple[str, tuple[Any, ...], str]:
    """Selects the rows of `f` that fit both name arguments; returns SQL, parameters and order."""
    tests, joins, once = list[str](), list[str](), ""
    params, later = list[Any](), list[Any]()
    ids = ("person_id", "movie_id") if table != "oscar" else ("", "")
    for i, (place, column) in enumerate(zip(call.places, (film, "name"), strict=False)):
        if place.keys is None:
            continue
        if place.every and len(place.keys) > 1:
            same = f"fold({{0}}.{('name', film)[i]})"
            same = f"coalesce({{0}}.{ids[i]}, {same})" if ids[i] else same
            other = f"SELECT {same.format('g')} FROM f AS g WHERE {_test(table, column, '?', 'g')}"
            tests.append(_test(table, column, "?"))
            tests += [f"{same.format('f')} IN ({other})"] * (len(place.keys) - 1)
            later += place.keys
            # with min, SQLite takes the other columns from the row of the minimum
            once = f" GROUP BY {same.format('f')} HAVING min(f._r)"
            continue
        joins.append(f"w{i}")
        params.append(json.dumps(place.keys))
        tests.append(_test(table, column, f"w{i}.value"))
    ranks = "".join(f", {w}.key AS _{w}" for w in joins)
    source = "".join(f"json_each(?) AS {w}, " for w in joins) + "f"
    kept = f" WHERE {' AND '.join(tests)}" if tests else ""
    order = "".join(f"b._{w}, " for w in joins) + "b._r"
    return f"SELECT f.*{ranks} FROM {source}{kept}{once}", (*params, *later), order


def _test(table: str, column: str, value: str, row: str = "f") -> str:
    """Returns the SQL condition that a column has a folded name. An Oscar's name may hold several people, as
    in "Joel Coen and Ethan Coen": each of them fits."""
    if table == "oscar" and column == "name":
        return f"instr(' ' || fold({row}.name) || ' ', ' ' || {value} || ' ') > 0"
    return f"fold({row}.{quoted(column)}) = {value}"


# ---------------------------------------------------------------- from a server

MOST_FETCHED: Final = 300  # films by id for one call: those of an actor or a year


async def movies(rows: FetchedTables, names: Iterable[str]) -> None:
    """Fetches the films that the search finds for each name, with their casts and crews."""
    path = "/movie/get_movie_info"
    for reply in await rows.all((path, {"query": n}) for n in names):
        for film in objects(reply, path):
            _add_movie(rows, film)


async def _by_id(rows: FetchedTables, ids: Iterable[Any]) -> None:
    path = "/movie/get_movie_info_by_id"
    wanted = [i for i in dict.fromkeys(ids) if ("movie", str(i)) not in rows.done][:MOST_FETCHED]
    for reply in await rows.all((path, {"query": i}) for i in wanted):
        film = mapping(reply, path)
        if film is not None:
            _add_movie(rows, film)


def _add_movie(rows: FetchedTables, film: Object) -> None:
    if film.get("title") is None or not rows.new("movie", film.get("id", film["title"])):
        return
    day = str(film.get("release_date") or "")
    year = int(day[:4]) if re.match(r"\d{4}", day) else None
    rows.tables.insert("movie", [{**film, "year": year, "release_date": day or None}])
    tie = {"movie_id": film.get("id"), "movie_name": film["title"], "year": year, "release_date": day or None}
    for table in ("cast", "crew"):
        rows.tables.insert(table, [{**p, **tie, "person_id": p.get("id")} for p in film.get(table) or ()])
    _add_oscars(rows, film.get("oscar_awards"))


def _add_oscars(rows: FetchedTables, awards: Any) -> None:
    for award in awards or ():
        identity = tuple(award.get(k) for k in ("year_ceremony", "category", "name", "film"))
        if rows.new("oscar", identity):
            rows.tables.insert("oscar", [{**award, "year": award.get("year_ceremony")}])


async def people(rows: FetchedTables, names: Iterable[str], films: bool) -> None:
    """Fetches the persons that the search finds for each name. `films`: also fetches films, those of exact
    matches or else of the first person found."""
    path, ids = "/movie/get_person_info", list[Any]()
    wanted = list(names)
    for name, reply in zip(wanted, await rows.all((path, {"query": n}) for n in wanted), strict=True):
        persons = objects(reply, path)
        for p in persons:
            if rows.new("person", p.get("id", p.get("name"))):
                rows.tables.insert("person", [p])
            _add_oscars(rows, p.get("oscar_awards"))
        meant = [p for p in persons if fold(p.get("name")) == fold(name)] or persons[:1]
        ids += [i for p in meant for k in ("acted_movies", "directed_movies") for i in p.get(k) or ()]
    if films:
        await _by_id(rows, ids)


async def _years(rows: FetchedTables, years: Iterable[int], films: bool) -> None:
    path = "/movie/get_year_info"  # years are strings there
    for reply in await rows.all((path, {"query": str(y)}) for y in years):
        year = mapping(reply, path) or {}
        _add_oscars(rows, year.get("oscar_awards"))
        if films:
            await _by_id(rows, year.get("movie_list") or ())


async def fetch_person(rows: FetchedTables, need: RowRequest) -> None:
    await people(rows, need.names[0], films=False)


async def fetch_movie(rows: FetchedTables, need: RowRequest) -> None:
    await movies(rows, need.names[0])
    if not need.names[0]:
        await _years(rows, need.years, films=True)


async def fetch_ties(rows: FetchedTables, need: RowRequest) -> None:
    """Fetches rows that tie films and persons: casts, crews, Oscars."""
    films, persons = need.names
    oscar = need.function.endswith("oscar")
    await movies(rows, films)
    if persons:  # with a film given, the persons' films are not needed to show a contradiction
        await people(rows, persons, films=not oscar and not films)
    if not films and not persons:
        await _years(rows, need.years, films=not oscar)
