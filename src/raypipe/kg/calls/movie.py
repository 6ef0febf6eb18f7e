"""Films, people, and the relations between them: casts, crews, Oscars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raypipe.kg.calls.core import KIND_WORDS, LinkedCall, listed, numbered, released, simple
from raypipe.kg.relation import Relation, conditions
from raypipe.kg.tables import quoted


def person(call: LinkedCall) -> Relation:
    return simple(call, "person", "name", "person", "person")


def movie(call: LinkedCall) -> Relation:
    return simple(call, "movie", "title", "movie", "movie", released(call.now))


def linked(table: str) -> Callable[[LinkedCall], Relation]:
    """Rows of cast, crew or oscar, each of a film and a person.

    A bracket list in one place keeps what belongs to every name in it, once: the films that two people were
    both in."""

    def build(call: LinkedCall) -> Relation:
        film = "film" if table == "oscar" else "movie_name"
        columns = call.tables.columns[table]
        seen, params = released(call.now, dated=table != "oscar")
        base = f"SELECT {listed(call.tables, table)}, t.rowid AS _r FROM {quoted(table)} AS t WHERE {seen}"
        label = "name" if call.places[0].keys is not None or call.places[1].keys is None else film
        named = {"movie": film, "person": "name"}
        bare = Relation(
            base, params, columns, table, label, named, aliases=KIND_WORDS[table], about=call.about
        )
        if call.where:
            text, more = conditions(bare, call.where, call.now, call.stars)
            kept = ", ".join(f"r.{quoted(c)}" for c in columns)
            base, params = f"SELECT {kept}, r._r FROM ({base}) AS r WHERE {text}", (*params, *more)
        inner, inside, order = _narrowed(call, table, film)
        sql = f"WITH f AS ({base}) {numbered(columns, inner, order)}"
        return replace(bare, sql=sql, params=(*params, *inside))

    return build


def _narrowed(call: LinkedCall, table: str, film: str) -> tuple[str, tuple[Any, ...], str]:
    """The rows of `f` that fit both name places: SQL, parameters, order."""
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
            # with min, SQLite returns the other columns of that row
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
    """An Oscar's name may be several people's: "Joel Coen and Ethan Coen"."""
    if table == "oscar" and column == "name":
        return f"instr(' ' || fold({row}.name) || ' ', ' ' || {value} || ' ') > 0"
    return f"fold({row}.{quoted(column)}) = {value}"
