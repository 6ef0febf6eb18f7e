"""Limits of a request: the size of its body, the time to send it, a client that disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from raypipe.serving.access import RequestLimits
from raypipe.serving.http.errors import ClientGone, RequestRefused

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
