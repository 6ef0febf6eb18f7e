"""Admission: who may ask now. Weighted fair slots, and what a tenant may ask in a minute.

Slots are shared by weight among the tenants that ask: each has its part of them for itself, and what others
leave free may be borrowed, but for the parts of those that asked lately. So a tenant that asks far beyond its
part is refused, and the others find their slots free.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, Protocol

from raypipe.core.errors import Overloaded
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.tenants import ANYONE, Tenant

LATELY_S = 60.0
"""A tenant that asked within that time keeps its part of the slots free: the minute of the quotas."""

WAIT_S = 1.0
"""The longest wait for a slot of its own part that another has borrowed: answers without a language model
take less. Then 429, as for a full gateway."""


class FairSlots:
    """Slots for requests that are answered at the same time, shared by weight."""

    def __init__(
        self, most: int, tenants: Sequence[Tenant] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self._shares = {t.name: t.share for t in (*tenants, *(() if tenants else (ANYONE,)))}
        self._taken: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        """Slots in use."""
        return sum(self._taken.values())

    def part(self, tenant: Tenant) -> int:
        """Slots that are its own, at least one."""
        shares = {**self._shares, tenant.name: tenant.share}
        own: int = math.floor(self._most * tenant.share / sum(shares.values()))
        return max(1, own)

    @asynccontextmanager
    async def acquire(self, tenant: Tenant = ANYONE) -> AsyncIterator[None]:
        """A slot: at once, or after WAIT_S where one of its own part is borrowed. Raises Overloaded."""
        self._shares.setdefault(tenant.name, tenant.share)
        self._asked_at[tenant.name] = self._clock()
        mine = self._taken.get(tenant.name, 0)
        if mine >= self.part(tenant):
            if self.taken + self._reserved(tenant) >= self._most or self._waiting:
                raise Overloaded(f"{tenant.name} has {mine} of {self._most} slots")
        elif self.taken >= self._most:
            await self._wait(tenant)
        self._taken[tenant.name] = self._taken.get(tenant.name, 0) + 1
        try:
            yield
        finally:
            self._taken[tenant.name] -= 1
            while self._waiting and self.taken < self._most:
                if not (first := self._waiting.popleft()).done():
                    first.set_result(None)
                    break

    def _reserved(self, tenant: Tenant) -> int:
        """Free slots that are kept for other tenants that asked lately."""
        since = self._clock() - LATELY_S
        others = [
            Tenant(n, share=s)
            for n, s in self._shares.items()
            if n != tenant.name and self._asked_at.get(n, -math.inf) > since
        ]
        return sum(max(0, self.part(t) - self._taken.get(t.name, 0)) for t in others)

    async def _wait(self, tenant: Tenant) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except TimeoutError:
            raise Overloaded(f"all {self._most} slots are taken") from None
        finally:
            if not turn.done():
                turn.cancel()


@dataclass(slots=True)
class Bucket:
    """What is left of a minute's allowance: it fills evenly, and a debt is paid first."""

    per_minute: int
    left: float
    at: float  # seconds, when `left` was right

    def refill(self, now: float) -> float:
        """What is left now."""
        self.left = min(self.per_minute, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now
        return self.left

    def wait_s(self) -> int:
        """Seconds until one more may be taken."""
        return max(1, math.ceil((1 - self.left) * 60 / self.per_minute))


@dataclass(slots=True)
class TenantCounts:
    """What a tenant has asked since this gateway started."""

    requests: int = 0
    refused: int = 0  # with 429
    questions: int = 0  # answered
    tokens: int = 0  # of prompts and replies


@dataclass(slots=True)
class Quotas:
    """What each tenant may ask in a minute, and what it has asked. Of one gateway: two of them allow twice as
    much together."""

    clock: Callable[[], float] = time.monotonic
    usage: dict[str, TenantCounts] = field(default_factory=dict)
    _requests: dict[str, Bucket] = field(default_factory=dict)
    _tokens: dict[str, Bucket] = field(default_factory=dict)

    def admit(self, tenant: Tenant, questions: int = 1) -> None:
        """Counts a request of some questions. Raises RequestRefused (429) where a minute's are used up."""
        used = self.usage.setdefault(tenant.name, TenantCounts())
        used.requests += 1
        now = self.clock()
        tokens = self._bucket(self._tokens, tenant.name, tenant.tokens_per_minute, now)
        if tokens is not None and tokens.refill(now) < 1:
            raise self._refused(used, tokens, "tokens")
        requests = self._bucket(self._requests, tenant.name, tenant.requests_per_minute, now)
        if requests is not None:
            if requests.refill(now) < 1:
                raise self._refused(used, requests, "requests")
            requests.left -= questions

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Counts an answered question and its tokens, which are known afterwards."""
        used = self.usage.setdefault(tenant.name, TenantCounts())
        used.questions += 1
        used.tokens += tokens
        bucket = self._bucket(self._tokens, tenant.name, tenant.tokens_per_minute, self.clock())
        if bucket is not None:
            bucket.left -= tokens

    @staticmethod
    def _bucket(of: dict[str, Bucket], name: str, per_minute: int | None, now: float) -> Bucket | None:
        if per_minute is None:
            return None
        return of.setdefault(name, Bucket(per_minute, per_minute, now))

    @staticmethod
    def _refused(used: TenantCounts, bucket: Bucket, what: str) -> RequestRefused:
        used.refused += 1
        wait = bucket.wait_s()
        detail = f"This key's {bucket.per_minute} {what} a minute are used up. Retry after {wait} s."
        return RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, detail, (), {"retry-after": str(wait)})


class UsageMetrics(Protocol):
    """Receives what tenants use."""

    def used(self, tenant: str, state: Literal["admitted", "refused"], tokens: int) -> None: ...


class NoUsageMetrics:
    """Ignores all events."""

    def used(self, tenant: str, state: Literal["admitted", "refused"], tokens: int) -> None:
        """Nothing."""


class Admission:
    """Lets requests in: first a minute's quota of their tenant, then a slot."""

    def __init__(
        self, most: int, tenants: Sequence[Tenant] = (), metrics: UsageMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._slots, self._quotas = FairSlots(most, tenants, clock), Quotas(clock)
        self._metrics = metrics or NoUsageMetrics()

    @property
    def taken(self) -> int:
        """Slots in use."""
        return self._slots.taken

    def admit(self, tenant: Tenant, questions: int = 1) -> None:
        """Counts a request. Raises RequestRefused where a minute's quota is used up."""
        try:
            self._quotas.admit(tenant, questions)
        except RequestRefused:
            self._metrics.used(tenant.name, "refused", 0)
            raise

    @asynccontextmanager
    async def slot(self, tenant: Tenant = ANYONE) -> AsyncIterator[None]:
        """A slot for a request. Raises Overloaded where none is free for this tenant."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._slots.acquire(tenant))
            except Overloaded:
                self._quotas.usage.setdefault(tenant.name, TenantCounts()).refused += 1
                self._metrics.used(tenant.name, "refused", 0)
                raise
            yield

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Counts an answered question."""
        self._quotas.spend(tenant, tokens)
        self._metrics.used(tenant.name, "admitted", tokens)

    def usage(self, tenant: Tenant) -> TenantCounts:
        """What a tenant has asked since this gateway started."""
        return self._quotas.usage.get(tenant.name, TenantCounts())
