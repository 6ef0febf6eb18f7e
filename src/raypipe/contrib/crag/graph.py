"""Backends of a knowledge graph. They give each program its tables: whole from a folder, or from a server.

Any field of a server's response may be absent. Requests go through a `core.references.Request`; HTTP is in
`client`. The functions that fetch the rows of each call are in `calls`.
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
    """Failure of a line: the call is invalid, or the graph is down or replies with garbage."""

    def __init__(self, reason: str, detail: str, transient: bool = False):
        super().__init__(detail)
        self.fault = Fault("kg_query", reason, detail, transient)


@dataclass(frozen=True, slots=True)
class RowRequest:
    function: str  # "get_movie"; get_person is split into "person" and "artist"
    names: tuple[tuple[str, ...], ...]  # as written, for each argument; () if it is empty
    years: tuple[int, ...]  # in the call's conditions; used if it has no names
    when: When | None  # None: the call has no time
    now: Moment


@dataclass(slots=True)
class ProgramTables:
    """Tables that one program reads."""

    tables: Tables
    linker: Linker
    requests: list[str] = field(default_factory=list, kw_only=True)
    """Path and body of each request sent to a server so far, in order."""

    async def ensure(self, fetch: Fetch, need: RowRequest) -> None:
        """Fetches a call's rows if the tables lack them (by default never). Raises GraphFault if that
        fails."""


@dataclass(slots=True)
class FolderBackend(ProgramTables):
    """Embedded tables, which hold all rows from the start. All programs share them."""

    def open(self) -> ProgramTables:
        return self


@dataclass(slots=True)
class FetchedTables(ProgramTables):
    """Tables of one program, filled from a server as the program runs."""

    ask: Request
    done: set[tuple[str, str]] = field(default_factory=set)  # (kind of row, id) already in the tables

    async def ensure(self, fetch: Fetch, need: RowRequest) -> None:
        await fetch(self, need)
        self.linker.forget()

    def new(self, what: str, identity: object) -> bool:
        """Returns True for the first call with this identity: no fact may enter the tables twice."""
        key = (what, str(identity))
        if key in self.done:
            return False
        self.done.add(key)
        return True

    async def all(self, requests: Iterable[tuple[str, Object]]) -> list[Any]:
        """Sends requests concurrently and returns their results in order. After all have ended, raises the
        first exception; a defect comes before a GraphFault, which would hide it."""
        sent = (self.ask(path, body) for path, body in requests)
        results = await asyncio.gather(*sent, return_exceptions=True)
        raised = [r for r in results if isinstance(r, BaseException)]
        if raised:
            raise next((e for e in raised if not isinstance(e, GraphFault)), raised[0])
        return results


Fetch: TypeAlias = Callable[[FetchedTables, RowRequest], Awaitable[None]]
"""Function that fetches the rows of a call into the tables."""


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """Graph of a server. Each program fills its own tables; programs may run at the same time."""

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


def _list_of(reply: Any, path: str, kind: type, what: str) -> list[Any]:
    """Checks that a reply is a list of one type; null is an empty list. Raises GraphFault if not."""
    if reply is None:
        return []
    if not isinstance(reply, list) or not all(isinstance(o, kind) for o in reply):
        raise GraphFault("garbage", f"{path}: expected a list of {what}, found {str(reply)[:80]}", True)
    return reply


def objects(reply: Any, path: str) -> list[Object]:
    return _list_of(reply, path, Mapping, "objects")


def mapping(reply: Any, path: str) -> Object | None:
    """Checks that a reply is an object or null. Raises GraphFault if not."""
    return None if reply is None else objects([reply], path)[0]


def strings(reply: Any, path: str) -> list[str]:
    return _list_of(reply, path, str, "names")
