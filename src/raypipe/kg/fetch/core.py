"""What all fetchers share: the tables that they fill, and checks of what the endpoints return.

Any field of a response may be absent. Does not know HTTP: requests go through a `client.Ask`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raypipe.kg.client import Ask
from raypipe.kg.graph import GraphFault, ProgramTables, RowRequest

Object: TypeAlias = Mapping[str, Any]
Fetch: TypeAlias = "Callable[[FetchedTables, RowRequest], Awaitable[None]]"
"""Fetches what a call needs into the tables."""


@dataclass(slots=True)
class FetchedTables(ProgramTables):
    """The tables of one program, filled as it goes, and what of the graph is in them."""

    ask: Ask
    fetchers: Mapping[str, Fetch]  # name of a call -> what fetches its rows
    done: set[tuple[str, str]] = field(default_factory=set)  # (what, id) already in the tables

    async def ensure(self, need: RowRequest) -> None:
        await self.fetchers[need.function](self, need)
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
    """A list of objects; null is an empty one. Raises GraphFault for anything else."""
    return _list_of(found, path, Mapping, "objects")


def mapping(found: Any, path: str) -> Object | None:
    """An object or null. Raises GraphFault for anything else."""
    return None if found is None else objects([found], path)[0]


def strings(found: Any, path: str) -> list[str]:
    """A list of names; null is an empty one. Raises GraphFault for anything else."""
    return _list_of(found, path, str, "names")
