"""What goes wrong with a request, as RFC 9457 writes it. Nothing of what was sent is repeated, and no
trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from raypipe.core.errors import Overloaded, Unavailable
from raypipe.serving.answerer import NotReady

RETRY_S = 5
"""Seconds of Retry-After: in that time a replica starts, and a backlog of `RequestLimits.ongoing` is done."""

GONE = 499  # nginx's number for a client that did not wait; nobody reads it but the log

log = logging.getLogger("raypipe.serving.http")


class RequestRefused(Exception):
    """A request that is answered with an error. `detail` and `errors` hold nothing of what was sent."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors, headers


EXPECTED = (NotReady, Overloaded, Unavailable)
"""What may be raised while a question is answered, and is no defect."""


class ClientGone(Exception):
    """The client does not wait any more."""


def to_problem(error: Exception) -> RequestRefused:
    """Whatever may be raised while a question is answered, as what the client is told. A defect is logged."""
    if isinstance(error, RequestRefused):
        return error
    wait = {"retry-after": str(RETRY_S)}
    if isinstance(error, NotReady):
        log.warning("not ready: %s", error)
        detail = "the tables of this recipe are not there yet: `raypipe index` makes them"
        return RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers=wait)
    if isinstance(error, Overloaded):
        detail = "as many requests as can be answered in time are being answered: ask again later"
        return RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, detail, headers=wait)
    if isinstance(error, Unavailable):
        log.warning("unavailable: %s", error)
        detail = "a model that no answer can do without is away: ask again later"
        return RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers=wait)
    log.error("a defect", exc_info=error)
    return RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect in raypipe; its log says where")


def body(refused: RequestRefused) -> dict[str, Any]:
    """The object that says what is wrong."""
    status = refused.status
    said: dict[str, Any] = {"type": "about:blank", "title": status.phrase, "status": status.value}
    said["detail"] = refused.detail
    if refused.errors:
        said["errors"] = list(refused.errors)
    return said


def response(refused: RequestRefused) -> Response:
    """The whole response."""
    media = "application/problem+json"
    return JSONResponse(body(refused), refused.status.value, dict(refused.headers), media_type=media)


def handle(app: FastAPI) -> None:
    """Every error of the app becomes a problem."""
    for kind in (RequestRefused, *EXPECTED):
        app.add_exception_handler(kind, _told)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(HTTPException, _http)


async def _told(request: Request, error: Exception) -> Response:
    return response(to_problem(error))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


async def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path, another method."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    return response(RequestRefused(status, status.description or status.phrase, headers=error.headers or {}))
