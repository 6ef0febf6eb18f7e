"""Limits of a request: who may ask, by key; how many are answered at once; the size of its body, the bytes of
all of them, the time to send one; a client that disconnects.

Without keys only requests from this machine are allowed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from raypipe.core.errors import Overloaded
from raypipe.serving.access import ApiKeys, RequestLimits
from raypipe.serving.http.errors import RETRY_AFTER_S, ClientGone, RequestRefused
from raypipe.serving.http.middleware import RequestMetrics
from raypipe.serving.key_filters import UNFILTERED, KeyFilter, filter_of

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


class Slots:
    """The slots of one gateway: how many requests it answers at once."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Takes a slot for a request. Raises Overloaded where none is free."""
        if self._taken >= self._most:
            raise Overloaded(f"all {self._most} slots are taken")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


def authorize(
    keys: ApiKeys, headers: Headers, client: str | None, key_filters: Sequence[KeyFilter] = ()
) -> KeyFilter:
    """Returns the filter of a request's key. Raises RequestRefused unless this request is allowed."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (found := filter_of(key.strip(), key_filters)) is not None:
        return found
    if keys.open:
        return UNFILTERED
    if keys.digests or key_filters:
        if scheme.lower() != "bearer" or not keys.accepts(key.strip()):
            detail = "Unknown key: ask who runs the endpoint for one."
            if scheme.lower() != "bearer":
                detail = "Expected a key: the header `authorization: Bearer KEY`."
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, detail, (), {"www-authenticate": "Bearer"})
        return UNFILTERED
    # The host name counts, too: a page on the web may point a name of its own at this machine.
    name = headers.get("host", "")
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if not (_loopback(client) and _loopback(host)):
        detail = "This endpoint has no keys, so it answers only its own machine."
        raise RequestRefused(HTTPStatus.FORBIDDEN, detail)
    return UNFILTERED


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
