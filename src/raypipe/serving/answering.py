"""What the routes need of whatever answers."""

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
