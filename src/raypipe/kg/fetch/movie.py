"""Films, persons, casts, crews and Oscars."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from raypipe.kg.fetch.core import FetchedTables, Object, mapping, objects
from raypipe.kg.graph import RowRequest
from raypipe.kg.normalize import fold

MOST_FETCHED: Final = 300  # entities by id for one call: an actor's films, a year's


async def movies(rows: FetchedTables, names: Iterable[str]) -> None:
    """Fetches the films that the search finds for each name, with their casts and crews."""
    path = "/movie/get_movie_info"
    for found in await rows.all((path, {"query": n}) for n in names):
        for film in objects(found, path):
            _add_movie(rows, film)


async def _by_id(rows: FetchedTables, ids: Iterable[Any]) -> None:
    path = "/movie/get_movie_info_by_id"
    wanted = [i for i in dict.fromkeys(ids) if ("movie", str(i)) not in rows.done][:MOST_FETCHED]
    for found in await rows.all((path, {"query": i}) for i in wanted):
        film = mapping(found, path)
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
    """Fetches the persons that the search finds for each name; `films`: with the films of exact matches."""
    path, ids = "/movie/get_person_info", list[Any]()
    wanted = list(names)
    for name, found in zip(wanted, await rows.all((path, {"query": n}) for n in wanted), strict=True):
        persons = objects(found, path)
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
    for found in await rows.all((path, {"query": str(y)}) for y in years):
        year = mapping(found, path) or {}
        _add_oscars(rows, year.get("oscar_awards"))
        if films:
            await _by_id(rows, year.get("movie_list") or ())


async def person(rows: FetchedTables, need: RowRequest) -> None:
    await people(rows, need.names[0], films=False)


async def movie(rows: FetchedTables, need: RowRequest) -> None:
    await movies(rows, need.names[0])
    if not need.names[0]:
        await _years(rows, need.years, films=True)


async def ties(rows: FetchedTables, need: RowRequest) -> None:
    """What ties films and persons: casts, crews, Oscars."""
    films, persons = need.names
    oscar = need.function.endswith("oscar")
    await movies(rows, films)
    if persons:  # with a film named, the person's name is enough: it shows a contradiction
        await people(rows, persons, films=not oscar and not films)
    if not films and not persons:
        await _years(rows, need.years, films=not oscar)
