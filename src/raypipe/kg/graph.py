"""The backends of a knowledge graph: tables for each program, and where their rows come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from raypipe.core.kg import Vectors
from raypipe.core.records import Fault
from raypipe.kg.language.time_words import Moment, When
from raypipe.kg.link import Linker, Strictness
from raypipe.kg.tables import Tables, load


class GraphFault(Exception):
    """A line cannot be answered: the call is invalid, or the graph is down or replies with garbage."""

    def __init__(self, reason: str, detail: str, transient: bool = False):
        super().__init__(detail)
        self.fault = Fault("kg_query", reason, detail, transient)


@dataclass(frozen=True, slots=True)
class RowRequest:
    function: str  # "get_movie"; get_person is split into "person" and "artist"
    names: tuple[tuple[str, ...], ...]  # as written, for each name place; () where it is free
    years: tuple[int, ...]  # that conditions name, where nothing else narrows the call
    when: When | None  # of calls with a time
    now: Moment


Fetch: TypeAlias = Callable[[Any, RowRequest], Awaitable[None]]
"""Fetches what a call needs into `fetch.FetchedTables`."""


@dataclass(slots=True)
class ProgramTables:
    """The tables of one program, whose rows are all there."""

    tables: Tables
    linker: Linker
    requests: list[str] = field(default_factory=list, kw_only=True)
    """Those sent to a server so far: path and body of each, in order."""

    async def ensure(self, fetch: Fetch, need: RowRequest) -> None:
        """Fetches the rows into the tables unless they are there. Raises GraphFault if that fails."""


class GraphBackend(Protocol):
    """A knowledge graph. `open` gives the tables for one program; programs may run side by side."""

    def open(self) -> ProgramTables: ...


@dataclass(slots=True)
class FolderBackend(ProgramTables):
    """Embedded tables: all rows are there from the start, for every program alike."""

    def open(self) -> ProgramTables:
        return self


def open_folder(path: Path) -> FolderBackend:
    return over(load(path), None, None)


def over(tables: Tables, strictness: Strictness | None, vectors: Vectors | None) -> FolderBackend:
    return FolderBackend(tables, Linker(tables, strictness, vectors))
