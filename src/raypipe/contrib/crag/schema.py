"""Schema of the graph: table -> column -> kind of value. Every data source uses these names.

Kinds: text, int, real, bool, date (text YYYY-MM-DD), list (JSON array), map (JSON object). Tables and columns
that a source lacks are empty. Calls may also use further columns of a source as keys.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, cast

Kind: TypeAlias = Literal["text", "int", "real", "bool", "date", "list", "map"]

_PRICES: Final = "open real, high real, low real, close real, volume int"
_DECLARED: Final = {
    "person": "id int, name text, birthday date, gender int",
    "movie": (
        "id int, title text, release_date date, original_title text, original_language text, budget int, "
        "revenue int, rating real, genres list, length int, year int"
    ),
    "cast": (
        "movie_id int, movie_name text, person_id int, name text, character text, gender int, order int, "
        "year int, release_date date"
    ),
    "crew": "movie_id int, movie_name text, person_id int, name text, job text, year int, release_date date",
    "oscar": "year int, ceremony int, category text, name text, film text, winner bool",
    "company": "ticker text, name text, short_name text, market_cap int, eps real, pe_ratio real",
    "price": f"ticker text, date date, {_PRICES}",
    "price_detail": f"ticker text, date date, time text, {_PRICES}",
    "dividend": "ticker text, date date, value real",
    "artist": (
        "name text, group bool, birth_place text, birth_date date, end_date date, members list, music list"
    ),
    "song": "name text, author text, release_country text, release_date date",
    "grammy": "year int, category text, nominee text, artist text, winner bool",
    "grammy_artist": "name text, award_count int, award_date list",
    "grammy_song": "name text, award_count int",
    "grammy_year": "year int, best_new_artist text, best_album text, best_song text",
    "billboard": (
        "date date, rank int, song text, artist text, rank_last_week int, top_position int, "
        "weeks_in_chart int"
    ),
    "team": "name text, sport text, league text, city text, alias text",
    "nba_game": (
        "game_id text, season_id text, season_type text, date date, team_name_home text, "
        "team_name_away text, wl_home text, wl_away text, pts_home int, pts_away int"
    ),
    "soccer_game": (
        "league text, season text, team text, date date, time text, day text, round text, venue text, "
        "result text, GF int, GA int, opponent text, Captain text, Attendance int, Referee text"
    ),
    "entity": "name text, summary_text text, summary_structured map",
    "film_year": "year int, raw text",
    "play_by_play": "game_id text",
}


def _columns(declared: str) -> dict[str, Kind]:
    pairs = (column.split() for column in declared.split(", "))
    return {name: cast(Kind, kind) for name, kind in pairs}


TABLES: Final[dict[str, dict[str, Kind]]] = {table: _columns(text) for table, text in _DECLARED.items()}
"""Table -> column -> kind. Only `mock_api` reads film_year and play_by_play. The grammy_* tables hold a
source's own counts; missing counts are computed from `grammy`."""


def _source(text: str) -> tuple[str, str, str]:
    table, _, columns = text.partition(".")
    column, _, meant = columns.partition("=")
    return table, column, meant or column


_SOURCES: Final = {
    "person": "person.name cast.name crew.name oscar.name",
    "movie": "movie.title cast.movie_name crew.movie_name oscar.film movie.original_title=title",
    "company": "company.ticker company.name=ticker company.short_name=ticker price.ticker",
    "artist": "artist.name grammy.artist song.author grammy_artist.name",
    "song": "song.name grammy.nominee grammy_song.name",
    "nba": "nba_game.team_name_home nba_game.team_name_away",
    "soccer": "soccer_game.team",
    "entity": "entity.name",
    "character": "cast.character",
}
NAMES: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    kind: tuple(_source(source) for source in sources.split()) for kind, sources in _SOURCES.items()
}
"""Kind of name -> its sources: table, column, and the column of the name that it stands for. A name in any
source is known, even if the table that a call reads lacks it."""

ENDPOINT_OF: Final[dict[str, dict[str, str]]] = {
    "company": {
        "market_cap": "/finance/get_market_capitalization",
        "eps": "/finance/get_eps",
        "pe_ratio": "/finance/get_pe_ratio",
    },
    "artist": {
        "birth_place": "/music/get_artist_birth_place",
        "birth_date": "/music/get_artist_birth_date",
        "members": "/music/get_members",
        "lifespan": "/music/get_lifespan",
        "music": "/music/get_artist_all_works",
    },
    "song": {c: f"/music/get_song_{c}" for c in ("author", "release_country", "release_date")},
}
"""Table -> column -> endpoint of the mock API that gives only this column. A lifespan has two columns."""
