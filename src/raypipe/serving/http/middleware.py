"""What the endpoint says about itself: one line of JSON for each request, and numbers.

A line has a request's id, route, status, seconds and outcome. It never has a text of a question, a page or a
key, nor a path or name that a client chose.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raypipe.serving.answerer import Answered
from raypipe.serving.http.errors import GONE, response, told

log = logging.getLogger("raypipe.requests")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that this task works for; "" outside of one."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Meters(Protocol):
    """Where numbers go."""

    def began(self) -> None: ...
    def ended(self, route: str, status: int, seconds: float) -> None: ...
    def answered(self, answered: Answered) -> None: ...


class Unmetered:
    """No numbers are kept."""

    def began(self) -> None:
        """Nothing."""

    def ended(self, route: str, status: int, seconds: float) -> None:
        """Nothing."""

    def answered(self, answered: Answered) -> None:
        """Nothing."""


class Watched:
    """An app whose requests have ids, are counted, timed and logged. `named`: whoever stands in front names
    requests in `x-request-id`, and gives the name back itself."""

    def __init__(self, app: ASGIApp, meters: Meters, named: bool) -> None:
        self._app, self._meters, self._named = app, meters, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(id)
        start, status = time.perf_counter(), GONE  # unless a response begins
        noted: dict[str, Any] = scope.setdefault("state", {}).setdefault("noted", {})

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ours = [] if self._named else [(b"x-request-id", id.encode())]
                message = {**message, "headers": [*message["headers"], *_HEADERS, *ours]}
            await send(message)

        self._meters.began()
        try:
            await self._app(scope, receive, sent)
        except Exception as e:  # a defect: the client hears that there is one, the log which
            refused = told(e)
            if status == GONE:
                await response(refused)(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "unknown")
            self._meters.ended(route, status, seconds)
            said = {"method": scope["method"], "route": route, "status": status}
            said["ms"] = round(seconds * 1000, 1)
            log.info("request", extra={"fields": said | noted})
            request_id.reset(token)


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class JsonLines(logging.Formatter):
    """A log record as one line of JSON with the id of its request."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "request": request_id.get() or None,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)
