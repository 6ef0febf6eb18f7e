"""Registry of calls. Each call selects a relation over the tables, and can fetch its rows from a server.

A relation holds nothing from after the moment of asking. Calls read SQL tables. Names come linked already, as
folded keys (`fold`) for each argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raypipe.contrib.crag.calls import finance, movie, music, sports
from raypipe.contrib.crag.calls.core import LinkedCall
from raypipe.contrib.crag.graph import Fetch
from raypipe.contrib.crag.language.program import KINDS
from raypipe.contrib.crag.relation import Relation


@dataclass(frozen=True, slots=True)
class GraphCall:
    relation: Callable[[LinkedCall], Relation]
    fetch: Fetch


CALLS: Final[Mapping[str, GraphCall]] = {
    "person": GraphCall(movie.person, movie.fetch_person),
    "artist": GraphCall(music.artist, music.fetch_artist),
    "get_movie": GraphCall(movie.movie, movie.fetch_movie),
    "get_movie_person_cast": GraphCall(movie.linked("cast"), movie.fetch_ties),
    "get_movie_person_crew": GraphCall(movie.linked("crew"), movie.fetch_ties),
    "get_movie_person_oscar": GraphCall(movie.linked("oscar"), movie.fetch_ties),
    "get_stock_price": GraphCall(finance.price, finance.fetch_company),
    "get_stock_pe_ratio": GraphCall(finance.metric("pe_ratio"), finance.fetch_company),
    "get_stock_market_cap": GraphCall(finance.metric("market_cap"), finance.fetch_company),
    "get_stock_eps": GraphCall(finance.metric("eps"), finance.fetch_company),
    "get_stock_dividend": GraphCall(finance.dividend, finance.fetch_company),
    "get_song": GraphCall(music.song, music.fetch_song),
    "get_grammy_person": GraphCall(music.grammy_artist, music.fetch_grammy_artist),
    "get_grammy_song": GraphCall(music.grammy_song, music.fetch_grammy_song),
    "get_grammy_year": GraphCall(music.grammy_year, music.fetch_grammy_year),
    "get_nba_on_date": GraphCall(sports.nba, sports.fetch_nba),
    "get_soccer_on_date": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_soccer_last_game": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_soccer_next_game": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_open": GraphCall(music.entity, music.fetch_entity),
}
PLACES: Final = {**KINDS, "person": ("person",), "artist": ("artist",)}
"""Call -> the kind of name of each argument. get_person runs as person or artist. Years are not linked."""
TIMES: Final = {
    **dict.fromkeys(("get_stock_price", "get_nba_on_date", "get_soccer_on_date"), "arguments"),
    "get_soccer_last_game": "last time",
    "get_soccer_next_game": "next time",
}
"""Call with a time -> "arguments" (the time follows the names), or its fixed words for a time."""
