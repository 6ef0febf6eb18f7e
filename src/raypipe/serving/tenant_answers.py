"""Answers for tenants: which release a tenant asks, and over which part of the store.

A tenant with filters has a corpus of its own. Its questions are answered from the sources that match,
whatever the request says; its cached values are under its own name, and its answers are neither captured nor
tried on other releases. Nor is what `live@NAME` answers. Tenants without filters share the whole store.
"""

from __future__ import annotations

from dataclasses import replace

from raypipe.serving.answering import AnswererProtocol, ForwardingAnswerer, ReleaseRouter
from raypipe.serving.capture import Capture, CapturingAnswerer
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest, QueryResult
from raypipe.serving.release_follower import ReleaseFollowers
from raypipe.serving.tenants import Tenant
from raypipe.store.layout import LIVE


class NotAllowed(Exception):
    """A release that a tenant may not ask. The message is for the client."""


class TenantRouter:
    def __init__(
        self, router: ReleaseRouter, followers: ReleaseFollowers | None, capture: Capture | None = None
    ) -> None:
        """`followers` None: a named recipe answers. `capture`: of tenants that share the store."""
        self._router, self._followers, self._capture = router, followers, capture

    async def current(self, tenant: Tenant, pointer: str = "") -> AnswererProtocol:
        """The answerer of a pointer, "": the tenant's first. Raises NotAllowed for one that it may not ask,
        and for a tenant with filters where the recipe reads past them; NotReady."""
        named = pointer or tenant.releases[0]
        if named not in tenant.releases:
            raise NotAllowed(f"This key may ask {', '.join(tenant.releases)}.")
        if named == LIVE and not tenant.scope:
            found = await self._router.current()
            return found if self._capture is None else CapturingAnswerer(found, self._capture)
        if self._followers is None:
            if named != LIVE:
                raise NotAllowed("This endpoint serves one recipe and no releases.")
            found = await self._router.current()
        else:
            found = await self._followers.of(named).current()
        if not tenant.scope:
            return found
        if found.recipe.searches_all():
            raise NotAllowed("This release searches the whole store, and this key may search a part of it.")
        return ScopedAnswerer(found, tenant)


class ScopedAnswerer(ForwardingAnswerer):
    def __init__(self, answerer: AnswererProtocol, tenant: Tenant) -> None:
        super().__init__(answerer)
        self._tenant = tenant

    def _within(self, request: QueryRequest) -> QueryRequest:
        return replace(request, scope=self._tenant.scope, corpus=self._tenant.corpus)

    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.answer(self._within(request), listener)

    async def retrieve(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.retrieve(self._within(request), listener)
