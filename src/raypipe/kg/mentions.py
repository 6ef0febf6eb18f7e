"""Finds the names of a server's graph in a text.

A server has no list of its names, but its searches rank names by the words that they share with the query.
So the whole text is sent to each search, and the results are matched against it as with embedded tables.
Teams and clubs come from `kg.aliases`, clubs of other leagues from the last weekend's games. A share is found
by its company's name or its ticker: each word that may be a ticker is looked up.
"""

from __future__ import annotations

from datetime import timedelta

from raypipe.core.kg import Mention
from raypipe.kg.aliases import known_names, short_company, tickers_in
from raypipe.kg.calls.movie import movies, people
from raypipe.kg.calls.sports import fetch_soccer
from raypipe.kg.graph import FetchedTables, RowRequest, ServerBackend, mapping, strings
from raypipe.kg.language.time_words import Moment, When
from raypipe.kg.normalize import fold

_SEARCHES = {
    "artist": "/music/search_artist_entity_by_name",
    "song": "/music/search_song_entity_by_name",
    "entity": "/open/search_entity_by_name",
}
_COMPANIES, _TICKER = "/finance/get_company_name", "/finance/get_ticker_by_name"
_INFO = "/finance/get_info"


async def find_mentions(graph: ServerBackend, text: str, now: Moment) -> list[Mention]:
    """The mentions in the text's order, the longest where they overlap.

    Capitals tell a ticker from a word. Sends at most `core.kg.MOST_SEARCHES` requests. Raises GraphFault for
    a server that is down or replies with garbage."""
    rows = graph.open()
    await movies(rows, [text])
    await people(rows, [text], films=False)
    paths = [*_SEARCHES.values(), _COMPANIES]
    *found, companies = [
        strings(names, path)
        for path, names in zip(paths, await rows.all((p, {"query": text}) for p in paths), strict=True)
    ]
    for table, names in zip(_SEARCHES, found, strict=True):
        rows.tables.insert(table, [{"name": n} for n in names])
    await _companies(rows, text, companies)
    known = known_names()["teams"]
    teams = [{"name": t, "sport": sport} for sport, names in known.items() for t in names]
    nicknames = [{"name": t, "sport": "nba", "alias": t.split()[-1]} for t in known["nba"]]
    rows.tables.insert("team", [*teams, *nicknames])
    sunday = now.day - timedelta(days=(now.day.weekday() + 1) % 7)
    for day in (sunday - timedelta(days=1), sunday):
        await fetch_soccer(rows, RowRequest("get_soccer_on_date", ((),), (), When("days", day, day), now))
    rows.linker.forget()
    return rows.linker.mentions(text)


async def _companies(rows: FetchedTables, text: str, names: list[str]) -> None:
    there = f" {fold(text)} "
    folded = {n: fold(n) or "" for n in names}
    meant = [n for n in names if any(f" {a} " in there for a in (folded[n], short_company(folded[n])))]
    tickers = await rows.all((_TICKER, {"query": n}) for n in meant)
    known = [{"ticker": t, "name": n} for n, t in zip(meant, tickers, strict=True) if isinstance(t, str)]
    rows.tables.insert("company", known)
    symbols = [s for s in tickers_in(text) if s not in {k["ticker"] for k in known}]
    infos = await rows.all((_INFO, {"query": s}) for s in symbols)
    there_are = [s for s, info in zip(symbols, infos, strict=True) if mapping(info, _INFO) is not None]
    rows.tables.insert("company", [{"ticker": s} for s in there_are])
