"""Errors as problem details (RFC 9457), without a traceback and without anything that the client sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from raypipe.core.errors import Overloaded, Unavailable
from raypipe.serving.answerer import NotReady
from raypipe.store import StoreError
from raypipe.text.filters import ConditionError

RETRY_AFTER_S = 5
"""Seconds of the header `retry-after` in a refusal: by then a replica has started, and a backlog of
`RequestLimits.max_ongoing_requests` is answered."""

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; only the log and the metrics show it

log = logging.getLogger("raypipe.serving.http")


class RequestRefused(Exception):
    """Error that the client gets as a response. `detail` and `errors` must repeat nothing of the request."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors, headers


GONE = "The store or a model that every answer needs is unavailable; the log says which. Retry later."

EXPECTED_ERRORS: dict[type[Exception], tuple[HTTPStatus, str]] = {
    NotReady: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Not ready: no tables (`raypipe eval --until index`) or no release (`raypipe promote`); the "
        "endpoint's log says which.",
    ),
    Overloaded: (HTTPStatus.TOO_MANY_REQUESTS, "Too many requests. Retry later."),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, GONE),
    StoreError: (HTTPStatus.SERVICE_UNAVAILABLE, GONE),
}
"""Expected exceptions of answering -> status and text for the client. A subclass precedes its base class."""


class ClientGone(Exception):
    """Error for a client that closed its connection before the answer."""


def to_problem(error: Exception) -> RequestRefused:
    """Converts any exception to the error that the client gets. Logs a missing or unavailable store or model
    as a warning, and a defect as an error with its traceback."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, ConditionError):
        wrong = {"at": "filters.where", "problem": str(error).removeprefix("where: ")}
        return RequestRefused(HTTPStatus.BAD_REQUEST, "Invalid request.", [wrong])
    for kind, (status, detail) in EXPECTED_ERRORS.items():
        if isinstance(error, kind):
            if kind is not Overloaded:
                log.warning("%s: %s", kind.__name__, error)
            return RequestRefused(status, detail, headers={"retry-after": str(RETRY_AFTER_S)})
    log.error("defect", exc_info=error)
    detail = "Internal error. The endpoint's log has the traceback."
    return RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def problem_body(refused: RequestRefused) -> dict[str, Any]:
    status, errors = refused.status, {"errors": list(refused.errors)} if refused.errors else {}
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": refused.detail}
    return {**body, **errors}


def chat_error(status: int, message: str) -> dict[str, Any]:
    """Builds an error in the form of the OpenAI protocol."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}


def problem_response(refused: RequestRefused, path: str = "") -> Response:
    """Builds the error response. For a `path` of the OpenAI protocol, the body has the protocol's form."""
    media, body = "application/problem+json", problem_body(refused)
    if path.startswith(CHAT_PATHS):
        where = "; ".join(f"{e['at']}: {e['problem']}" for e in refused.errors)
        media, body = "application/json", chat_error(refused.status, f"{refused.detail} {where}".rstrip())
    return JSONResponse(body, refused.status.value, dict(refused.headers), media_type=media)


CHAT_PATHS = ("/v1/chat/", "/v1/models")
"""Prefixes of the paths of the OpenAI protocol."""


def add_exception_handlers(app: FastAPI) -> None:
    async def problem(request: Request, error: Exception) -> Response:
        return problem_response(to_problem(error), request.url.path)

    async def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def by_framework(request: Request, error: Exception) -> Response:
        """Answers requests that the framework refuses, such as an unknown path or a wrong method."""
        assert isinstance(error, HTTPException)
        status, headers = HTTPStatus(error.status_code), error.headers or {}
        detail = status.description or status.phrase
        if status == HTTPStatus.NOT_FOUND:
            there = (f"{' '.join(r.methods)} {r.path}" for r in app.routes if isinstance(r, APIRoute))
            detail = f"No such route. There are: {', '.join(there)}."
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"This route takes {headers['Allow']}."
        return problem_response(RequestRefused(status, detail, headers=headers), request.url.path)

    for kind in (*EXPECTED_ERRORS, ConditionError):
        app.add_exception_handler(kind, problem)
    app.add_exception_handler(RequestRefused, problem)
    app.add_exception_handler(ClientGone, client_gone)
    app.add_exception_handler(HTTPException, by_framework)
