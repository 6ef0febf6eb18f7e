"""Adapter of a graph in graphs.yaml for steps: it runs programs, and finds the graph's names in texts."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from raypipe.contrib.crag.calls.movie import movies, people
from raypipe.contrib.crag.calls.sports import fetch_soccer
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import (
    FetchedTables,
    FolderBackend,
    GraphBackend,
    GraphFault,
    RowRequest,
    ServerBackend,
    mapping,
    strings,
)
from raypipe.contrib.crag.language.parser import Parse, parser
from raypipe.contrib.crag.language.time_words import When
from raypipe.contrib.crag.link import LEVELS, Linker, Strictness
from raypipe.contrib.crag.names import fold, known_names, short_company, tickers_in
from raypipe.contrib.crag.records import CallResult, Mention, Vectors
from raypipe.contrib.crag.tables import read_files, tables_of, version_of
from raypipe.core.errors import DataError
from raypipe.core.protocols import Embed, Model
from raypipe.core.records import Fault
from raypipe.core.references import Request
from raypipe.text.moments import Moment, moment

if TYPE_CHECKING:
    from raypipe.contrib.crag.references import GraphRef  # it imports this module


Clock: TypeAlias = Callable[[], float]
"""Function that returns seconds, from any origin."""


@dataclass(frozen=True, slots=True)
class GraphAdapter:
    """Opened knowledge graph, over tables or a server. Any number of programs may run at the same time."""

    ref: GraphRef
    graph: GraphBackend
    parse: Parse
    clock: Clock = time.perf_counter  # measures how long a line takes

    async def run(self, program: str, asked_at: str, domain: str = "") -> list[CallResult]:
        """Runs a program, as `execute.run`. Raises DataError for an unreadable moment."""
        return await run(self.parse(program), self.graph, moment(asked_at), domain, self.clock)

    async def mentions(self, texts: Sequence[str], asked_at: Sequence[str]) -> list[list[Mention] | Fault]:
        """Finds the graph's names in each text, as of its moment, in the text's order. Of overlapping names
        the longest counts. If a server is down, or its graph cannot read the moment, the text's result is a
        Fault."""
        if isinstance(self.graph, FolderBackend):
            return [self.graph.linker.mentions(text) for text in texts]
        server = self.graph

        async def found(text: str, when: str) -> list[Mention] | Fault:
            try:
                return await find_mentions(server, text, moment(when))
            except GraphFault as e:
                return dataclasses.replace(e.fault, step="match_calls")
            except DataError as e:
                return Fault("match_calls", "bad_time", str(e), False)

        return list(await asyncio.gather(*map(found, texts, asked_at)))

    def through(self, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]) -> GraphAdapter:
        """Returns this graph with the requests to a server sent through `wrap`, such as a memo's wrapper, and
        with vectors of names from `embedder`."""
        strict, vectors = _linking(self.ref, embedder)
        graph: GraphBackend = self.graph
        if isinstance(graph, ServerBackend):
            graph = dataclasses.replace(graph, ask=wrap(graph.ask), vectors=vectors)
        elif vectors is not None:
            graph = FolderBackend(graph.tables, Linker(graph.tables, strict, vectors))
        return dataclasses.replace(self, graph=graph)


def open_tables(ref: GraphRef, embedder: Callable[[Model], Embed], clock: Clock) -> GraphAdapter:
    """Opens an entry of kind folder. Raises DataError if the folder has no tables, and ConfError if its
    content has another version than the entry."""
    contents = read_files(Path(ref.where))
    ref.require_version(version_of(contents))
    tables = tables_of(contents)
    folder = FolderBackend(tables, Linker(tables, *_linking(ref, embedder)))
    return GraphAdapter(ref, folder, parser(ref.grammar), clock)


def open_server(
    ref: GraphRef, ask: Request, embedder: Callable[[Model], Embed], clock: Clock
) -> GraphAdapter:
    """Opens an entry of kind server. Its requests go through `ask`."""
    return GraphAdapter(ref, ServerBackend(ask, *_linking(ref, embedder)), parser(ref.grammar), clock)


def _linking(ref: GraphRef, embedder: Callable[[Model], Embed]) -> tuple[Strictness, Vectors | None]:
    """Returns an entry's strictness of linking, and its function for vectors of names; None: no embedder."""
    strict = Strictness({**LEVELS, **ref.levels}, least_near=ref.near)
    if ref.embedder is None:
        return strict, None
    embed = embedder(ref.embedder)
    return strict, lambda names: embed(names, "passage")


def tables_version(folder: Path) -> str:
    return version_of(read_files(folder))


# ---------------------------------------------------------------- names in a text

_SEARCHES = {
    "artist": "/music/search_artist_entity_by_name",
    "song": "/music/search_song_entity_by_name",
    "entity": "/open/search_entity_by_name",
}
_COMPANIES, _TICKER = "/finance/get_company_name", "/finance/get_ticker_by_name"
_INFO = "/finance/get_info"


async def find_mentions(graph: ServerBackend, text: str, now: Moment) -> list[Mention]:
    """Finds the names of a server's graph in a text, in its order. Of overlapping names the longest counts.

    A server has no list of its names, but its searches rank names by the words shared with the query. So each
    search gets the whole text, and its results are matched against the text as with embedded tables. Teams
    and clubs come from `names`, clubs of other leagues from the last weekend's games. Companies are found by
    name or ticker: each word that may be a ticker is looked up, and capitals tell it from a word.

    Sends at most `records.MOST_SEARCHES` requests. Raises GraphFault if the server is down or sends
    garbage."""
    rows = graph.open()
    await movies(rows, [text])
    await people(rows, [text], films=False)
    paths = [*_SEARCHES.values(), _COMPANIES]
    *by_table, companies = [
        strings(names, path)
        for path, names in zip(paths, await rows.all((p, {"query": text}) for p in paths), strict=True)
    ]
    for table, names in zip(_SEARCHES, by_table, strict=True):
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
