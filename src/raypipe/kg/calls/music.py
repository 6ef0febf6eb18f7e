"""Artists, songs and Grammys; and entities of the open domain."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from raypipe.kg.calls.core import LinkedCall, numbered, simple
from raypipe.kg.graph import GraphFault
from raypipe.kg.relation import Relation
from raypipe.kg.schema import Kind
from raypipe.kg.tables import quoted


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


def grammy_artist(call: LinkedCall) -> Relation:
    years = (
        "(SELECT json_group_array(y.year) FROM (SELECT DISTINCT g.year FROM grammy AS g WHERE g.winner AND "
        "fold(g.artist) = w.value AND g.year <= ? ORDER BY g.year) AS y)"
    )
    return _counted(call, "artist", "artist", years)


def grammy_song(call: LinkedCall) -> Relation:
    return _counted(call, "song", "nominee", None)


def _counted(call: LinkedCall, kind: str, column: str, years: str | None) -> Relation:
    """Awards by name: as the source counted them, else counted here."""
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
    best = "" if column == "artist" else " AND fold(g.category) NOT LIKE '%new artist%'"
    won = f"g.winner AND fold(g.{column}) = w.value AND g.year <= ?{best}"
    count = f"(SELECT count(*) FROM grammy AS g WHERE {won})"
    given = f"SELECT 1 FROM {quoted(table)} AS a WHERE fold(a.name) = w.value"
    more = f", {years} AS award_date" if years else ""
    shown_of = ", ".join(f"a.{quoted(c)}" for c in columns)
    inner = (
        f"SELECT coalesce({spelled}, w.value) AS name, {count} AS award_count{more}, w.key AS _w "
        f"FROM {names} AS w WHERE NOT EXISTS ({given}) "
        f"UNION ALL SELECT {shown_of}, w.key FROM {names} AS w "
        f"JOIN {quoted(table)} AS a ON fold(a.name) = w.value"
    )
    shown: dict[str, Kind] = {c: columns[c] for c in ("name", "award_count", "award_date") if c in columns}
    both = (year, *([year] if years else []), *params, *params)
    return Relation(
        numbered(shown, inner, "b._w"), both, shown, table.replace("_", " "), "name",
        {kind: "name"}, "award_count",
        {"awards": "award_count", "award_year": "award_date", "year": "award_date"}, call.about,
    )  # fmt: skip


_BEST: Final = {
    "best_new_artist": "best new artist", "best_album": "album of the year",
    "best_song": "song of the year",
}  # fmt: skip


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
