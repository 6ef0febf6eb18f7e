"""The backend of a graph behind the mock API: every operator then works as on embedded tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from raypipe.core.kg import MOST_REQUESTS, Vectors
from raypipe.kg.client import Ask
from raypipe.kg.fetch import finance, movie, music, sports
from raypipe.kg.fetch.core import Fetch, FetchedTables, Object
from raypipe.kg.graph import GraphFault
from raypipe.kg.link import Linker, Strictness
from raypipe.kg.tables import Tables

FETCHERS: Final[Mapping[str, Fetch]] = {
    "person": movie.person,
    "artist": music.artist,
    "get_movie": movie.movie,
    "get_movie_person_cast": movie.ties,
    "get_movie_person_crew": movie.ties,
    "get_movie_person_oscar": movie.ties,
    "get_stock_price": finance.company,
    "get_stock_pe_ratio": finance.company,
    "get_stock_market_cap": finance.company,
    "get_stock_eps": finance.company,
    "get_stock_dividend": finance.company,
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

        linker = Linker(tables, self.strictness, self.vectors)
        return FetchedTables(tables, linker, noted, FETCHERS, requests=sent)
