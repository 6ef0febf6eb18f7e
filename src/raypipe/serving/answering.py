"""What the routes need of whatever answers, and the base of those that stand in front of another one."""

from __future__ import annotations

from typing import Protocol

from raypipe.recipes.recipe import Recipe
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest, QueryResult
from raypipe.serving.store_snapshot import StoreSnapshot


class AnswererProtocol(Protocol):
    """Answers questions: what `serving.answerer.Answerer` gives the routes."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def release(self) -> str | None: ...
    async def ready(self) -> list[str]: ...
    async def snapshot(self) -> StoreSnapshot: ...
    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult: ...
    async def retrieve(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult: ...


class ReleaseRouter(Protocol):
    """Picks the answerer of each request, which then answers all of it."""

    async def current(self) -> AnswererProtocol: ...


class ForwardingAnswerer:
    """An answerer that forwards every call to another one; a subclass overrides only what it changes."""

    def __init__(self, answerer: AnswererProtocol) -> None:
        self._answerer = answerer

    @property
    def recipe(self) -> Recipe:
        return self._answerer.recipe

    @property
    def release(self) -> str | None:
        return self._answerer.release

    async def ready(self) -> list[str]:
        return await self._answerer.ready()

    async def snapshot(self) -> StoreSnapshot:
        return await self._answerer.snapshot()

    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.answer(request, listener)

    async def retrieve(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.retrieve(request, listener)
