"""Answers for tenants: which release a tenant asks, and over which part of the store.

A tenant with filters has a corpus of its own. Its questions are answered from the sources that match,
whatever the request says; its cached values are under its own name, and its answers are neither captured nor
tried on other releases. Nor is what `live@NAME` answers. Tenants without filters share the whole store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raypipe.core.protocols import Model
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.serving.answering import AnswererProtocol, ForwardingAnswerer, ReleaseRouter
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest, QueryResult
from raypipe.serving.release_follower import CLOSE_AFTER_S, ReleaseFollower
from raypipe.serving.shared_kit import ClosingKit
from raypipe.serving.tenants import Tenant
from raypipe.store.layout import LIVE


class NotAllowed(Exception):
    """A release that a tenant may not ask. The message is for the client."""


class ReleaseFollowers:
    """Follows each pointer that is asked, over one set of models: they stay while a release of any pointer
    names them."""

    def __init__(
        self,
        kit: ClosingKit,
        store: str,
        policy: DegradePolicy | None = None,
        memo_bytes: int = 0,
        close_after_s: float = CLOSE_AFTER_S,
    ) -> None:
        self._kit, self._store, self._policy = kit, store, policy
        self._memo_bytes, self._close_after_s = memo_bytes, close_after_s
        self._followers: dict[str, ReleaseFollower] = {}

    def of(self, pointer: str) -> ReleaseFollower:
        """The follower of a pointer."""
        if pointer not in self._followers:
            self._followers[pointer] = ReleaseFollower(
                self._kit, self._store, self._policy, self._close_after_s, self._memo_bytes, pointer,
                self._models,
            )  # fmt: skip
        return self._followers[pointer]

    def _models(self) -> Sequence[Model]:
        """The models of the releases that answer now, of all pointers."""
        return [m for f in self._followers.values() for m in f.models()]


class TenantRouter:
    """Picks the answerer of each request of a tenant."""

    def __init__(self, router: ReleaseRouter, followers: ReleaseFollowers | None) -> None:
        """`followers` None: a named recipe answers, and there are no releases."""
        self._router, self._followers = router, followers

    async def current(self, tenant: Tenant, pointer: str = "") -> AnswererProtocol:
        """The answerer of a pointer, "": the tenant's first. Raises NotAllowed for one that it may not ask,
        and for a tenant with filters where the recipe reads past them; NotReady."""
        named = pointer or tenant.releases[0]
        if named not in tenant.releases:
            raise NotAllowed(f"This key may ask {', '.join(tenant.releases)}.")
        if named == LIVE and not tenant.scope:
            return await self._router.current()
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
    """Answers from the part of a store that a tenant may search."""

    def __init__(self, answerer: AnswererProtocol, tenant: Tenant) -> None:
        super().__init__(answerer)
        self._tenant = tenant

    def _within(self, request: QueryRequest) -> QueryRequest:
        return replace(request, scope=self._tenant.scope, corpus=self._tenant.corpus)

    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.answer(self._within(request), listener)

    async def retrieve(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        return await self._answerer.retrieve(self._within(request), listener)
