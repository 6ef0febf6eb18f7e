"""Request ids, one JSON log line for each request, and metrics.

A line has a request's id, route, status, milliseconds and outcome. It never has text of a question, a page or
a key, nor a path or name that a client chose.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raypipe.serving.http.errors import CLIENT_CLOSED_REQUEST, problem_response, to_problem
from raypipe.serving.query import QueryResult

log = logging.getLogger("raypipe.serving.requests")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that this task serves; "" outside of a request."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMetrics:
    """Receives what the metrics count; this one ignores it."""

    def request_started(self) -> None:
        """A request came."""

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        """Its last byte was sent."""

    def question_answered(self, result: QueryResult) -> None:
        """A question was answered."""

    def bytes_in_flight(self, count: int) -> None:
        """The bytes of all bodies that the gateway holds changed."""


class ObservedApp:
    """Middleware: gives requests ids, counts, times and logs them. With `proxy_sets_id` a proxy in front sets
    `x-request-id` on requests and on responses."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, proxy_sets_id: bool) -> None:
        self._app, self._metrics, self._proxy_sets_id = app, metrics, proxy_sets_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(id)
        start, status = time.perf_counter(), CLIENT_CLOSED_REQUEST  # unless a response begins
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
            await self._app(scope, receive, observed_send)
        except Exception as e:  # a defect: the client learns that there is one, the log says which
            refused = to_problem(e)
            if status == CLIENT_CLOSED_REQUEST:
                await problem_response(refused, scope["path"])(scope, receive, observed_send)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "unknown")
            self._metrics.request_ended(route, status, seconds)
            ms = round(seconds * 1000, 1)
            fields = {"method": scope["method"], "route": route, "status": status, "ms": ms}
            log.info("request", extra={"fields": fields | log_fields})
            request_id.reset(token)


_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON, with the id of its request."""

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
