"""A graph behind the mock API: what a call needs is fetched, and stored as rows of tables.

Any field of a response may be absent. Does not know HTTP: requests go through a `client.Ask`. What each call
fetches stands next to it (`calls`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raypipe.core.kg import MOST_REQUESTS, Vectors
from raypipe.kg.client import Ask
from raypipe.kg.graph import Fetch, GraphFault, ProgramTables, RowRequest
from raypipe.kg.link import Linker, Strictness
from raypipe.kg.tables import Tables

Object: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class FetchedTables(ProgramTables):
    """The tables of one program, filled as it goes, and what of the graph is in them."""

    ask: Ask
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
        return FetchedTables(tables, linker, noted, requests=sent)
