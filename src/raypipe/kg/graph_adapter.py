"""Opens the graph that an entry of graphs.yaml names, as steps use it (`protocols.Graph`)."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from raypipe.core.errors import ConfError, DataError
from raypipe.core.kg import CallResult, Mention, Request, Vectors
from raypipe.core.protocols import Embed, GraphRef, Model
from raypipe.core.records import Fault
from raypipe.kg.execute import run
from raypipe.kg.graph import FolderBackend, GraphBackend, GraphFault, ServerBackend
from raypipe.kg.language.parser import Parse, parser
from raypipe.kg.language.time_words import moment
from raypipe.kg.link import LEVELS, Linker, Strictness
from raypipe.kg.mentions import find_mentions
from raypipe.kg.tables import Contents, read_files, require_version, tables_of, version_of

Clock: TypeAlias = Callable[[], float]
"""Seconds, from any origin."""


@dataclass(frozen=True, slots=True)
class GraphAdapter:
    """`protocols.Graph` over tables or a server."""

    ref: GraphRef
    graph: GraphBackend
    parse: Parse
    clock: Clock = time.perf_counter  # of how long a line takes

    async def run(self, program: str, asked_at: str, domain: str = "") -> list[CallResult]:
        return await run(self.parse(program), self.graph, moment(asked_at), domain, self.clock)

    async def mentions(self, texts: Sequence[str], asked_at: Sequence[str]) -> list[list[Mention] | Fault]:
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
        strict, vectors = _linking(self.ref, embedder)
        graph: GraphBackend = self.graph
        if isinstance(graph, ServerBackend):
            graph = dataclasses.replace(graph, ask=wrap(graph.ask), vectors=vectors)
        elif vectors is not None:
            graph = FolderBackend(graph.tables, Linker(graph.tables, strict, vectors))
        return dataclasses.replace(self, graph=graph)


def require_graph(ref: GraphRef) -> None:
    """Raises what opening a graph raises. A server is asked nothing: its version is what its entry says."""
    require_location(ref)
    if ref.kind == "folder":
        _checked(ref)


def require_location(ref: GraphRef) -> None:
    if not ref.where:
        raise ConfError(
            f"graph {ref.name!r}: expected its location, as --graph {ref.name}=FOLDER; data of "
            f"`raypipe synth` bring their own"
        )


def _checked(ref: GraphRef) -> Contents:
    contents = read_files(Path(ref.where))
    require_version(f"graph {ref.name!r}", ref.where, ref.version, version_of(contents))
    return contents


def open_tables(ref: GraphRef, embedder: Callable[[Model], Embed], clock: Clock) -> GraphAdapter:
    """Opens an entry of kind folder. Raises DataError for a folder without tables, ConfError for one that is
    not what its version says."""
    tables = tables_of(_checked(ref))
    folder = FolderBackend(tables, Linker(tables, *_linking(ref, embedder)))
    return GraphAdapter(ref, folder, parser(ref.grammar), clock)


def open_server(
    ref: GraphRef, ask: Request, embedder: Callable[[Model], Embed], clock: Clock
) -> GraphAdapter:
    """Opens an entry of kind server, whose requests go through `ask`."""
    return GraphAdapter(ref, ServerBackend(ask, *_linking(ref, embedder)), parser(ref.grammar), clock)


def _linking(ref: GraphRef, embedder: Callable[[Model], Embed]) -> tuple[Strictness, Vectors | None]:
    """How strictly an entry's names are linked, and what compares them by meaning, if anything."""
    strict = Strictness({**LEVELS, **ref.levels}, least_near=ref.near)
    if ref.embedder is None:
        return strict, None
    embed = embedder(ref.embedder)
    return strict, lambda names: embed(names, "passage")


def tables_version(folder: Path) -> str:
    return version_of(read_files(folder))
