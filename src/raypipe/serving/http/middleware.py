"""Handling around every request: id, log line, metrics, keys, slots, body size and disconnects.

Slots bound how many requests are answered at the same time. Limits bound the bytes of one body, the bytes of
all bodies in flight, and the time to send a body. A log line has a request's id, method, route, status and
milliseconds; for a single question also outcome, omitted stages and release. It never has text of a question,
page or key, nor a path or name that a client chose. If no keys are configured, only requests from this
machine are allowed, except with `ApiKeys.open`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raypipe.core.errors import Overloaded
from raypipe.serving.access import UNFILTERED, ApiKeys, KeyFilter, RequestLimits, filter_of
from raypipe.serving.http.errors import (
    CLIENT_CLOSED_REQUEST,
    RETRY_AFTER_S,
    ClientGone,
    RequestRefused,
    problem_response,
    to_problem,
)
from raypipe.serving.query import QueryResult

T = TypeVar("T")
log = logging.getLogger("raypipe.serving.requests")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that this task serves; "" if it serves none."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMetrics:
    """Receiver of the numbers for metrics; this class ignores them."""

    def request_started(self) -> None:
        """Reports that a request arrived."""

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        """Reports that a request ended: its response was sent, or its client is gone."""

    def question_answered(self, result: QueryResult) -> None:
        """Reports the result of a question."""

    def bytes_in_flight(self, count: int) -> None:
        """Reports the bytes of all bodies that the gateway holds now."""


class ObservedApp:
    """Middleware that gives ids to requests, counts, times and logs them, and answers unexpected exceptions
    with an error. It refuses requests while the app's state says `stopping`. `proxy_sets_id` is true if a
    proxy sets `x-request-id` on requests and responses."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, proxy_sets_id: bool) -> None:
        self._app, self._metrics, self._proxy_sets_id = app, metrics, proxy_sets_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # the web server sends no body to HEAD
            scope = {**scope, "method": "GET"}
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(id)
        start, status = time.perf_counter(), CLIENT_CLOSED_REQUEST  # if no response begins
        log_fields: dict[str, Any] = scope.setdefault("state", {}).setdefault("log_fields", {})

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [] if self._proxy_sets_id else [(b"x-request-id", id.encode())]
                message = {**message, "headers": [*message["headers"], *_HEADERS, *own]}
            await send(message)

        self._metrics.request_started()
        try:
            if getattr(scope["app"].state, "stopping", False) and scope["path"] != "/healthz":
                detail = "The endpoint is stopping. Retry later."
                raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, detail, (), _RETRY)
            await self._app(scope, receive, observed_send)
        except Exception as e:  # a defect: the client gets a general error, the log the details
            refused = to_problem(e)
            if status == CLIENT_CLOSED_REQUEST:
                await problem_response(refused, scope["path"])(scope, receive, observed_send)
        finally:
            seconds, route = time.perf_counter() - start, getattr(scope.get("route"), "path", "unknown")
            self._metrics.request_ended(route, status, seconds)
            fields = {"method": method, "route": route, "status": status}
            log.info("request", extra={"fields": {**fields, "ms": round(seconds * 1000, 1), **log_fields}})
            request_id.reset(token)


_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


class JsonLines(logging.Formatter):
    """Formatter of a log record as one line of JSON, with the id of its request."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "request": request_id.get() or None,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class BytesInFlight:
    """Counter of the bytes of all bodies that a gateway holds, with an upper limit."""

    def __init__(self, most: int, metrics: RequestMetrics) -> None:
        self._most, self._held, self._metrics = most, 0, metrics

    @contextmanager
    def body(self, size: int) -> Iterator[Callable[[int], None]]:
        """Yields a function that counts bytes of one body. The bytes are in flight until the block ends.

        Bytes count only when they arrive, so a client that declares many and sends none takes no room.
        Entering the block raises Overloaded if the declared `size` does not fit. The function raises
        Overloaded if the bytes that it counts do not fit."""
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
    """Reads the body of a request. Its bytes are in flight until the request is answered (`app.holding`).
    Raises RequestRefused if the body is not declared as JSON, is compressed, is too large, arrives too
    slowly, or does not fit into the bytes in flight, or if the gateway is too busy to read it. Raises
    ClientGone if the client disconnects. HTML forms of other sites are refused, since a form cannot declare
    JSON."""
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

    async def read() -> None:
        with ExitStack() as stack:  # a refused body frees its bytes immediately
            count = stack.enter_context(in_flight.body(size))
            async for chunk in request.stream():
                if len(body) + len(chunk) > limits.max_body_bytes:
                    raise too_large
                count(len(chunk))
                body.extend(chunk)
            request.state.held.enter_context(stack.pop_all())

    try:
        await _in_time(read(), limits.body_timeout_s)
    except Overloaded:
        detail = "Too many bytes of requests in flight. Retry later."
        raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, detail, (), _RETRY) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


TICKS = 10  # parts of the time for a body


async def _in_time(reading: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Awaits the reading of a body for TICKS ticks, together `limit_s`. A tick that ends late, because the
    event loop was held up, still counts as one: the client gets more time, not less. Raises RequestRefused if
    the body is then not read. If the ticks took over twice `limit_s`, the error blames this gateway."""
    task, start = asyncio.ensure_future(reading), time.monotonic()
    try:
        for _ in range(TICKS):
            done, _ = await asyncio.wait({task}, timeout=limit_s / TICKS)
            if done:
                return task.result()
    finally:
        task.cancel()
    if time.monotonic() - start > 2 * limit_s:
        detail = "The endpoint is too busy to read the body. Retry later."
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, detail, (), _RETRY)
    detail = f"Expected the whole body within {limit_s:g} s."
    raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, detail, (), _CLOSE)


_CLOSE = {"connection": "close"}  # the rest of the body is not read
_RETRY = {"retry-after": str(RETRY_AFTER_S)} | _CLOSE
MOST_DIGITS = 19  # digits of a declared size, as 2^63 has. Python refuses to convert thousands of digits


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Awaits the work and returns its result. Cancels it and raises ClientGone if the client leaves."""
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
    """Waits until the client closes its connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Slots:
    """Slots of one gateway, which bound how many requests it answers at the same time."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Takes a slot for a request. Raises Overloaded if none is free."""
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
    """Returns the filter of the request's key; UNFILTERED if the key has no filter or no key is needed.
    Raises RequestRefused if the key is missing or unknown. If no keys exist, raises it for other machines."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    given = key.strip() if scheme.lower() == "bearer" else None
    if given is not None and (found := filter_of(given, key_filters)) is not None:
        return found
    if keys.open or (given is not None and keys.accepts(given)):
        return UNFILTERED
    if keys.digests or key_filters:
        detail = "Unknown key: ask who runs the endpoint for one; keys are read when it starts."
        if given is None:
            detail = "Expected a key: the header `authorization: Bearer KEY`."
        raise RequestRefused(HTTPStatus.UNAUTHORIZED, detail, (), {"www-authenticate": "Bearer"})
    # The host name counts, too: a page on the web may point its own host name at this machine.
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
