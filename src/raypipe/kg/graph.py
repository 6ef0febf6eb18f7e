"""The graph that programs run on: tables, and a backend that fills them with rows.

Knows tables and time. Does not know how rows are fetched (`client`) nor what is asked of them (`execute`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raypipe.core.records import Fault
from raypipe.kg.language.time_words import Moment, When
from raypipe.kg.link import Linker, Strictness, Vectors
from raypipe.kg.tables import Tables, load


class GraphFault(Exception):
    """A line has no answer: the call makes no sense, or the graph is down or sends garbage."""

    def __init__(self, reason: str, detail: str, transient: bool = False):
        super().__init__(detail)
        self.fault = Fault("kg_query", reason, detail, transient)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The rows that a call is about."""

    function: str  # "get_movie"; get_person is split into "person" and "artist"
    names: tuple[tuple[str, ...], ...]  # as written, for each name place; () where it is free
    years: tuple[int, ...]  # that conditions name, where nothing else narrows the call
    when: When | None  # of calls with a time
    now: Moment


class ProgramTables(Protocol):
    """The tables of one program, filled as it goes."""

    tables: Tables
    linker: Linker

    @property
    def requests(self) -> Sequence[str]:
        """What was asked of a server so far: path and body of each, in order."""
        ...

    async def bring(self, need: RowRequest) -> None:
        """Sees to it that the rows are in the tables. Raises GraphFault where they cannot be fetched."""
        ...


class GraphBackend(Protocol):
    """A knowledge graph. `open` gives the tables for one program; programs may run side by side."""

    def open(self) -> ProgramTables: ...


@dataclass(slots=True)
class FolderBackend:
    """Embedded tables: all rows are there from the start, for every program alike."""

    tables: Tables
    linker: Linker

    @property
    def requests(self) -> Sequence[str]:
        return ()

    def open(self) -> ProgramTables:
        return self

    async def bring(self, need: RowRequest) -> None:
        return None


def open_folder(
    path: Path, strictness: Strictness | None = None, vectors: Vectors | None = None
) -> FolderBackend:
    """The graph in a folder of Parquet, CSV or JSON tables. Raises DataError for what is none."""
    tables = load(path)
    return FolderBackend(tables, Linker(tables, strictness, vectors))
