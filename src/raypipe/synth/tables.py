"""The world's knowledge graph as Parquet: one file per relation, `kg/NAME.parquet`.

Dates are strings `YYYY-MM-DD`, as the mock API writes them. Each table's columns are the keys that programs
use (`cast`: movie_name, name, character, ...), so a call compiles to a query over one or two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.synth.world.world import World

STR, INT, FLT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
LIST, MAP = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())

Rows = Iterable[tuple[Any, ...]]

SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "person": {"id": INT, "name": STR, "birthday": STR, "gender": INT},
    "movie": {
        "id": INT,
        "title": STR,
        "release_date": STR,
        "original_title": STR,
        "original_language": STR,
        "budget": INT,
        "revenue": INT,
        "rating": FLT,
        "genres": LIST,
        "length": INT,
        "year": INT,
    },
    "cast": {
        "movie_id": INT,
        "movie_name": STR,
        "person_id": INT,
        "name": STR,
        "character": STR,
        "gender": INT,
        "order": INT,
        "year": INT,
        "release_date": STR,
    },
    "crew": {
        "movie_id": INT,
        "movie_name": STR,
        "person_id": INT,
        "name": STR,
        "job": STR,
        "year": INT,
        "release_date": STR,
    },
    "oscar": {"year": INT, "ceremony": INT, "category": STR, "name": STR, "film": STR, "winner": BOOL},
    "company": {
        "ticker": STR,
        "name": STR,
        "short_name": STR,
        "sector": STR,
        "headquarters": STR,
        "ceo": STR,
        "founded": INT,
        "market_cap": INT,
        "eps": FLT,
        "pe_ratio": FLT,
    },
    "price": {"ticker": STR, "date": STR, "open": FLT, "high": FLT, "low": FLT, "close": FLT, "volume": INT},
    "price_detail": {
        "ticker": STR,
        "date": STR,
        "time": STR,
        "open": FLT,
        "high": FLT,
        "low": FLT,
        "close": FLT,
        "volume": INT,
    },
    "dividend": {"ticker": STR, "date": STR, "value": FLT},
    "artist": {
        "name": STR,
        "group": BOOL,
        "birth_place": STR,
        "birth_date": STR,
        "end_date": STR,
        "members": LIST,
        "music": LIST,
    },
    "song": {"name": STR, "author": STR, "release_country": STR, "release_date": STR},
    "grammy": {"year": INT, "category": STR, "nominee": STR, "artist": STR, "winner": BOOL},
    "billboard": {
        "date": STR,
        "rank": INT,
        "song": STR,
        "artist": STR,
        "rank_last_week": INT,
        "top_position": INT,
        "weeks_in_chart": INT,
    },
    "team": {
        "name": STR,
        "sport": STR,
        "league": STR,
        "city": STR,
        "alias": STR,
        "stadium": STR,
        "founded": INT,
    },
    "nba_game": {
        "game_id": STR,
        "season_id": STR,
        "season_type": STR,
        "date": STR,
        "team_name_home": STR,
        "team_name_away": STR,
        "wl_home": STR,
        "wl_away": STR,
        "pts_home": INT,
        "pts_away": INT,
    },
    "soccer_game": {
        "league": STR,
        "season": STR,
        "team": STR,
        "date": STR,
        "time": STR,
        "day": STR,
        "round": INT,
        "venue": STR,
        "result": STR,
        "GF": INT,
        "GA": INT,
        "opponent": STR,
        "Captain": STR,
        "Attendance": INT,
        "Referee": STR,
    },
    "entity": {"name": STR, "type": STR, "summary_text": STR, "summary_structured": MAP},
}
"""Table -> column -> type. `price_detail.time` is HH:MM Eastern; soccer has two rows a game, one per team."""


def _screen(w: World) -> dict[str, Rows]:
    film = w.film
    return {
        "person": ((p.id, p.name, str(p.birthday), p.gender) for p in film.people),
        "movie": (
            (
                m.id,
                m.title,
                str(m.release_date),
                m.original_title,
                m.original_language,
                m.budget,
                m.revenue,
                m.rating,
                list(m.genres),
                m.length,
                m.year,
            )
            for m in film.movies
        ),
        "cast": (
            (
                r.movie.id,
                r.movie.title,
                r.person.id,
                r.person.name,
                r.character,
                r.person.gender,
                r.order,
                r.movie.year,
                str(r.movie.release_date),
            )
            for r in film.cast
        ),
        "crew": (
            (
                c.movie.id,
                c.movie.title,
                c.person.id,
                c.person.name,
                c.job,
                c.movie.year,
                str(c.movie.release_date),
            )
            for c in film.crew
        ),
        "oscar": ((o.year, o.ceremony, o.category, o.name, o.film, o.winner) for o in film.oscars),
    }


def _market(w: World) -> dict[str, Rows]:
    market = w.market
    return {
        "company": (
            (
                c.ticker,
                c.name,
                c.short,
                c.sector,
                c.headquarters,
                c.ceo,
                c.founded,
                c.market_cap,
                c.eps,
                c.pe_ratio,
            )
            for c in market.companies
        ),
        "price": (
            (b.ticker, str(b.date), b.open, b.high, b.low, b.close, b.volume)
            for bars in market.bars.values()
            for b in bars.values()
        ),
        "price_detail": (
            (m.ticker, str(m.date), m.time, m.open, m.high, m.low, m.close, m.volume)
            for rows in market.minutes.values()
            for m in rows
        ),
        "dividend": ((d.ticker, str(d.date), d.value) for rows in market.dividends.values() for d in rows),
    }


def _music(w: World) -> dict[str, Rows]:
    music = w.music
    return {
        "artist": (
            (
                a.name,
                a.group,
                a.birth_place,
                str(a.birth_date),
                None if a.end_date is None else str(a.end_date),
                list(a.members),
                [s.name for s in music.works[a.name]],
            )
            for a in music.artists
        ),
        "song": ((s.name, s.author, s.release_country, str(s.release_date)) for s in music.songs),
        "grammy": ((g.year, g.category, g.nominee, g.artist, g.winner) for g in music.grammys),
        "billboard": (
            (str(c.date), c.rank, c.song, c.artist, c.rank_last_week, c.top_position, c.weeks_in_chart)
            for c in music.chart
        ),
    }


def _sport(w: World) -> dict[str, Rows]:
    sport, result = w.sport, {True: "W", False: "L"}

    def won(ours: int | None, theirs: int | None) -> str | None:
        return None if ours is None or theirs is None else result[ours > theirs]

    return {
        "team": (
            (t.name, t.sport, t.league, t.city, t.alias, t.stadium, t.founded) for t in sport.teams.values()
        ),
        "nba_game": (
            (
                g.game_id,
                g.season_id,
                "Regular Season",
                str(g.date),
                g.home,
                g.away,
                won(g.pts_home, g.pts_away),
                won(g.pts_away, g.pts_home),
                g.pts_home,
                g.pts_away,
            )
            for g in sport.nba_games
        ),
        "soccer_game": (
            (
                s.league,
                "2324",
                s.team,
                str(s.date),
                s.time,
                f"{s.date:%a}",
                s.round,
                "Home" if s.home else "Away",
                s.result or None,
                s.scored,
                s.let_in,
                s.opponent,
                s.captain or None,
                s.attendance or None,
                s.referee or None,
            )
            for t in sport.soccer
            for s in sport.sides[t.name]
        ),
    }


def _places(w: World) -> dict[str, Rows]:
    return {"entity": ((e.name, e.kind, e.summary, list(e.facts)) for e in w.places.entities)}


PARTS: tuple[Callable[[World], dict[str, Rows]], ...] = (_screen, _market, _music, _sport, _places)


def write_tables(world: World, folder: Path) -> dict[str, int]:
    """Writes every table under `folder` and gives the number of rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for part in PARTS:
        for name, rows in part(world).items():
            schema = pa.schema(list(SCHEMAS[name].items()))
            columns = list(zip(*rows, strict=True))
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            table = pa.Table.from_arrays(arrays, schema=schema)
            pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
            counts[name] = table.num_rows
    return counts
