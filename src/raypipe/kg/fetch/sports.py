"""Teams and games of soccer and the NBA."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from raypipe.kg.aliases import team
from raypipe.kg.fetch.core import FetchedTables, mapping
from raypipe.kg.graph import RowRequest
from raypipe.kg.language.time_words import Moment, When, month


def requested_dates(when: When, now: Moment) -> list[str]:
    """The dates in the endpoints' format: a day, months, or years; around now for the last or next game."""
    if when.kind != "days":
        step = {"next": 1}.get(when.kind, -1)
        return [str(now.day.year), str(now.day.year + step)]
    if when.first == when.last:
        return [str(when.first)]
    if (when.last - when.first).days <= 92:  # longer: a year is one request and about 1 MB
        out, there = [], month(when.first.year, when.first.month)
        while there.first <= when.last:
            out.append(f"{there.first:%Y-%m}")
            there = month(there.first.year, there.first.month + 1)
        return out
    return [str(y) for y in range(when.first.year, min(when.last.year, now.day.year + 1) + 1)][-30:]


def _columns(found: Any, path: str) -> list[dict[str, Any]]:
    """Rows of {column: {key: value}}; the key of a soccer row is kept as `_key`."""
    table = mapping(found, path) or {}
    rows: dict[str, dict[str, Any]] = {}
    for column, cells in table.items():
        for key, value in (mapping(cells, path) or {}).items():
            rows.setdefault(key, {"_key": key})[column] = value
    return list(rows.values())


_SOCCER_KEY = re.compile(r"""\((['"])(.*?)\1, (['"])(.*?)\3, (['"])(.*?)\5, (['"])(.*)\7\)""")


async def soccer(rows: FetchedTables, need: RowRequest) -> None:
    path = "/sports/soccer/get_games_on_date"
    assert need.when is not None
    _add_teams(rows, need.names[0], "soccer")
    for day in requested_dates(need.when, need.now):
        for name in need.names[0] or (None,):
            spelled = (name and team(name, "soccer"), name, name and name.title())  # best first
            for club in dict.fromkeys(n for n in spelled if n or name is None):
                games = _columns(await rows.ask(path, {"date": day, "team_name": club}), path)
                for game in games:
                    key = _SOCCER_KEY.fullmatch(game["_key"])
                    if key is not None and rows.new("soccer", game["_key"]):
                        named = {"league": key[2], "season": key[4], "team": key[6]}
                        named["time"] = str(game.get("time") or "")[:5] or None
                        rows.tables.insert("soccer_game", [{**game, **named}])
                if games:
                    break


async def nba(rows: FetchedTables, need: RowRequest) -> None:
    path = "/sports/nba/get_games_on_date"
    assert need.when is not None
    _add_teams(rows, need.names[0], "nba")
    for day in requested_dates(need.when, need.now):
        for name in need.names[0] or (None,):
            wanted = None if name is None else team(name, "nba") or name.title()
            for game in _columns(await rows.ask(path, {"date": day, "team_name": wanted}), path):
                if rows.new("nba", game.get("game_id", game)):
                    rows.tables.insert("nba_game", [{**game, "date": str(game.get("game_date"))[:10]}])


def _add_teams(rows: FetchedTables, names: Iterable[str], sport: str) -> None:
    """Adds teams by these names: a team without a game in that time is no unknown name."""
    for name in names:
        known = team(name, sport)
        if known is not None and rows.new(sport, known):
            rows.tables.insert("team", [{"name": known, "sport": sport, "alias": name}])
