"""The registry of calls: each gives a relation over the tables.

Nothing that happened after the moment of asking is in a relation.

Knows SQL and the tables. Does not know names: they come linked, as keys (`fold`) for each place of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from raypipe.kg.calls import finance, movie, music, sports
from raypipe.kg.calls.core import LinkedCall
from raypipe.kg.language.program import KINDS
from raypipe.kg.relation import Relation

CALLS: Final[Mapping[str, Callable[[LinkedCall], Relation]]] = {
    "person": movie.person,
    "artist": music.artist,
    "get_movie": movie.movie,
    "get_movie_person_cast": movie.linked("cast"),
    "get_movie_person_crew": movie.linked("crew"),
    "get_movie_person_oscar": movie.linked("oscar"),
    "get_stock_price": finance.price,
    "get_stock_pe_ratio": finance.metric("pe_ratio"),
    "get_stock_market_cap": finance.metric("market_cap"),
    "get_stock_eps": finance.metric("eps"),
    "get_stock_dividend": finance.dividend,
    "get_song": music.song,
    "get_grammy_person": music.grammy_artist,
    "get_grammy_song": music.grammy_song,
    "get_grammy_year": music.grammy_year,
    "get_nba_on_date": sports.nba,
    "get_soccer_on_date": sports.soccer,
    "get_soccer_last_game": sports.soccer,
    "get_soccer_next_game": sports.soccer,
    "get_open": music.entity,
}
PLACES: Final = {**KINDS, "person": ("person",), "artist": ("artist",)}
"""Each call, with the kinds of its name places; get_person is one of the two. A year is not linked."""
TIMES: Final = {
    **dict.fromkeys(("get_stock_price", "get_nba_on_date", "get_soccer_on_date"), "arguments"),
    "get_soccer_last_game": "last time",
    "get_soccer_next_game": "next time",
}
"""Calls with a time: "arguments" after the names, or the fixed word."""
