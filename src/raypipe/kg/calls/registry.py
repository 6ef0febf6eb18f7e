"""The registry of calls: each gives a relation over the tables.

Nothing that happened after the moment of asking is in a relation.

Knows SQL and the tables. Does not know names: they come linked, as keys (`fold`) for each place of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raypipe.kg.calls import finance, movie, music, sports
from raypipe.kg.calls.core import LinkedCall
from raypipe.kg.relation import Relation


@dataclass(frozen=True, slots=True)
class Function:
    kinds: tuple[str, ...]  # of its name places, for linking; "year" is not linked
    build: Callable[[LinkedCall], Relation]
    time: str = ""  # "arguments" after the names, or the fixed word


FUNCTIONS: Final[Mapping[str, Function]] = {
    "person": Function(("person",), movie.person),
    "artist": Function(("artist",), music.artist),
    "get_movie": Function(("movie",), movie.movie),
    "get_movie_person_cast": Function(("movie", "person"), movie.linked("cast")),
    "get_movie_person_crew": Function(("movie", "person"), movie.linked("crew")),
    "get_movie_person_oscar": Function(("movie", "person"), movie.linked("oscar")),
    "get_stock_price": Function(("company",), finance.price, "arguments"),
    "get_stock_pe_ratio": Function(("company",), finance.metric("pe_ratio")),
    "get_stock_market_cap": Function(("company",), finance.metric("market_cap")),
    "get_stock_eps": Function(("company",), finance.metric("eps")),
    "get_stock_dividend": Function(("company",), finance.dividend),
    "get_song": Function(("song",), music.song),
    "get_grammy_person": Function(("artist",), music.grammy_artist),
    "get_grammy_song": Function(("song",), music.grammy_song),
    "get_grammy_year": Function(("year",), music.grammy_year),
    "get_nba_on_date": Function(("nba",), sports.nba, "arguments"),
    "get_soccer_on_date": Function(("soccer",), sports.soccer, "arguments"),
    "get_soccer_last_game": Function(("soccer",), sports.soccer, "last time"),
    "get_soccer_next_game": Function(("soccer",), sports.soccer, "next time"),
    "get_open": Function(("entity",), music.entity),
}
