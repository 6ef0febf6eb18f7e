"""A graph behind the mock API: fetches what a call needs and stores it as rows of tables.

Every operator then works as on embedded tables. Knows the endpoints and their shapes, any field of which may
be absent. Does not know HTTP: requests go through a `client.Ask`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raypipe.core.kg import MOST_REQUESTS, Vectors
from raypipe.kg.aliases import team, ticker
from raypipe.kg.client import Ask
from raypipe.kg.graph import GraphFault, RowRequest
from raypipe.kg.language.time_words import Moment, When, month
from raypipe.kg.link import Linker, Strictness
from raypipe.kg.normalize import fold
from raypipe.kg.tables import Tables

MOST_FETCHED: Final = 300  # entities by id for one call: an actor's films, a year's
MOST_NAMES: Final = 3  # of a search without an exact name, how many are fetched

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """The graph of a server. Each program has tables of its own, filled as it goes."""

    ask: Ask
    strictness: Strictness | None = None
    vectors: Vectors | None = None

    def open(self) -> FetchedTables:
        tables, sent = Tables(), list[str]()

        async def noted(path: str, body: Object) -> Any:
            if len(sent) == MOST_REQUESTS:
                what = f"the program needs more than {MOST_REQUESTS} requests. Ask for less: name an entity"
                raise GraphFault("too_many", what)
            sent.append(f"{path} {json.dumps(dict(body), ensure_ascii=False)}")
            return await self.ask(path, body)

        return FetchedTables(tables, Linker(tables, self.strictness, self.vectors), noted, sent)


@dataclass(slots=True)
class FetchedTables:
    tables: Tables
    linker: Linker
    ask: Ask
    requests: list[str]
    done: set[tuple[str, str]] = field(default_factory=set)  # (what, id) already in the tables

    async def ensure(self, need: RowRequest) -> None:
        await _FETCH[need.function](self, need)
        self.linker.forget()

    def new(self, what: str, identity: object) -> bool:
        """True the first time; a fact must not be in the tables twice."""
        key = (what, str(identity))
        if key in self.done:
            return False
        self.done.add(key)
        return True

    async def all(self, requests: Iterable[tuple[str, Object]]) -> list[Any]:
        """Sends several requests concurrently: their results in order. The first fault cancels the others."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(path, body)) for path, body in requests]
        except ExceptionGroup as e:
            raise e.exceptions[0] from e  # a defect, unwrapped from the group
        for t in tasks:
            if isinstance(found := t.result(), GraphFault):
                raise found
        return [t.result() for t in tasks]

    async def _one(self, path: str, body: Object) -> Any:
        try:
            return await self.ask(path, body)
        except GraphFault as e:  # a group would wrap it
            return e


def _objects(found: Any, path: str) -> list[Object]:
    """A list of objects; null is an empty one. Raises GraphFault for anything else."""
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(o, Mapping) for o in found):
        raise GraphFault("garbage", f"{path}: expected a list of objects, found {str(found)[:80]}", True)
    return found


def mapping(found: Any, path: str) -> Object | None:
    """An object or null. Raises GraphFault for anything else."""
    return None if found is None else _objects([found], path)[0]


def strings(found: Any, path: str) -> list[str]:
    """A list of names; null is an empty one. Raises GraphFault for anything else."""
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(o, str) for o in found):
        raise GraphFault("garbage", f"{path}: expected a list of names, found {str(found)[:80]}", True)
    return found


# ---------------------------------------------------------------- movie


async def movies(rows: FetchedTables, names: Iterable[str]) -> None:
    """Fetches the films that the search finds for each name, with their casts and crews."""
    path = "/movie/get_movie_info"
    for found in await rows.all((path, {"query": n}) for n in names):
        for film in _objects(found, path):
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
        persons = _objects(found, path)
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


async def _person(rows: FetchedTables, need: RowRequest) -> None:
    await people(rows, need.names[0], films=False)


async def _movie(rows: FetchedTables, need: RowRequest) -> None:
    await movies(rows, need.names[0])
    if not need.names[0]:
        await _years(rows, need.years, films=True)


async def _ties(rows: FetchedTables, need: RowRequest) -> None:
    films, persons = need.names
    oscar = need.function.endswith("oscar")
    await movies(rows, films)
    if persons:  # with a film named, the person's name is enough: it shows a contradiction
        await people(rows, persons, films=not oscar and not films)
    if not films and not persons:
        await _years(rows, need.years, films=not oscar)


# ---------------------------------------------------------------- finance

_METRICS: Final = {
    "get_stock_market_cap": ("market_cap", "/finance/get_market_capitalization"),
    "get_stock_eps": ("eps", "/finance/get_eps"),
    "get_stock_pe_ratio": ("pe_ratio", "/finance/get_pe_ratio"),
}
_HISTORIES: Final = {
    "get_stock_price": (
        ("price", "/finance/get_price_history"),
        ("price_detail", "/finance/get_detailed_price_history"),
    ),
    "get_stock_dividend": (("dividend", "/finance/get_dividends_history"),),
}


async def _company(rows: FetchedTables, need: RowRequest) -> None:
    probe = _METRICS[need.function][1] if need.function in _METRICS else _HISTORIES[need.function][0][1]
    for name in need.names[0]:
        await _tickers(rows, name, probe)
        rows.linker.forget()
        link = await rows.linker.link(name, "company")
        if link is None:
            continue
        ticker = rows.tables.query("SELECT ticker FROM company WHERE fold(ticker) = ?", (link.key,))[0][0]
        if need.function in _METRICS:
            await _metric(rows, ticker, *_METRICS[need.function])
            continue
        for table, path in _HISTORIES[need.function]:
            if rows.new(table, ticker):
                _add_history(rows, table, ticker, await rows.ask(path, {"query": ticker}), path)


async def _tickers(rows: FetchedTables, name: str, probe: str) -> None:
    """The tickers of the companies that a name or ticker may mean.

    A ticker is valid if the endpoint in question knows it, or that of all companies: a company without
    values is a company nevertheless."""
    symbol = ticker(name)
    if symbol is not None and await is_ticker(rows, symbol, probe, "/finance/get_info"):
        if rows.new("company", symbol):
            rows.tables.insert("company", [{"ticker": symbol}])
        return
    path = "/finance/get_company_name"
    names = strings(await rows.ask(path, {"query": name}), path)
    tickers = await rows.all(("/finance/get_ticker_by_name", {"query": n}) for n in names)
    for full, found in zip(names, tickers, strict=True):
        if isinstance(found, str) and rows.new("company", found):
            rows.tables.insert("company", [{"ticker": found, "name": full}])


async def is_ticker(rows: FetchedTables, symbol: str, *paths: str) -> bool:
    """Whether one of the endpoints has data for it; each is asked only if those before had none."""
    for path in paths:
        if await rows.ask(path, {"query": symbol}) is not None:
            return True
    return False


async def _metric(rows: FetchedTables, ticker: str, column: str, path: str) -> None:
    if not rows.new(column, ticker):
        return
    value = await rows.ask(path, {"query": ticker})
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise GraphFault("garbage", f"{path}: expected a number, found {str(value)[:80]}", True)
    rows.tables.change("company", column, value, "ticker", ticker)


def _add_history(rows: FetchedTables, table: str, ticker: str, found: Any, path: str) -> None:
    """Rows of {"2024-02-28 00:00:00 EST": {"Open": ...} or a number}."""
    history = mapping(found, path) or {}
    for stamp, value in history.items():
        if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", stamp):
            raise GraphFault("garbage", f"{path}: expected a time, found {stamp[:40]!r}", True)
        row = {k.lower(): v for k, v in value.items()} if isinstance(value, Mapping) else {"value": value}
        rows.tables.insert(table, [{"ticker": ticker, "date": stamp[:10], "time": stamp[11:16], **row}])


# ---------------------------------------------------------------- music, open


async def _names(rows: FetchedTables, path: str, name: str) -> list[str]:
    """The names a search finds: those that differ only in case and punctuation, else the first few."""
    found = strings(await rows.ask(path, {"query": name}), path)
    return [n for n in found if fold(n) == fold(name)] or found[:MOST_NAMES]


async def _artist(rows: FetchedTables, need: RowRequest) -> None:
    for name in [
        n for w in need.names[0] for n in await _names(rows, "/music/search_artist_entity_by_name", w)
    ]:
        if not rows.new("artist", name):
            continue
        parts = ("get_artist_birth_place", "get_artist_birth_date", "get_members", "get_lifespan",
                 "get_artist_all_works")  # fmt: skip
        place, born, members, span, works = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
        ended = span[1] if isinstance(span, list) and len(span) == 2 else None
        rows.tables.insert(
            "artist",
            [
                {"name": name, "group": bool(members), "birth_place": place, "birth_date": born,
                 "end_date": ended, "members": members or [], "music": works or []}
            ],
        )  # fmt: skip


async def _song(rows: FetchedTables, need: RowRequest) -> None:
    for name in [
        n for w in need.names[0] for n in await _names(rows, "/music/search_song_entity_by_name", w)
    ]:
        if rows.new("song", name):
            parts = ("get_song_author", "get_song_release_country", "get_song_release_date")
            author, country, day = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
            song = {"name": name, "author": author, "release_country": country, "release_date": day}
            rows.tables.insert("song", [song])


async def _grammy_artist(rows: FetchedTables, need: RowRequest) -> None:
    for name in [
        n for w in need.names[0] for n in await _names(rows, "/music/search_artist_entity_by_name", w)
    ]:
        if rows.new("grammy_artist", name):
            parts = ("grammy_get_award_count_by_artist", "grammy_get_award_date_by_artist")
            count, years = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
            seen = sorted({int(y) for y in years or () if int(y) <= need.now.day.year})
            rows.tables.insert("grammy_artist", [{"name": name, "award_count": count, "award_date": seen}])


async def _grammy_song(rows: FetchedTables, need: RowRequest) -> None:
    for name in [
        n for w in need.names[0] for n in await _names(rows, "/music/search_song_entity_by_name", w)
    ]:
        if rows.new("grammy_song", name):
            count = await rows.ask("/music/grammy_get_award_count_by_song", {"query": name})
            rows.tables.insert("grammy_song", [{"name": name, "award_count": count}])


async def _grammy_year(rows: FetchedTables, need: RowRequest) -> None:
    for word in need.names[0]:
        if not re.fullmatch(r"\d{4}", word) or not rows.new("grammy_year", word):
            continue
        parts = ("artist", "album", "song")
        found = await rows.all((f"/music/grammy_get_best_{p}_by_year", {"query": int(word)}) for p in parts)
        names = [", ".join(map(str, f)) if isinstance(f, list) else f for f in found]
        if any(names):
            best = dict(zip(("best_new_artist", "best_album", "best_song"), names, strict=True))
            rows.tables.insert("grammy_year", [{"year": int(word), **best}])


async def _open(rows: FetchedTables, need: RowRequest) -> None:
    for name in [n for w in need.names[0] for n in await _names(rows, "/open/search_entity_by_name", w)]:
        if rows.new("entity", name):
            found = mapping(await rows.ask("/open/get_entity", {"query": name}), "/open/get_entity")
            if found is not None:
                facts = found.get("summary_structured") or {}
                text = found.get("summary_text")
                row = {"name": name, "summary_text": text, "summary_structured": facts}
                rows.tables.insert("entity", [row])


# ---------------------------------------------------------------- sports


def asked_dates(when: When, now: Moment) -> list[str]:
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


async def _soccer(rows: FetchedTables, need: RowRequest) -> None:
    path = "/sports/soccer/get_games_on_date"
    assert need.when is not None
    _add_teams(rows, need.names[0], "soccer")
    for day in asked_dates(need.when, need.now):
        for name in need.names[0] or (None,):
            for club in (None,) if name is None else _club_names(name):
                games = _columns(await rows.ask(path, {"date": day, "team_name": club}), path)
                for game in games:
                    key = _SOCCER_KEY.fullmatch(game["_key"])
                    if key is not None and rows.new("soccer", game["_key"]):
                        named = {"league": key[2], "season": key[4], "team": key[6]}
                        rows.tables.insert(
                            "soccer_game",
                            [{**game, **named, "time": str(game.get("time") or "")[:5] or None}],
                        )
                if games:
                    break


def _club_names(written: str) -> list[str]:
    """How the match tables may spell a club, best first."""
    return list(dict.fromkeys(n for n in (team(written, "soccer"), written, written.title()) if n))


async def _nba(rows: FetchedTables, need: RowRequest) -> None:
    path = "/sports/nba/get_games_on_date"
    assert need.when is not None
    _add_teams(rows, need.names[0], "nba")
    for day in asked_dates(need.when, need.now):
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


_FETCH: Final[Mapping[str, Callable[[FetchedTables, RowRequest], Awaitable[None]]]] = {
    "person": _person, "artist": _artist, "get_movie": _movie, "get_movie_person_cast": _ties,
    "get_movie_person_crew": _ties, "get_movie_person_oscar": _ties, "get_stock_price": _company,
    "get_stock_pe_ratio": _company, "get_stock_market_cap": _company, "get_stock_eps": _company,
    "get_stock_dividend": _company, "get_song": _song, "get_grammy_person": _grammy_artist,
    "get_grammy_song": _grammy_song, "get_grammy_year": _grammy_year, "get_nba_on_date": _nba,
    "get_soccer_on_date": _soccer, "get_soccer_last_game": _soccer, "get_soccer_next_game": _soccer,
    "get_open": _open,
}  # fmt: skip
