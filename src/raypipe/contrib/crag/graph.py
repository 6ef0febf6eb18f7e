"""The backends of a knowledge graph: tables for each program, whole from a folder or fetched from a server.

Any field of a server's response may be absent. Does not know HTTP: requests go through a
`core.references.Request`. What each call fetches stands next to it (`calls`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from raypipe.contrib.crag.language.time_words import When
from raypipe.contrib.crag.link import Linker, Strictness
from raypipe.contrib.crag.records import MOST_REQUESTS, Vectors
from raypipe.contrib.crag.tables import Tables, load
from raypipe.core.records import Fault
from raypipe.core.references import Request
from raypipe.text.moments import Moment

Object: TypeAlias = Mapping[str, Any]


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


@dataclass(slots=True)
class ProgramTables:
    """The tables of one program, whose rows are all there."""

    tables: Tables
    linker: Linker
    requests: list[str] = field(default_factory=list, kw_only=True)
    """Requests sent to a server so far: path and body of each, in order."""

    async def ensure(self, fetch: Fetch, need: RowRequest) -> None:
        """Fetches the rows into the tables unless they are there. Raises GraphFault if that fails."""


@dataclass(slots=True)
class FolderBackend(ProgramTables):
    """Embedded tables: all rows are there from the start, for every program alike."""

    def open(self) -> ProgramTables:
        return self


@dataclass(slots=True)
class FetchedTables(ProgramTables):
    """The tables of one program, filled as it goes, and what of the graph is in them."""

    ask: Request
    done: set[tuple[str, str]] = field(default_factory=set)  # (what, id) already in the tables

    async def ensure(self, fetch: Fetch, need: RowRequest) -> None:
        await fetch(self, need)
        self.linker.forget()

    def new(self, what: str, identity: object) -> bool:
        """True the first time; a fact must not be in the tables twice."""
        key = (what, str(identity))
        if key in self.done:
            return False
        self.done.add(key)
        return True

    async def all(self, requests: Iterable[tuple[str, Object]]) -> list[Any]:
        """Sends several requests concurrently: their results in order. The first fault cancels the others."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(path, body)) for path, body in requests]
        except ExceptionGroup as e:
            raise e.exceptions[0] from e  # a defect, unwrapped from the group
        for t in tasks:
            if isinstance(found := t.result(), GraphFault):
                raise found
        return [t.result() for t in tasks]

    async def _one(self, path: str, body: Object) -> Any:
        try:
            return await self.ask(path, body)
        except GraphFault as e:  # a group would wrap it
            return e


Fetch: TypeAlias = Callable[[FetchedTables, RowRequest], Awaitable[None]]
"""Fetches what a call needs into the tables."""


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """The graph of a server. Each program has tables of its own, filled as it goes; they may run at once."""

    ask: Request
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
        return FetchedTables(tables, linker, noted, requests=sent)


GraphBackend: TypeAlias = FolderBackend | ServerBackend


def open_folder(path: Path) -> FolderBackend:
    tables = load(path)
    return FolderBackend(tables, Linker(tables))


def _list_of(found: Any, path: str, kind: type, what: str) -> list[Any]:
    """A list of one kind; null is an empty one. Raises GraphFault for anything else."""
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(o, kind) for o in found):
        raise GraphFault("garbage", f"{path}: expected a list of {what}, found {str(found)[:80]}", True)
    return found


def objects(found: Any, path: str) -> list[Object]:
    return _list_of(found, path, Mapping, "objects")


def mapping(found: Any, path: str) -> Object | None:
    """An object or null. Raises GraphFault for anything else."""
    return None if found is None else objects([found], path)[0]


def strings(found: Any, path: str) -> list[str]:
    return _list_of(found, path, str, "names")
