"""Limits of a request: who may ask, by key; how many are answered at once; the size of a body, the time to
send it, a client that disconnects.

Without keys only requests from this machine are allowed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from raypipe.core.errors import Overloaded
from raypipe.serving.access import ApiKeys, RequestLimits
from raypipe.serving.http.errors import ClientGone, RequestRefused
from raypipe.serving.key_filters import UNFILTERED, KeyFilter, filter_of

T = TypeVar("T")


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """The body. Refuses types that a form on another site can send: they are never JSON."""
    unsupported = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused(unsupported, "Expected the header `content-type: application/json`.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(unsupported, "Expected a body without compression.")
    detail = f"Expected at most {limits.max_body_bytes} bytes."
    too_large = RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, (), _CLOSE)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise too_large
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        detail = f"Expected the whole body within {limits.body_timeout_s:g} s."
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, detail, (), _CLOSE) from None
    return bytes(body)


_CLOSE = {"connection": "close"}  # the rest of the body is not read


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
