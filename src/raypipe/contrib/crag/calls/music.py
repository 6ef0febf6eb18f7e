"""Artists, songs and Grammys, and entities of the open domain."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from raypipe.contrib.crag.calls.core import LinkedCall, numbered, simple
from raypipe.contrib.crag.graph import FetchedTables, GraphFault, RowRequest, mapping, strings
from raypipe.contrib.crag.names import fold
from raypipe.contrib.crag.relation import Relation
from raypipe.contrib.crag.schema import ENDPOINT_OF, Kind
from raypipe.contrib.crag.tables import quoted


def artist(call: LinkedCall) -> Relation:
    span = "json_array(t.birth_date, t.end_date)"
    span = f"CASE WHEN coalesce(t.birth_date, t.end_date) IS NOT NULL THEN {span} END"
    return simple(call, "artist", "name", "artist", "artist", extra={"lifespan": (span, "list")})


def song(call: LinkedCall) -> Relation:
    seen = ("(t.release_date IS NULL OR t.release_date <= ?)", (str(call.now.day),))
    rel = simple(call, "song", "name", "song", "song", seen)
    return replace(rel, named={"song": "name", "artist": "author"})


def entity(call: LinkedCall) -> Relation:
    return simple(call, "entity", "name", "entity", "entity")


def grammys(kind: str, call: LinkedCall) -> Relation:
    """Selects Grammy awards of artists or songs: a source's own count if there is one, else a count of
    `grammy`. Artists have the years of their awards."""
    column = {"artist": "artist", "song": "nominee"}[kind]
    years = (
        "(SELECT json_group_array(y.year) FROM (SELECT DISTINCT g.year FROM grammy AS g WHERE g.winner AND "
        "fold(g.artist) = w.value AND g.year <= ? ORDER BY g.year) AS y)"
    )
    table, keys = f"grammy_{kind}", call.places[0].keys
    columns = call.tables.columns[table]
    year, params = call.now.day.year, []
    if keys is None:
        names = f"(SELECT DISTINCT fold({column}) AS value, 0 AS key FROM grammy)"
    else:
        names, params = "json_each(?)", [json.dumps(keys)]
    spelled = " , ".join(
        f"(SELECT x.{c} FROM {t} AS x WHERE fold(x.{c}) = w.value)"
        for t, c in (("grammy", column), (kind, "name"))
    )
    best = "" if kind == "artist" else " AND fold(g.category) NOT LIKE '%new artist%'"
    won = f"g.winner AND fold(g.{column}) = w.value AND g.year <= ?{best}"
    count = f"(SELECT count(*) FROM grammy AS g WHERE {won})"
    given = f"SELECT 1 FROM {quoted(table)} AS a WHERE fold(a.name) = w.value"
    more = f", {years} AS award_date" if kind == "artist" else ""
    shown_of = ", ".join(f"a.{quoted(c)}" for c in columns)
    inner = (
        f"SELECT coalesce({spelled}, w.value) AS name, {count} AS award_count{more}, w.key AS _w "
        f"FROM {names} AS w WHERE NOT EXISTS ({given}) "
        f"UNION ALL SELECT {shown_of}, w.key FROM {names} AS w "
        f"JOIN {quoted(table)} AS a ON fold(a.name) = w.value"
    )
    shown: dict[str, Kind] = {c: columns[c] for c in ("name", "award_count", "award_date") if c in columns}
    both = (year, *([year] if kind == "artist" else []), *params, *params)
    return Relation(
        numbered(shown, inner, "b._w"),
        both,
        shown,
        table.replace("_", " "),
        "name",
        {kind: "name"},
        "award_count",
        {"awards": "award_count", "award_year": "award_date", "year": "award_date"},
        call.about,
    )


_BEST: Final = {
    "best_new_artist": "best new artist",
    "best_album": "album of the year",
    "best_song": "song of the year",
}


def grammy_year(call: LinkedCall) -> Relation:
    keys = call.places[0].keys or ()
    try:
        years = [int(k) for k in keys]
    except ValueError:
        raise GraphFault("bad_time", f"expected a year, found {' '.join(keys)!r}") from None
    if call.places[0].keys is None:
        raise GraphFault("bad_time", "expected a year, found None")
    columns = call.tables.columns["grammy_year"]
    picked = ", ".join(
        f"(SELECT g.nominee FROM grammy AS g WHERE g.year = w.value AND g.winner "
        f"AND fold(g.category) = '{category}') AS {name}"
        for name, category in _BEST.items()
    )
    inner = (
        f"SELECT w.value AS year, {picked}, w.key AS _w FROM json_each(?) AS w "
        "WHERE w.value IN (SELECT year FROM grammy) "
        "UNION ALL SELECT a.year, a.best_new_artist, a.best_album, a.best_song, w.key FROM json_each(?) AS w "
        "JOIN grammy_year AS a ON a.year = w.value"
    )
    shown = {c: columns[c] for c in ("year", *_BEST)}
    given = json.dumps([y for y in years if y <= call.now.day.year])
    return Relation(
        numbered(shown, inner, "b._w"), (given, given), shown, "grammy year", "year", about=call.about
    )


# ---------------------------------------------------------------- from a server

MOST_NAMES: Final = 3  # names fetched if a search finds no exact name


_ARTISTS, _SONGS = "/music/search_artist_entity_by_name", "/music/search_song_entity_by_name"


async def _search_results(
    rows: FetchedTables, need: RowRequest, table: str, search: str, parts: tuple[str, ...]
) -> AsyncIterator[tuple[str, list[Any]]]:
    """Yields each name that a search finds, once, with the replies of the endpoints `parts` about it. Only
    names equal to the query in folded form count; if there are none, the first few results count."""
    names = []
    for name in need.names[0]:
        results = strings(await rows.ask(search, {"query": name}), search)
        names += [n for n in results if fold(n) == fold(name)] or results[:MOST_NAMES]
    for name in names:
        if rows.new(table, name):
            yield name, await rows.all((part, {"query": name}) for part in parts)


async def fetch_artist(rows: FetchedTables, need: RowRequest) -> None:
    parts = ENDPOINT_OF["artist"]
    async for name, replies in _search_results(rows, need, "artist", _ARTISTS, tuple(parts.values())):
        row = dict(zip(parts, replies, strict=True))
        span, members, works = row["lifespan"], row["members"] or [], row["music"] or []
        ended = span[1] if isinstance(span, list) and len(span) == 2 else None
        own = {"group": bool(members), "end_date": ended, "members": members, "music": works}
        rows.tables.insert("artist", [{"name": name, **row, **own}])


async def fetch_song(rows: FetchedTables, need: RowRequest) -> None:
    parts = ENDPOINT_OF["song"]
    async for name, replies in _search_results(rows, need, "song", _SONGS, tuple(parts.values())):
        rows.tables.insert("song", [{"name": name, **dict(zip(parts, replies, strict=True))}])


async def fetch_grammy_artist(rows: FetchedTables, need: RowRequest) -> None:
    paths = ("/music/grammy_get_award_count_by_artist", "/music/grammy_get_award_date_by_artist")
    async for name, (count, years) in _search_results(rows, need, "grammy_artist", _ARTISTS, paths):
        seen = sorted({int(y) for y in years or () if int(y) <= need.now.day.year})
        rows.tables.insert("grammy_artist", [{"name": name, "award_count": count, "award_date": seen}])


async def fetch_grammy_song(rows: FetchedTables, need: RowRequest) -> None:
    paths = ("/music/grammy_get_award_count_by_song",)
    async for name, (count,) in _search_results(rows, need, "grammy_song", _SONGS, paths):
        rows.tables.insert("grammy_song", [{"name": name, "award_count": count}])


async def fetch_entity(rows: FetchedTables, need: RowRequest) -> None:
    path = "/open/get_entity"
    async for name, (reply,) in _search_results(rows, need, "entity", "/open/search_entity_by_name", (path,)):
        if (entity := mapping(reply, path)) is not None:
            text, facts = entity.get("summary_text"), entity.get("summary_structured") or {}
            rows.tables.insert("entity", [{"name": name, "summary_text": text, "summary_structured": facts}])


async def fetch_grammy_year(rows: FetchedTables, need: RowRequest) -> None:
    for word in need.names[0]:
        if not re.fullmatch(r"\d{4}", word) or not rows.new("grammy_year", word):
            continue
        parts = ("artist", "album", "song")
        found = await rows.all((f"/music/grammy_get_best_{p}_by_year", {"query": int(word)}) for p in parts)
        names = [", ".join(map(str, f)) if isinstance(f, list) else f for f in found]
        if any(names):
            best = dict(zip(("best_new_artist", "best_album", "best_song"), names, strict=True))
            rows.tables.insert("grammy_year", [{"year": int(word), **best}])
