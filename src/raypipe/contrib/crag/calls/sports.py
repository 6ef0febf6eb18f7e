"""Games from the side of a team: opponent, points, result."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from raypipe.contrib.crag.calls.core import LinkedCall, numbered
from raypipe.contrib.crag.graph import FetchedTables, RowRequest, mapping
from raypipe.contrib.crag.language.time_words import When, month
from raypipe.contrib.crag.names import team
from raypipe.contrib.crag.relation import Relation
from raypipe.contrib.crag.schema import Kind
from raypipe.contrib.crag.tables import quoted
from raypipe.text.moments import Moment


def nba(call: LinkedCall) -> Relation:
    """Selects one row per game and team. Columns of the opponent's figures begin with opp_."""
    columns = call.tables.columns["nba_game"]
    stems = [c.removesuffix("_home") for c in columns if c.endswith("_home")]
    both = [stem for stem in stems if f"{stem}_away" in columns]
    stats = [c for c in both if c not in ("team_name", "wl")]
    plain = [c for c in columns if c.removesuffix("_home").removesuffix("_away") not in both]
    kept, today = ", ".join(map(quoted, plain)), str(call.now.eastern.date())
    sides = []
    for here, there in (("home", "away"), ("away", "home")):
        own = {"GF": f"pts_{here}", "GA": f"pts_{there}", "result": f"wl_{here}"}
        own |= {s: f"{s}_{here}" for s in stats} | {f"opp_{s}": f"{s}_{there}" for s in stats}
        masked = ", ".join(f"CASE WHEN _over THEN {quoted(c)} END AS {quoted(n)}" for n, c in own.items())
        sides.append(
            f"SELECT {kept}, team_name_{here} AS team, team_name_{there} AS opponent, "
            f"'{here.title()}' AS venue, _over, {masked} "
            f"FROM (SELECT t.*, t.date < ? AS _over FROM nba_game AS t)"
        )
    number: dict[str, Kind] = {s: columns[f"{s}_home"] for s in stats}
    shown: dict[str, Kind] = {
        **{c: columns[c] for c in plain},
        "team": "text",
        "opponent": "text",
        "venue": "text",
        "GF": "int",
        "GA": "int",
        "result": "text",
        **number,
        **{f"opp_{s}": k for s, k in number.items()},
    }
    return _games(call, " UNION ALL ".join(sides), (today, today), shown, "nba")


_FIXTURE: Final = ("league", "season", "team", "date", "time", "day", "round", "venue", "opponent", "game")


def soccer(call: LinkedCall) -> Relation:
    columns = call.tables.columns["soccer_game"]
    east = call.now.eastern
    before = east - timedelta(hours=2)
    started = f"{before:%H:%M}" if before.date() == east.date() else "00:00"
    over = "(t.date < ? OR (t.date = ? AND t.time IS NOT NULL AND t.time < ?))"
    listed = ", ".join(
        quoted(c) if c in _FIXTURE else f"CASE WHEN _over THEN {quoted(c)} END AS {quoted(c)}"
        for c in columns
    )
    sql = f"SELECT {listed}, _over FROM (SELECT t.*, {over} AS _over FROM soccer_game AS t)"
    return _games(call, sql, (str(east.date()), str(east.date()), started), columns, "soccer")


def _games(
    call: LinkedCall, sql: str, params: tuple[Any, ...], columns: Mapping[str, Kind], kind: str
) -> Relation:
    """Selects a team's games at the call's time; without a team, each game once, as the home team's."""
    time, keys = call.when, call.places[0].keys
    assert time is not None
    tests, more = ["fold(g.venue) = 'home'"], list[Any]()
    if keys is not None:
        tests, more = [f"fold(g.team) IN ({', '.join('?' * len(keys)) or 'NULL'})"], [*keys]
    limit = " ORDER BY g.date LIMIT 1"
    match time.kind:
        case "days":
            tests.append("g.date BETWEEN ? AND ?")
            more += [str(time.first), str(time.last)]
            limit = ""
        case "next":
            tests.append("NOT g._over AND g.date >= ?")
            more.append(str(call.now.day))
        case "latest" | "last":
            tests.append("g._over")
            limit = " ORDER BY g.date DESC LIMIT 1"
    inner = f"SELECT g.* FROM ({sql}) AS g WHERE {' AND '.join(tests)}{limit}"
    words = {
        "goals_for": "gf",
        "points": "gf",
        "goals": "gf",
        "goals_against": "ga",
        "home_away": "venue",
        "wl": "result",
        "points_against": "ga",
        "team_name": "team",
    }
    named = dict.fromkeys(("nba", "soccer", "entity"), "opponent")
    sql = numbered(columns, inner, "b.date, b.team")
    return Relation(
        sql, (*params, *more), columns, f"{kind} game", "opponent", named, None, words, call.about
    )


# ---------------------------------------------------------------- from a server


def requested_dates(when: When, now: Moment) -> list[str]:
    """Returns the dates to request, in the endpoints' format: a day, months, or years. For the last or next
    game these are this year and the year before or after."""
    if when.kind != "days":
        step = {"next": 1}.get(when.kind, -1)
        return [str(now.day.year), str(now.day.year + step)]
    if when.first == when.last:
        return [str(when.first)]
    if (when.last - when.first).days <= 92:  # longer: a year is one request and about 1 MB
        months, current = [], month(when.first.year, when.first.month)
        while current.first <= when.last:
            months.append(f"{current.first:%Y-%m}")
            current = month(current.first.year, current.first.month + 1)
        return months
    return [str(y) for y in range(when.first.year, min(when.last.year, now.day.year + 1) + 1)][-30:]


def _keyed_rows(reply: Any, path: str) -> list[dict[str, Any]]:
    """Converts {column: {key: value}} to rows, each with its key as `_key`."""
    table = mapping(reply, path) or {}
    rows: dict[str, dict[str, Any]] = {}
    for column, cells in table.items():
        for key, value in (mapping(cells, path) or {}).items():
            rows.setdefault(key, {"_key": key})[column] = value
    return list(rows.values())


_QUOTED = r"""(?:'([^']*)'|"([^"]*)")"""
_SOCCER_KEY = re.compile(rf"\A\({', '.join([_QUOTED] * 4)}\)")


async def fetch_soccer(rows: FetchedTables, need: RowRequest) -> None:
    def spelled(name: str) -> list[str | None]:
        return [team(name, "soccer"), name, name.title()]

    async for game in _played(rows, need, "soccer", spelled):
        key = _SOCCER_KEY.fullmatch(game["_key"])
        if key is not None and rows.new("soccer", game["_key"]):
            named = {"league": key[1] or key[2], "season": key[3] or key[4], "team": key[5] or key[6]}
            named["time"] = str(game.get("time") or "")[:5] or None
            rows.tables.insert("soccer_game", [{**game, **named}])


async def fetch_nba(rows: FetchedTables, need: RowRequest) -> None:
    async for game in _played(rows, need, "nba", lambda name: [team(name, "nba") or name.title()]):
        if rows.new("nba", game.get("game_id", game)):
            rows.tables.insert("nba_game", [{**game, "date": str(game.get("game_date"))[:10]}])


async def _played(
    rows: FetchedTables, need: RowRequest, sport: str, spelled: Callable[[str], list[str | None]]
) -> AsyncIterator[dict[str, Any]]:
    """Yields the games of the call's teams and days. Spellings of a team are tried until one has games.

    Known teams become rows first, so that a team without games at that time is no unknown name."""
    path = f"/sports/{sport}/get_games_on_date"
    assert need.when is not None
    for name in need.names[0]:
        known = team(name, sport)
        if known is not None and rows.new(sport, known):
            rows.tables.insert("team", [{"name": known, "sport": sport, "alias": name}])
    for day in requested_dates(need.when, need.now):
        for spellings in map(spelled, need.names[0]) if need.names[0] else ([None],):
            for club in dict.fromkeys(s for s in spellings if s or not need.names[0]):
                games = _keyed_rows(await rows.ask(path, {"date": day, "team_name": club}), path)
                for game in games:
                    yield game
                if games:
                    break
