"""Who may ask, how much, and how many at once: everything that is checked before a question is read.

Knows requests and nothing of questions.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from raypipe.core.errors import Overloaded
from raypipe.serving.access import Keys, Limits
from raypipe.serving.http.errors import Gone, Refused

T = TypeVar("T")


def check(keys: Keys, headers: Headers, client: str | None) -> None:
    """Raises Refused unless this request may ask."""
    if keys.open:
        return
    if keys.digests:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not keys.knows(key.strip()):
            ask = {"www-authenticate": "Bearer"}
            raise Refused(HTTPStatus.UNAUTHORIZED, "expected the header authorization: Bearer KEY", (), ask)
    elif not (_loopback(client) and _loopback(_host(headers))):
        # The name counts, too: a page on the web may point a name of its own at this machine.
        raise Refused(HTTPStatus.FORBIDDEN, "this endpoint has no keys, so it answers its own machine alone")


def _host(headers: Headers) -> str:
    """The host that was asked for, without its port."""
    name = headers.get("host", "")
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class Slots:
    """How many requests are being answered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A slot, at once. Raises Overloaded where there is none: a queue would only eat deadlines."""
        if self.taken >= self._most:
            raise Overloaded(f"{self.taken} requests are being answered")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


async def body(request: Request, limits: Limits) -> bytes:
    """The body. A form that a web page can send across sites is no JSON by its type, and is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected the header content-type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a body that is not compressed")
    large = Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {limits.body_bytes} bytes", (), _CLOSE
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        raise large
    found = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limits.body_bytes:
                    raise large
    except ClientDisconnect:
        raise Gone from None
    except TimeoutError:
        detail = f"expected the whole body within {limits.body_s:g} s"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, detail, (), _CLOSE) from None
    return bytes(found)


_CLOSE = {"connection": "close"}  # what else the client sends is nobody's


async def waited(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which ends when the client goes. Raises Gone."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Gone
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def left(request: Request) -> None:
    """Returns when the client has closed its connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
