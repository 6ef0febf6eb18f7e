"""Limits of a request: who may ask, by key, and now (weighted fair slots of one gateway, quotas of a minute);
the size of its body, the bytes of all of them, the time to send one, a client that disconnects.

Without keys only requests from this machine are allowed. Slots are shared by weight among the tenants that
ask: each has its part of them for itself, and what others leave free may be borrowed, but for the parts of
those that asked lately. So a tenant that asks far beyond its part is refused, and the others find their slots
free.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from raypipe.core.errors import Overloaded
from raypipe.serving.access import ApiKeys, RequestLimits
from raypipe.serving.http.errors import RETRY_AFTER_S, ClientGone, RequestRefused
from raypipe.serving.http.middleware import RequestMetrics
from raypipe.serving.tenants import ANYONE, QuotaCounter, Quotas, Tenant, tenant_of

T = TypeVar("T")


class BytesInFlight:
    """Bytes of all bodies that a gateway holds, up to a bound."""

    def __init__(self, most: int, metrics: RequestMetrics) -> None:
        self._most, self._held, self._metrics = most, 0, metrics

    @contextmanager
    def body(self, size: int) -> Iterator[Callable[[int], None]]:
        """Yields what counts the next bytes of a body, which are in flight until the end of the block.

        Bytes count as they come: a client that declares many and sends none takes none from others. Raises
        Overloaded, as the count does: for a `size` that does not fit now, then for bytes that do not.
        """
        held = 0

        def count(more: int) -> None:
            nonlocal held
            self._require(more)
            held += more
            self._add(more)

        self._require(size)
        try:
            yield count
        finally:
            self._add(-held)

    def _require(self, count: int) -> None:
        if self._held + count > self._most:
            raise Overloaded(f"{self._held} of {self._most} bytes are in flight, {count} more came")

    def _add(self, count: int) -> None:
        self._held += count
        self._metrics.bytes_in_flight(self._held)


async def read_body(request: Request, limits: RequestLimits, in_flight: BytesInFlight) -> bytes:
    """Reads the body, whose bytes are in flight until the request is answered (`app.holding`).

    Refuses types that a form on another site can send: they are never JSON."""
    unsupported = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused(unsupported, "Expected the header `content-type: application/json`.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(unsupported, "Expected a body without compression.")
    detail = f"Expected at most {limits.max_body_bytes} bytes."
    too_large = RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, (), _CLOSE)
    declared = request.headers.get("content-length", "")
    size = int(declared[:MOST_DIGITS]) if declared.isdecimal() else 0  # 0: the body comes in chunks
    if size > limits.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        count = request.state.held.enter_context(in_flight.body(size))
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limits.max_body_bytes:
                    raise too_large
                count(len(chunk))
                body += chunk
    except Overloaded:
        detail = "Too many bytes of requests in flight. Retry later."
        wait = {"retry-after": str(RETRY_AFTER_S)}
        raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, detail, (), wait | _CLOSE) from None
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        detail = f"Expected the whole body within {limits.body_timeout_s:g} s."
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, detail, (), _CLOSE) from None
    return bytes(body)


_CLOSE = {"connection": "close"}  # the rest of the body is not read
MOST_DIGITS = 19  # of a declared size: those of 2^63. Python refuses to convert thousands


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled when the client disconnects. Raises ClientGone."""
    task, client_gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({task, client_gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for waiting in (task, client_gone):
            waiting.cancel()
        await asyncio.gather(task, client_gone, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Returns when the client has closed its connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


LATELY_S = 60.0
"""A tenant that asked within that time keeps its part of the slots free: the minute of the quotas."""

WAIT_S = 1.0
"""The longest wait for a slot of its own part that another has borrowed: answers without a language model
take less. Then 429, as for a full gateway."""


class FairSlots:
    def __init__(
        self, most: int, tenants: Sequence[Tenant] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self._shares = {t.name: t.share for t in (*tenants, *(() if tenants else (ANYONE,)))}
        self._taken: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()  # name of the tenant, its turn

    @property
    def taken(self) -> int:
        return sum(self._taken.values())

    def part(self, name: str) -> int:
        """Slots that are a tenant's own, at least one."""
        own: int = math.floor(self._most * self._shares[name] / sum(self._shares.values()))
        return max(1, own)

    @asynccontextmanager
    async def acquire(self, tenant: Tenant = ANYONE) -> AsyncIterator[None]:
        """A slot: at once, or after WAIT_S where one of its own part is borrowed. Raises Overloaded."""
        self._shares.setdefault(tenant.name, tenant.share)
        self._asked_at[tenant.name] = self._clock()
        taken = self._taken.get(tenant.name, 0)
        mine = taken + sum(name == tenant.name for name, _ in self._waiting)
        beyond, kept = mine >= self.part(tenant.name), self._reserved(tenant.name)
        if beyond and (self._waiting or self.taken + kept >= self._most):
            raise Overloaded(f"{tenant.name} has {mine} of {self._most} slots")
        if self.taken >= self._most:
            await self._wait(tenant.name)
        else:
            self._taken[tenant.name] = taken + 1
        try:
            yield
        finally:
            self._give_back(tenant.name)

    def _give_back(self, name: str) -> None:
        self._taken[name] -= 1
        while self._waiting and self.taken < self._most:
            first, turn = self._waiting.popleft()
            self._taken[first] = self._taken.get(first, 0) + 1  # before it runs: no other takes it
            turn.set_result(None)

    def _reserved(self, name: str) -> int:
        """Free slots that are kept for other tenants that asked lately."""
        since = self._clock() - LATELY_S
        others = {n for n, at in self._asked_at.items() if at > since} - {name}
        return sum(max(0, self.part(n) - self._taken.get(n, 0)) for n in others)

    async def _wait(self, name: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, turn))
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.shield(turn)
        except BaseException as e:
            if (name, turn) in self._waiting:
                self._waiting.remove((name, turn))
            else:  # its turn came, too late
                self._give_back(name)
            if isinstance(e, TimeoutError):
                raise Overloaded(f"all {self._most} slots are taken") from None
            raise


class Admission:
    """Lets requests in: first a minute's quota of their tenant, then a slot."""

    def __init__(
        self, most: int, tenants: Sequence[Tenant] = (), metrics: RequestMetrics | None = None,
        quotas: QuotaCounter | None = None,
    ) -> None:  # fmt: skip
        """`quotas` count for all gateways; None: for this one alone."""
        self._slots = FairSlots(most, tenants)
        self._quotas = quotas or Quotas(tenants)
        self._metrics = metrics or RequestMetrics()

    async def admit(self, tenant: Tenant, questions: int = 1) -> None:
        """Counts a request. Raises RequestRefused (429) for a quota used up, Unavailable: not countable."""
        used = await self._quotas.admit(tenant.name, questions) if tenant.limited else None
        if used is None:
            return
        self._metrics.tenant_used(tenant.name, "refused", 0)
        quota, wait = f"{used.per_minute} {used.what}", {"retry-after": str(used.wait_s)}
        detail = f"This key's {quota} a minute are used up. Retry after {used.wait_s} s."
        raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, detail, (), wait)

    @asynccontextmanager
    async def slot(self, tenant: Tenant = ANYONE) -> AsyncIterator[None]:
        """A slot for a request. Raises Overloaded where none is free for this tenant."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._slots.acquire(tenant))
            except Overloaded:
                self._metrics.tenant_used(tenant.name, "refused", 0)
                raise
            yield

    async def spend(self, tenant: Tenant, tokens: int) -> None:
        self._metrics.tenant_used(tenant.name, "admitted", tokens)
        if tenant.limited:
            await self._quotas.spend(tenant.name, tokens)


def authorize(keys: ApiKeys, headers: Headers, client: str | None, tenants: Sequence[Tenant] = ()) -> Tenant:
    """Who asks: a tenant by its key, else ANYONE. Raises RequestRefused unless this request is allowed."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (tenant := tenant_of(key.strip(), tenants)) is not None:
        return tenant
    if keys.open:
        return ANYONE
    if keys.digests or tenants:
        if scheme.lower() != "bearer" or not keys.accepts(key.strip()):
            detail = "Unknown key: ask who runs the endpoint for one."
            if scheme.lower() != "bearer":
                detail = "Expected a key: the header `authorization: Bearer KEY`."
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, detail, (), {"www-authenticate": "Bearer"})
        return ANYONE
    # The host name counts, too: a page on the web may point a name of its own at this machine.
    name = headers.get("host", "")
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if not (_loopback(client) and _loopback(host)):
        detail = "This endpoint has no keys, so it answers only its own machine."
        raise RequestRefused(HTTPStatus.FORBIDDEN, detail)
    return ANYONE


def who_asks(request: Request) -> Tenant:
    tenant: Tenant = getattr(request.state, "tenant", ANYONE)
    return tenant


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
