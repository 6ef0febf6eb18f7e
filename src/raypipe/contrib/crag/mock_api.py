"""CRAG mock API over tables: every endpoint of the published description, with the shapes of its answers.

A table may have a column `raw` with the endpoint's own object as JSON. It is then the answer; other objects
are made from the rows.

Searches are the published ones: words of the lower-cased names without punctuation, Okapi BM25, scores above
0, ten at most. Music searches drop words whose idf is 4 or less, if that leaves any (among fewer than 84
names no idf is higher). Names with equal words are scored as one. Ties go to the later entry.

`server` adds HTTP. Answers include the future: as with the original, the caller hides it.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from rank_bm25 import BM25Okapi

from raypipe.contrib.crag.schema import ENDPOINT_OF
from raypipe.contrib.crag.tables import Tables, named_values, quoted

Row: TypeAlias = dict[str, Any]
Body: TypeAlias = Mapping[str, Any]
Type: TypeAlias = Literal["string", "int", "string?", "strings"]

YEARS: Final = range(1990, 2022)  # accepted by get_year_info; other years give status 500
RARE: Final = 4.0  # a word of a music search counts only above this idf
TOP: Final = 10  # most results of a search

_NUMBER: Final[dict[str, Type]] = {"query": "int"}
_GAMES: Final[dict[str, Type]] = {"date": "string", "team_name": "string?"}


class OutsideRange(Exception):
    """Request that the original answers with status 500."""


Answer: TypeAlias = "Callable[[MockApi, Body], Any]"


@dataclass(frozen=True, slots=True)
class MockEndpoint:
    answer: Answer
    fields: Mapping[str, Type] = field(default_factory=lambda: {"query": "string"})


class MockApi:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._searches: dict[str, _Search] = {}

    def rows(self, table: str, where: str = "1", params: Sequence[Any] = ()) -> list[Row]:
        if (columns := self._tables.columns.get(table)) is None:
            return []
        listed = ", ".join(map(quoted, columns))
        sql = f"SELECT {listed} FROM {quoted(table)} WHERE {where} ORDER BY rowid"
        return [named_values(columns, row) for row in self._tables.query(sql, params)]

    def one(self, table: str, column: str, value: Any) -> Row | None:
        return next(iter(self.rows(table, f"{quoted(column)} = ?", (value,))), None)

    def search(self, table: str, column: str, text: str, rare: float | None = None) -> list[str]:
        """Finds the names of a table that share words with the text, best first."""
        if table not in self._searches:
            self._searches[table] = _Search(
                [str(r[column]) for r in self.rows(table) if r[column] is not None]
            )
        return self._searches[table].best(text, rare)


class _Search:
    def __init__(self, names: Sequence[str]) -> None:
        self._names: dict[str, list[str]] = {}  # normal form -> names; BM25 scores these forms
        for name in dict.fromkeys(names):
            self._names.setdefault(normal(name), []).append(name)
        self._forms = [f for f in self._names if f]
        self._bm25 = BM25Okapi([f.split() for f in self._forms]) if self._forms else None

    def best(self, text: str, rare: float | None) -> list[str]:
        words = normal(text).split()
        if self._bm25 is None:
            return []
        if rare is not None:
            words = [w for w in words if self._bm25.idf.get(w, 0.0) > rare] or words
        scores = self._bm25.get_scores(words) if words else np.zeros(len(self._forms))
        order = np.argsort(scores, kind="stable")[::-1]
        return [n for i in order if scores[i] > 0 for n in self._names[self._forms[i]]][:TOP]


_SIGNS = str.maketrans("", "", string.punctuation)


def normal(text: str) -> str:
    """Normalizes a name as the searches do.

    >>> normal("Lock,_Stock and  Two"), normal("J.R.R.")
    ('lock stock and two', 'jrr')
    """
    return " ".join(text.lower().replace("_", " ").translate(_SIGNS).split())


Made: TypeAlias = Callable[[MockApi, Row], Any]
"""Function that makes the object of an answer from a row."""


def _one(table: str, key: str, made: Made, api: MockApi, body: Body) -> Any:
    row = api.one(table, key, body["query"])
    return None if row is None else made(api, row)


def _field(table: str, column: str, key: str = "name") -> Answer:
    return partial(_one, table, key, lambda api, row: row[column])


def _or_raw(made: Made) -> Made:
    """Wraps `made`: a row with a value in its column `raw` gives that object instead."""
    return lambda api, row: json.loads(row["raw"]) if row.get("raw") else made(api, row)


def _award(row: Row) -> Row:
    keys = ("ceremony", "category", "name", "film", "winner")
    return {"year_ceremony": row["year"], **{k: row[k] for k in keys}}


@_or_raw
def _film(api: MockApi, row: Row) -> Row:
    film = {k: v for k, v in row.items() if k not in ("year", "raw", "genres") and v is not None}
    film["genres"] = [{"id": i, "name": g} for i, g in enumerate(row["genres"] or ())]
    for table, keys in (("cast", ("name", "character", "gender", "order")), ("crew", ("name", "job"))):
        people = api.rows(table, "movie_id = ?", (row["id"],))
        film[table] = [{"id": p["person_id"], **{k: p[k] for k in keys}} for p in people]
    awards = [_award(r) for r in api.rows("oscar", "film = ? AND year >= ?", (row["title"], row["year"]))]
    return {**film, **({"oscar_awards": awards} if awards else {})}


@_or_raw
def _human(api: MockApi, row: Row) -> Row:
    acted = api.rows("cast", "person_id = ?", (row["id"],))
    directed = api.rows("crew", "person_id = ? AND lower(job) = 'director'", (row["id"],))
    lists = {
        "acted_movies": list(dict.fromkeys(r["movie_id"] for r in acted)),
        "directed_movies": [r["movie_id"] for r in directed],
        "oscar_awards": [_award(r) for r in api.rows("oscar", "name = ?", (row["name"],))],
    }
    person = {k: row[k] for k in ("name", "id", "birthday")}
    return person | {k: v for k, v in lists.items() if v}


def _found_objects(table: str, column: str, made: Made, api: MockApi, body: Body) -> list[Any]:
    names = api.search(table, column, body["query"])
    rows = (r for n in names for r in api.rows(table, f"{quoted(column)} = ?", (n,)))
    return [made(api, r) for r in rows][:TOP]


def _year_info(api: MockApi, body: Body) -> Any:
    text = body["query"]
    if not text.isdigit() or int(text) not in YEARS:
        raise OutsideRange(text)
    given = api.one("film_year", "year", int(text))
    if given is not None:
        return json.loads(given["raw"])
    films = [r["id"] for r in api.rows("movie", "year = ?", (int(text),))]
    awards = [_award(r) for r in api.rows("oscar", "year = ?", (int(text),))]
    return {"movie_list": films, "oscar_awards": awards} if films or awards else None


def _history(table: str, shown: Callable[[Row], Any], api: MockApi, body: Body) -> Any:
    """Returns a ticker's rows of a table: time -> `shown(row)`."""
    rows = api.rows(table, "ticker = ?", (body["query"],))
    return {f"{r['date']} {r.get('time', '00:00')}:00 EST": shown(r) for r in rows} or None


def _bar(row: Row) -> Row:
    return {bar: row[bar.lower()] for bar in ("Open", "High", "Low", "Close", "Volume")}


@_or_raw
def _company(api: MockApi, row: Row) -> Row:
    return {"symbol": row["ticker"]} | {k: v for k, v in row.items() if v is not None}


def _best(category: str, api: MockApi, body: Body) -> Any:
    rows = api.rows("grammy", "winner AND year = ? AND lower(category) = ?", (body["query"], category))
    return [r["nominee"] for r in rows] or None


def _awards(column: str, body: Body, api: MockApi) -> list[Row]:
    return api.rows("grammy", f"winner AND {quoted(column)} = ?", (body["query"],))


def _billboard(api: MockApi, body: Body) -> Any:
    day = body.get("date")
    rows = api.rows("billboard", "rank = ? AND (? IS NULL OR date = ?)", (body["rank"], day, day))
    return [[r["song"] for r in rows] or None, [r["artist"] for r in rows] or None]


def _billboard_attribute(api: MockApi, body: Body) -> Any:
    known = ("rank_last_week", "weeks_in_chart", "top_position", "rank")
    rows = api.rows("billboard", "song = ? AND date = ?", (body["song_name"], body["date"]))
    if not rows or body["attribute"] not in known or rows[0][body["attribute"]] is None:
        return None
    return str(rows[0][body["attribute"]])


@_or_raw
def _entity(api: MockApi, row: Row) -> Row:
    keys = ("summary_text", "summary_structured")
    return {k: row[k] for k in keys if row[k] is not None} | {"raw_mediawiki": row["summary_text"]}


def _columns(rows: Mapping[str, Row]) -> dict[str, Row] | None:
    """Transposes key -> row to column -> key -> value; None if there is nothing."""
    out: dict[str, Row] = {}
    for key, row in rows.items():
        for column, value in row.items():
            out.setdefault(column, {})[key] = value
    return out or None


def _soccer(api: MockApi, body: Body) -> Any:
    day, team = body["date"], body.get("team_name")
    out: dict[str, Row] = {}
    for r in api.rows("soccer_game", "date LIKE ? || '%' AND (? IS NULL OR team = ?)", (day, team, team)):
        home, away = (r["team"], r["opponent"]) if r["venue"] == "Home" else (r["opponent"], r["team"])
        key = str((r["league"], r["season"], r["team"], r.get("game") or f"{r['date']} {home}-{away}"))
        time = f"{r['time']}:00" if r["time"] and len(r["time"]) == 5 else r["time"]
        shown = {**r, "date": f"{r['date']}T00:00:00.000", "time": time}
        out[key] = {k: v for k, v in shown.items() if k not in ("league", "season", "team", "game")}
    return _columns(out)


def _nba(api: MockApi, body: Body) -> Any:
    day, team = body["date"], body.get("team_name")
    where = "date LIKE ? || '%' AND (? IS NULL OR team_name_home = ? OR team_name_away = ?)"
    rows = api.rows("nba_game", where, (day, team, team, team))
    for r in rows:
        r["game_date"] = f"{r.pop('date')} 00:00:00"
    return _columns({str(i): r for i, r in enumerate(rows)})


def _play_by_play(api: MockApi, body: Body) -> Any:
    marks = ", ".join("?" * len(body["game_ids"])) or "NULL"
    rows = api.rows("play_by_play", f"game_id IN ({marks})", tuple(body["game_ids"]))
    return _columns({str(i): r for i, r in enumerate(rows)})


def _search(table: str, rare: float | None = None) -> Answer:
    return lambda api, body: api.search(table, "name", body["query"], rare)


def _new_artists(api: MockApi, body: Body) -> list[str]:
    rows = api.rows("grammy", "winner AND lower(category) = 'best new artist'")
    return list(dict.fromkeys(r["nominee"] for r in rows))


ENDPOINTS: Final[Mapping[str, MockEndpoint]] = {
    **{
        path: MockEndpoint(_field(table, column, "ticker" if table == "company" else "name"))
        for table, columns in ENDPOINT_OF.items()
        for column, path in columns.items()
    },
    "/open/search_entity_by_name": MockEndpoint(_search("entity")),
    "/open/get_entity": MockEndpoint(partial(_one, "entity", "name", _entity)),
    "/movie/get_person_info": MockEndpoint(partial(_found_objects, "person", "name", _human)),
    "/movie/get_movie_info": MockEndpoint(partial(_found_objects, "movie", "title", _film)),
    "/movie/get_year_info": MockEndpoint(_year_info),
    "/movie/get_movie_info_by_id": MockEndpoint(partial(_one, "movie", "id", _film), _NUMBER),
    "/movie/get_person_info_by_id": MockEndpoint(partial(_one, "person", "id", _human), _NUMBER),
    "/finance/get_company_name": MockEndpoint(_search("company")),
    "/finance/get_ticker_by_name": MockEndpoint(_field("company", "ticker")),
    "/finance/get_price_history": MockEndpoint(partial(_history, "price", _bar)),
    "/finance/get_detailed_price_history": MockEndpoint(partial(_history, "price_detail", _bar)),
    "/finance/get_dividends_history": MockEndpoint(partial(_history, "dividend", lambda row: row["value"])),
    "/finance/get_info": MockEndpoint(partial(_one, "company", "ticker", _company)),
    "/music/search_artist_entity_by_name": MockEndpoint(_search("artist", RARE)),
    "/music/search_song_entity_by_name": MockEndpoint(_search("song", RARE)),
    "/music/get_billboard_rank_date": MockEndpoint(_billboard, {"rank": "int", "date": "string?"}),
    "/music/get_billboard_attributes": MockEndpoint(
        _billboard_attribute, {"date": "string", "attribute": "string", "song_name": "string"}
    ),
    "/music/grammy_get_best_artist_by_year": MockEndpoint(partial(_best, "best new artist"), _NUMBER),
    "/music/grammy_get_award_count_by_artist": MockEndpoint(lambda a, b: len(_awards("artist", b, a))),
    "/music/grammy_get_award_count_by_song": MockEndpoint(lambda a, b: len(_awards("nominee", b, a))),
    "/music/grammy_get_best_song_by_year": MockEndpoint(partial(_best, "song of the year"), _NUMBER),
    "/music/grammy_get_award_date_by_artist": MockEndpoint(
        lambda a, b: list(dict.fromkeys(r["year"] for r in _awards("artist", b, a)))
    ),
    "/music/grammy_get_best_album_by_year": MockEndpoint(partial(_best, "album of the year"), _NUMBER),
    "/music/grammy_get_all_awarded_artists": MockEndpoint(_new_artists, {}),
    "/music/get_lifespan": MockEndpoint(
        partial(_one, "artist", "name", lambda a, r: [r["birth_date"], r["end_date"]])
    ),
    "/sports/soccer/get_games_on_date": MockEndpoint(_soccer, _GAMES),
    "/sports/nba/get_games_on_date": MockEndpoint(_nba, _GAMES),
    "/sports/nba/get_play_by_play_data_by_game_ids": MockEndpoint(_play_by_play, {"game_ids": "strings"}),
}
