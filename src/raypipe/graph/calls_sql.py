"""Each call as a relation over the tables. Nothing that happened after the moment of asking is in it.

What may be seen: films, songs, casts and awards that were out on the asker's day; a daily price when its session
has closed in New York; a price of a minute when the minute has begun; a fixture at any time, but its result when
the game is over: after its day in New York, or two hours after a kick-off that is known.

Knows SQL and the tables. Does not know names: they come linked, as keys (`fold`) for each place of the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from raypipe.graph.graph import GraphFault
from raypipe.graph.relation import ORDER, Relation, conditions
from raypipe.graph.schema import Kind
from raypipe.graph.tables import Tables, quoted
from raypipe.text.program import Cond
from raypipe.text.times import Moment, When


@dataclass(frozen=True, slots=True)
class Place:
    """A name place of a call, linked."""

    keys: tuple[str, ...] | None  # folded names; None: free; (): a name that the graph does not know
    every: bool = False  # a bracket list: what belongs to all of them


@dataclass(frozen=True, slots=True)
class Asked:
    """A call, ready to become SQL."""

    tables: Tables
    places: tuple[Place, ...]
    where: tuple[Cond, ...]
    star: tuple[Any, ...]
    when: When | None
    now: Moment
    about: str


CLOSE: Final = "16:00"  # New York
KIND_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "movie": {"name": "title", "movie_name": "title", "film": "title", "runtime": "length", "genre": "genres",
              "date": "release_date", "language": "original_language", "box_office": "revenue"},
    "person": {"birth_date": "birthday", "date_of_birth": "birthday", "born": "birthday"},
    "cast": {"movie": "movie_name", "film": "movie_name", "title": "movie_name", "actor": "name", "role": "character",
             "person": "name", "date": "release_date"},
    "crew": {"movie": "movie_name", "film": "movie_name", "title": "movie_name", "person": "name", "date": "release_date"},
    "oscar": {"movie": "film", "movie_name": "film", "title": "film", "year_ceremony": "year", "person": "name"},
    "artist": {"birthday": "birth_date", "works": "music", "songs": "music", "all_works": "music",
               "birthplace": "birth_place", "country": "birth_place"},
    "song": {"title": "name", "artist": "author", "date": "release_date", "country": "release_country"},
}  # fmt: skip


def _listed(tables: Tables, table: str, extra: Mapping[str, str] | None = None) -> str:
    columns = [f"t.{quoted(c)}" for c in tables.columns[table]]
    return ", ".join([*columns, *(f"{sql} AS {quoted(name)}" for name, sql in (extra or {}).items())])


def _numbered(columns: Mapping[str, Kind], inner: str, order: str) -> str:
    kept = ", ".join(f"b.{quoted(c)}" for c in columns)
    return f"SELECT {kept}, row_number() OVER (ORDER BY {order}) AS {ORDER} FROM ({inner}) AS b"


def _simple(
    asked: Asked,
    table: str,
    column: str,
    noun: str,
    kind: str,
    seen: tuple[str, tuple[Any, ...]] = ("1", ()),
    extra: Mapping[str, tuple[str, Kind]] | None = None,
) -> Relation:
    """Rows of one table by one name."""
    extra = extra or {}
    columns: dict[str, Kind] = {**asked.tables.columns[table], **{n: k for n, (_, k) in extra.items()}}
    listed = _listed(asked.tables, table, {n: sql for n, (sql, _) in extra.items()})
    place = asked.places[0]
    text, params = seen
    if place.keys is None:
        inner, order = f"SELECT {listed}, t.rowid AS _r FROM {quoted(table)} AS t WHERE {text}", "b._r"
    else:
        inner = (
            f"SELECT {listed}, t.rowid AS _r, w.key AS _w FROM json_each(?) AS w "
            f"JOIN {quoted(table)} AS t ON fold(t.{quoted(column)}) = w.value WHERE {text}"
        )
        order, params = "b._w, b._r", (json.dumps(place.keys), *params)
    rel = Relation(
        _numbered(columns, inner, order),
        params,
        columns,
        noun,
        column,
        {kind: column},
        aliases=KIND_WORDS.get(table, {}),
        about=asked.about,
    )
    return rel.where(asked.where, asked.now, asked.star)


def _released(now: Moment, dated: bool = True) -> tuple[str, tuple[Any, ...]]:
    """Out on the asker's day, as far as the table knows when."""
    day = str(now.day)
    year = "(t.year IS NULL OR t.year <= ?)"
    if not dated:
        return year, (now.day.year,)
    return f"(t.release_date <= ? OR (t.release_date IS NULL AND {year}))", (day, now.day.year)


# ---------------------------------------------------------------- movie


def person(asked: Asked) -> Relation:
    return _simple(asked, "person", "name", "person", "person")


def movie(asked: Asked) -> Relation:
    return _simple(asked, "movie", "title", "movie", "movie", _released(asked.now))


def linked(table: str) -> Callable[[Asked], Relation]:
    """cast, crew, oscar: rows that tie a film to a person. A bracket list in one place leaves what belongs to
    every name in it, once: the films that two people were both in."""

    def build(asked: Asked) -> Relation:
        film = "film" if table == "oscar" else "movie_name"
        columns = asked.tables.columns[table]
        seen, params = _released(asked.now, dated=table != "oscar")
        base = f"SELECT {_listed(asked.tables, table)}, t.rowid AS _r FROM {quoted(table)} AS t WHERE {seen}"
        label = "name" if asked.places[0].keys is not None or asked.places[1].keys is None else film
        named = {"movie": film, "person": "name"}
        words = KIND_WORDS[table]
        bare = Relation(base, params, columns, table, label, named, aliases=words, about=asked.about)
        if asked.where:
            text, more = conditions(bare, asked.where, asked.now, asked.star)
            kept = ", ".join(f"r.{quoted(c)}" for c in columns)
            base, params = f"SELECT {kept}, r._r FROM ({base}) AS r WHERE {text}", (*params, *more)
        inner, inside, order = _narrowed(asked, table, film)
        sql = f"WITH f AS ({base}) {_numbered(columns, inner, order)}"
        return Relation(
            sql, (*params, *inside), columns, table, label, named, aliases=words, about=asked.about
        )

    return build


def _narrowed(asked: Asked, table: str, film: str) -> tuple[str, tuple[Any, ...], str]:
    """The rows of `f` that fit both name places: SQL, parameters, order."""
    tests: list[str] = []
    joins: list[str] = []
    params: list[Any] = []
    later: list[Any] = []
    order: list[str] = []
    once = ""
    ids = {"movie": "movie_id", "name": "person_id"} if table != "oscar" else {}
    for i, (place, column) in enumerate(zip(asked.places, (film, "name"), strict=False)):
        if place.keys is None:
            continue
        if place.every and len(place.keys) > 1:
            other = "name" if i == 0 else film
            number = ids.get("name" if i == 0 else "movie")
            same = f"coalesce({{0}}.{number}, fold({{0}}.{other}))" if number else f"fold({{0}}.{other})"
            tests.append(_test(table, column, "?"))
            later.append(place.keys[0])
            for key in place.keys[1:]:
                there = _test(table, column, "?", "g")
                tests.append(f"{same.format('f')} IN (SELECT {same.format('g')} FROM f AS g WHERE {there})")
                later.append(key)
            once = f" GROUP BY {same.format('f')} HAVING min(f._r)"  # with min, SQLite keeps that very row
            continue
        joins.append(f"json_each(?) AS w{i}")
        params.append(json.dumps(place.keys))
        tests.append(_test(table, column, f"w{i}.value"))
        order.append(f"b._w{i}")
    ranks = "".join(
        f", {o.removeprefix('b.').replace('_w', 'w')}.key AS {o.removeprefix('b.')}" for o in order
    )
    source = ", ".join([*joins, "f"])
    kept = f" WHERE {' AND '.join(tests)}" if tests else ""
    return f"SELECT f.*{ranks} FROM {source}{kept}{once}", (*params, *later), ", ".join([*order, "b._r"])


def _test(table: str, column: str, value: str, row: str = "f") -> str:
    """An Oscar's name may be several people's: "Joel Coen and Ethan Coen"."""
    if table == "oscar" and column == "name":
        return f"instr(' ' || fold({row}.name) || ' ', ' ' || {value} || ' ') > 0"
    return f"fold({row}.{quoted(column)}) = {value}"


# ---------------------------------------------------------------- finance


def metric(column: str) -> Callable[[Asked], Relation]:
    """A company's market cap, earnings per share or P/E ratio."""

    def build(asked: Asked) -> Relation:
        rel = _simple(asked, "company", "ticker", "company", "company")
        columns: dict[str, Kind] = {
            "ticker": "text",
            "name": "text",
            column: rel.columns[column],
            "value": rel.columns[column],
        }
        sql = (
            f"SELECT r.ticker, coalesce(r.name, r.ticker) AS name, r.{quoted(column)}, r.{quoted(column)} AS value, r.{ORDER} "
            f"FROM ({rel.sql}) AS r"
        )
        return Relation(
            sql, rel.params, columns, "company", "name", {"company": "ticker"}, column, about=asked.about
        )

    return build


_NAMED: Final = "coalesce((SELECT c.name FROM company AS c WHERE fold(c.ticker) = fold(t.ticker)), t.ticker)"


def dividend(asked: Asked) -> Relation:
    seen = ("t.date <= ?", (str(asked.now.eastern.date()),))
    rel = _simple(
        asked, "dividend", "ticker", "dividend", "company", seen,
        {"name": (_NAMED, "text"), "time": ("t.date", "date")},
    )  # fmt: skip
    return Relation(
        rel.sql,
        rel.params,
        rel.columns,
        "dividend",
        "name",
        {"company": "ticker"},
        "value",
        about=asked.about,
    )


def price(asked: Asked) -> Relation:
    """Daily bars, or the minute of "latest". One day without trading gives the next session, or else the last."""
    there, east = asked.when, asked.now.eastern
    assert there is not None
    if there.kind == "latest":
        minute = _minute(asked)
        if asked.tables.query(f"SELECT 1 FROM ({minute.sql}) LIMIT 1", minute.params):
            return minute
        return _edge(asked, "DESC")
    if there.kind == "earliest":
        return _edge(asked, "")
    if there.kind != "days":
        raise GraphFault("bad_time", "expected a day, a period, latest or ipo of a price")
    closed = (
        "(t.date < ? OR (t.date = ? AND ? >= ?))",
        (str(east.date()), str(east.date()), f"{east:%H:%M}", CLOSE),
    )
    text = f"t.date BETWEEN ? AND ? AND {closed[0]}"
    rel = _bars(asked, (text, (str(there.first), str(there.last), *closed[1])))
    if there.first != there.last or asked.tables.query(f"SELECT 1 FROM ({rel.sql}) LIMIT 1", rel.params):
        return rel
    for order, side in (("min", ">"), ("max", "<")):
        near = (
            f"t.date = (SELECT {order}(u.date) FROM price AS u WHERE u.ticker = t.ticker AND u.date {side} ? "
            f"AND {closed[0].replace('t.', 'u.')})"
        )
        other = _bars(asked, (near, (str(there.first), *closed[1])))
        found = asked.tables.query(f"SELECT r.date FROM ({other.sql}) AS r LIMIT 1", other.params)
        if found:
            note = f"There is no trading record of {there.first}; the nearest is of {found[0][0]}."
            return _bars(asked, (near, (str(there.first), *closed[1])), note)
    return rel


def _bars(asked: Asked, seen: tuple[str, tuple[Any, ...]], note: str = "") -> Relation:
    rel = _simple(
        asked, "price", "ticker", "price", "company", seen,
        {"name": (_NAMED, "text"), "time": ("t.date", "date")},
    )  # fmt: skip
    sql = _numbered(rel.columns, rel.sql, "b.ticker, b.date") if asked.places[0].keys is None else rel.sql
    notes = (note,) if note else ()
    words = {"day": "date"}
    return Relation(
        sql,
        rel.params,
        rel.columns,
        "price",
        "name",
        {"company": "ticker"},
        "close",
        words,
        asked.about,
        notes,
    )


def _edge(asked: Asked, down: str) -> Relation:
    """Each company's first or last daily bar."""
    east, order = asked.now.eastern, "max" if down else "min"
    closed = "(u.date < ? OR (u.date = ? AND ? >= ?))"
    text = f"t.date = (SELECT {order}(u.date) FROM price AS u WHERE u.ticker = t.ticker AND {closed})"
    return _bars(asked, (text, (str(east.date()), str(east.date()), f"{east:%H:%M}", CLOSE)))


def _minute(asked: Asked) -> Relation:
    """Each company's last minute that has begun, its opening rounded to cents."""
    east = asked.now.eastern
    now = (str(east.date()), f"{east:%H:%M}")
    text = (
        "t.rowid = (SELECT u.rowid FROM price_detail AS u WHERE u.ticker = t.ticker AND (u.date, u.time) <= (?, ?) "
        "ORDER BY u.date DESC, u.time DESC LIMIT 1)"
    )
    rel = _simple(
        asked, "price_detail", "ticker", "price", "company", (text, now), {"name": (_NAMED, "text")}
    )
    kept = ", ".join("round(r.open, 2) AS open" if c == "open" else f"r.{quoted(c)}" for c in rel.columns)
    sql = f"SELECT {kept}, r.{ORDER} FROM ({rel.sql}) AS r"
    return Relation(
        sql, rel.params, rel.columns, "price", "name", {"company": "ticker"}, "open", about=asked.about
    )


# ---------------------------------------------------------------- music, open


def artist(asked: Asked) -> Relation:
    span = "CASE WHEN t.birth_date IS NULL AND t.end_date IS NULL THEN NULL ELSE json_array(t.birth_date, t.end_date) END"
    return _simple(asked, "artist", "name", "artist", "artist", extra={"lifespan": (span, "list")})


def song(asked: Asked) -> Relation:
    seen = ("(t.release_date IS NULL OR t.release_date <= ?)", (str(asked.now.day),))
    rel = _simple(asked, "song", "name", "song", "song", seen)
    return Relation(
        rel.sql, rel.params, rel.columns, "song", "name", {"song": "name", "artist": "author"},
        aliases=KIND_WORDS["song"], about=asked.about,
    )  # fmt: skip


def entity(asked: Asked) -> Relation:
    return _simple(asked, "entity", "name", "entity", "entity")


def grammy_artist(asked: Asked) -> Relation:
    years = (
        "(SELECT json_group_array(y.year) FROM (SELECT DISTINCT g.year FROM grammy AS g WHERE g.winner AND "
        "fold(g.artist) = w.value AND g.year <= ? ORDER BY g.year) AS y)"
    )
    return _counted(asked, "grammy_artist", "artist", ("grammy", "artist"), ("artist", "name"), years)


def grammy_song(asked: Asked) -> Relation:
    return _counted(asked, "grammy_song", "nominee", ("grammy", "nominee"), ("song", "name"), None)


def _counted(
    asked: Asked,
    table: str,
    column: str,
    first: tuple[str, str],
    second: tuple[str, str],
    years: str | None,
) -> Relation:
    """Awards by name: as the source counted them, else counted here."""
    keys = asked.places[0].keys
    columns = asked.tables.columns[table]
    year, params = asked.now.day.year, []
    if keys is None:
        names = f"(SELECT DISTINCT fold({column}) AS value, 0 AS key FROM grammy)"
    else:
        names, params = "json_each(?)", [json.dumps(keys)]
    spelled = " , ".join(
        f"(SELECT x.{c} FROM {t} AS x WHERE fold(x.{c}) = w.value)" for t, c in (first, second)
    )
    best = "" if column == "artist" else " AND fold(g.category) NOT LIKE '%new artist%'"
    count = f"(SELECT count(*) FROM grammy AS g WHERE g.winner AND fold(g.{column}) = w.value AND g.year <= ?{best})"
    given = f"SELECT 1 FROM {quoted(table)} AS a WHERE fold(a.name) = w.value"
    more = f", {years} AS award_date" if years else ""
    listed = ", ".join(f"a.{quoted(c)}" for c in columns)
    inner = (
        f"SELECT coalesce({spelled}, w.value) AS name, {count} AS award_count{more}, w.key AS _w FROM {names} AS w "
        f"WHERE NOT EXISTS ({given}) "
        f"UNION ALL SELECT {listed}, w.key FROM {names} AS w JOIN {quoted(table)} AS a ON fold(a.name) = w.value"
    )
    shown: dict[str, Kind] = {c: columns[c] for c in ("name", "award_count", "award_date") if c in columns}
    both = (year, *([year] if years else []), *params, *params)
    return Relation(
        _numbered(shown, inner, "b._w"), both, shown, table.replace("_", " "), "name",
        {"artist" if column == "artist" else "song": "name"}, "award_count",
        {"awards": "award_count", "award_year": "award_date", "year": "award_date"}, asked.about,
    )  # fmt: skip


_BEST: Final = {
    "best_new_artist": "best new artist",
    "best_album": "album of the year",
    "best_song": "song of the year",
}


def grammy_year(asked: Asked) -> Relation:
    keys = asked.places[0].keys or ()
    try:
        years = [int(k) for k in keys]
    except ValueError:
        raise GraphFault("bad_time", f"expected a year, found {' '.join(keys)!r}") from None
    if asked.places[0].keys is None:
        raise GraphFault("bad_time", "expected a year, found None")
    columns = asked.tables.columns["grammy_year"]
    picked = ", ".join(
        f"(SELECT g.nominee FROM grammy AS g WHERE g.year = w.value AND g.winner AND fold(g.category) = '{category}') "
        f"AS {name}"
        for name, category in _BEST.items()
    )
    inner = (
        f"SELECT w.value AS year, {picked}, w.key AS _w FROM json_each(?) AS w WHERE w.value IN (SELECT year FROM grammy) "
        f"UNION ALL SELECT a.year, a.best_new_artist, a.best_album, a.best_song, w.key FROM json_each(?) AS w "
        "JOIN grammy_year AS a ON a.year = w.value"
    )
    shown = {c: columns[c] for c in ("year", *_BEST)}
    given = json.dumps([y for y in years if y <= asked.now.day.year])
    return Relation(
        _numbered(shown, inner, "b._w"), (given, given), shown, "grammy year", "year", about=asked.about
    )


# ---------------------------------------------------------------- sports


def nba(asked: Asked) -> Relation:
    """One row a game and team: the columns of its side as they are, the other's with opp_."""
    columns = asked.tables.columns["nba_game"]
    both = [
        c.removesuffix("_home")
        for c in columns
        if c.endswith("_home") and f"{c.removesuffix('_home')}_away" in columns
    ]
    stats = [c for c in both if c not in ("team_name", "wl")]
    plain = [c for c in columns if c.removesuffix("_home").removesuffix("_away") not in both]
    over, params = "t.date < ?", (str(asked.now.eastern.date()),)
    sides = []
    for here, there in (("home", "away"), ("away", "home")):
        own = {"GF": f"pts_{here}", "GA": f"pts_{there}", "result": f"wl_{here}"}
        own |= {s: f"{s}_{here}" for s in stats} | {f"opp_{s}": f"{s}_{there}" for s in stats}
        masked = ", ".join(f"CASE WHEN _over THEN {quoted(c)} END AS {quoted(n)}" for n, c in own.items())
        kept = ", ".join(quoted(c) for c in plain)
        sides.append(
            f"SELECT {kept}, team_name_{here} AS team, team_name_{there} AS opponent, '{here.title()}' AS venue, "
            f"_over, {masked} FROM (SELECT t.*, {over} AS _over FROM nba_game AS t)"
        )
    number: dict[str, Kind] = {s: columns[f"{s}_home"] for s in stats}
    shown: dict[str, Kind] = {
        **{c: columns[c] for c in plain},
        "team": "text",
        "opponent": "text",
        "venue": "text",
    }
    results: dict[str, Kind] = {"GF": "int", "GA": "int", "result": "text"}
    shown |= results | number | {f"opp_{s}": k for s, k in number.items()}
    return _games(asked, " UNION ALL ".join(sides), (*params, *params), shown, "nba")


_FIXTURE: Final = ("league", "season", "team", "date", "time", "day", "round", "venue", "opponent", "game")


def soccer(asked: Asked) -> Relation:
    columns = asked.tables.columns["soccer_game"]
    east = asked.now.eastern
    before = east - timedelta(hours=2)
    started = f"{before:%H:%M}" if before.date() == east.date() else "00:00"
    over = "(t.date < ? OR (t.date = ? AND t.time IS NOT NULL AND t.time < ?))"
    listed = ", ".join(
        quoted(c) if c in _FIXTURE else f"CASE WHEN _over THEN {quoted(c)} END AS {quoted(c)}"
        for c in columns
    )
    sql = f"SELECT {listed}, _over FROM (SELECT t.*, {over} AS _over FROM soccer_game AS t)"
    return _games(asked, sql, (str(east.date()), str(east.date()), started), columns, "soccer")


def _games(
    asked: Asked, sql: str, params: tuple[Any, ...], columns: Mapping[str, Kind], kind: str
) -> Relation:
    """The games of a team (of nobody: each game once, from the home side) on the days that are asked for."""
    there, keys = asked.when, asked.places[0].keys
    assert there is not None
    tests, more = ["fold(g.venue) = 'home'"], list[Any]()
    if keys is not None:
        tests, more = [f"fold(g.team) IN ({', '.join('?' * len(keys)) or 'NULL'})"], [*keys]
    order, limit = "b.date, b.team", ""
    match there.kind:
        case "days":
            tests.append("g.date BETWEEN ? AND ?")
            more += [str(there.first), str(there.last)]
        case "next":
            tests.append("NOT g._over AND g.date >= ?")
            more.append(str(asked.now.day))
            limit = " ORDER BY g.date LIMIT 1"
        case "earliest":
            limit = " ORDER BY g.date LIMIT 1"
        case _:
            tests.append("g._over")
            limit = " ORDER BY g.date DESC LIMIT 1"
    inner = f"SELECT g.* FROM ({sql}) AS g WHERE {' AND '.join(tests)}{limit}"
    words = {"goals_for": "gf", "points": "gf", "goals": "gf", "goals_against": "ga", "home_away": "venue",
             "wl": "result", "points_against": "ga", "team_name": "team"}  # fmt: skip
    return Relation(
        _numbered(columns, inner, order), (*params, *more), columns, f"{kind} game", "opponent",
        {"nba": "opponent", "soccer": "opponent", "entity": "opponent"}, None,
        words, asked.about,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """How a call is read."""

    kinds: tuple[str, ...]  # of its name places, for linking; "year" is not linked
    build: Callable[[Asked], Relation]
    time: str = ""  # "arguments" after the names, or the fixed word


FUNCTIONS: Final[Mapping[str, Function]] = {
    "person": Function(("person",), person),
    "artist": Function(("artist",), artist),
    "get_movie": Function(("movie",), movie),
    "get_movie_person_cast": Function(("movie", "person"), linked("cast")),
    "get_movie_person_crew": Function(("movie", "person"), linked("crew")),
    "get_movie_person_oscar": Function(("movie", "person"), linked("oscar")),
    "get_stock_price": Function(("company",), price, "arguments"),
    "get_stock_pe_ratio": Function(("company",), metric("pe_ratio")),
    "get_stock_market_cap": Function(("company",), metric("market_cap")),
    "get_stock_eps": Function(("company",), metric("eps")),
    "get_stock_dividend": Function(("company",), dividend),
    "get_song": Function(("song",), song),
    "get_grammy_person": Function(("artist",), grammy_artist),
    "get_grammy_song": Function(("song",), grammy_song),
    "get_grammy_year": Function(("year",), grammy_year),
    "get_nba_on_date": Function(("nba",), nba, "arguments"),
    "get_soccer_on_date": Function(("soccer",), soccer, "arguments"),
    "get_soccer_last_game": Function(("soccer",), soccer, "last time"),
    "get_soccer_next_game": Function(("soccer",), soccer, "next time"),
    "get_open": Function(("entity",), entity),
}
