"""Schema of the graph: table -> column -> kind of value. Every data source uses these names.

Kinds: text, int, real, bool, date (text YYYY-MM-DD), list (JSON array), map (JSON object). Tables and columns
that a source lacks are empty. Calls may also use further columns of a source as keys.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["text", "int", "real", "bool", "date", "list", "map"]

_OHLC: Final[dict[str, Kind]] = {
    "open": "real",
    "high": "real",
    "low": "real",
    "close": "real",
    "volume": "int",
}
TABLES: Final[dict[str, dict[str, Kind]]] = {
    "person": {"id": "int", "name": "text", "birthday": "date", "gender": "int"},
    "movie": {
        "id": "int",
        "title": "text",
        "release_date": "date",
        "original_title": "text",
        "original_language": "text",
        "budget": "int",
        "revenue": "int",
        "rating": "real",
        "genres": "list",
        "length": "int",
        "year": "int",
    },
    "cast": {
        "movie_id": "int",
        "movie_name": "text",
        "person_id": "int",
        "name": "text",
        "character": "text",
        "gender": "int",
        "order": "int",
        "year": "int",
        "release_date": "date",
    },
    "crew": {
        "movie_id": "int",
        "movie_name": "text",
        "person_id": "int",
        "name": "text",
        "job": "text",
        "year": "int",
        "release_date": "date",
    },
    "oscar": {
        "year": "int",
        "ceremony": "int",
        "category": "text",
        "name": "text",
        "film": "text",
        "winner": "bool",
    },
    "company": {
        "ticker": "text",
        "name": "text",
        "short_name": "text",
        "market_cap": "int",
        "eps": "real",
        "pe_ratio": "real",
    },
    "price": {"ticker": "text", "date": "date", **_OHLC},
    "price_detail": {"ticker": "text", "date": "date", "time": "text", **_OHLC},
    "dividend": {"ticker": "text", "date": "date", "value": "real"},
    "artist": {
        "name": "text",
        "group": "bool",
        "birth_place": "text",
        "birth_date": "date",
        "end_date": "date",
        "members": "list",
        "music": "list",
    },
    "song": {"name": "text", "author": "text", "release_country": "text", "release_date": "date"},
    "grammy": {"year": "int", "category": "text", "nominee": "text", "artist": "text", "winner": "bool"},
    "grammy_artist": {"name": "text", "award_count": "int", "award_date": "list"},
    "grammy_song": {"name": "text", "award_count": "int"},
    "grammy_year": {"year": "int", "best_new_artist": "text", "best_album": "text", "best_song": "text"},
    "billboard": {
        "date": "date",
        "rank": "int",
        "song": "text",
        "artist": "text",
        "rank_last_week": "int",
        "top_position": "int",
        "weeks_in_chart": "int",
    },
    "team": {"name": "text", "sport": "text", "league": "text", "city": "text", "alias": "text"},
    "nba_game": {
        "game_id": "text",
        "season_id": "text",
        "season_type": "text",
        "date": "date",
        "team_name_home": "text",
        "team_name_away": "text",
        "wl_home": "text",
        "wl_away": "text",
        "pts_home": "int",
        "pts_away": "int",
    },
    "soccer_game": {
        "league": "text",
        "season": "text",
        "team": "text",
        "date": "date",
        "time": "text",
        "day": "text",
        "round": "text",
        "venue": "text",
        "result": "text",
        "GF": "int",
        "GA": "int",
        "opponent": "text",
        "Captain": "text",
        "Attendance": "int",
        "Referee": "text",
    },
    "entity": {"name": "text", "summary_text": "text", "summary_structured": "map"},
    "film_year": {"year": "int", "raw": "text"},
    "play_by_play": {"game_id": "text"},
}
"""Table -> column -> kind. Only `mock_api` reads film_year and play_by_play. The grammy_* tables hold a
source's own counts; missing counts are computed from `grammy`."""

NAMES: Final[dict[str, tuple[tuple[str, str, str | None], ...]]] = {
    "person": (
        ("person", "name", None),
        ("cast", "name", None),
        ("crew", "name", None),
        ("oscar", "name", None),
    ),
    "movie": (
        ("movie", "title", None),
        ("cast", "movie_name", None),
        ("crew", "movie_name", None),
        ("oscar", "film", None),
        ("movie", "original_title", "title"),
    ),
    "company": (
        ("company", "ticker", None),
        ("company", "name", "ticker"),
        ("company", "short_name", "ticker"),
        ("price", "ticker", None),
    ),
    "artist": (
        ("artist", "name", None),
        ("grammy", "artist", None),
        ("song", "author", None),
        ("grammy_artist", "name", None),
    ),
    "song": (("song", "name", None), ("grammy", "nominee", None), ("grammy_song", "name", None)),
    "nba": (("nba_game", "team_name_home", None), ("nba_game", "team_name_away", None)),
    "soccer": (("soccer_game", "team", None),),
    "entity": (("entity", "name", None),),
    "character": (("cast", "character", None),),
}
"""Kind of name -> its sources: (table, column, column of the name that it stands for; None: itself). A name
in any source is known, even if the table that a call reads lacks it."""

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

NICKNAMES: Final[dict[str, str]] = {"nba": "nba", "soccer": "soccer"}
"""Kind of name -> the value of `team.sport` whose aliases are names of this kind too."""
