"""The HTTP face: `POST /v1/answer`, `GET /healthz`, `GET /readyz`, as an ASGI app.

Knows HTTP, JSON and the shape of requests and replies. How a question is answered is handed in; where the app
runs is `deploy.py`'s matter. A request's text appears in no error and no log.

    {"query": "who directed the film?", "time": "03/05/2024, 23:18:31 PT", "include": ["hits"],
     "documents": [{"page_name": "...", "page_url": "...", "page_snippet": "...", "page_result": "<html>...",
                    "page_last_modified": "..."}]}
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from raypipe.online import Answered, Asked, Evidence, NotReady
from raypipe.readers import Counts
from raypipe.readers.crag import cited
from raypipe.readers.lines import decode
from raypipe.readers.rows import Unusable
from raypipe.records import FAULT, Question, digest
from raypipe.report.report import prediction

BODY_BYTES = 32 << 20  # fifty real pages are 16 MB on average
RETRY_S = 5  # what a client is told to wait while the endpoint is not ready

Answer = Callable[[Asked], Awaitable[Answered]]
Ready = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Document(_Strict):
    """One search result, as CRAG writes them. What is missing or null is not there."""

    page_name: str | None = Field("", max_length=10_000)
    page_url: str | None = Field("", max_length=10_000)
    page_snippet: str | None = Field("", max_length=100_000)
    page_result: str | None = ""  # HTML; longer than Limits.page_bytes: a fault of this page
    page_last_modified: str | None = Field("", max_length=100)


class Query(_Strict):
    """The body of a request."""

    query: str = Field(max_length=10_000, pattern=r"\S")
    time: str = Field("", max_length=100)  # when it is asked; "": the stored question's, or unknown
    documents: list[Document] | None = Field(None, max_length=50)  # None: asked of the store
    include: list[Literal["hits", "replies", "faults", "prompts"]] = Field([], max_length=4)


class Refused(Exception):
    """A request that is answered with an error. `detail` and `errors` hold nothing of what was sent."""

    def __init__(self, status: HTTPStatus, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors


def application(answer: Answer, ready: Ready) -> FastAPI:
    """The app. `answer` may raise NotReady, which becomes 503; `ready` raises it while nothing can be asked
    of the store."""
    app = FastAPI(title="raypipe", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/v1/answer")
    async def answer_one(request: Request) -> Response:
        query = read(await _body(request))
        return JSONResponse(reply(await answer(asked(query)), query.include))

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        await ready()
        return JSONResponse({"status": "ready"})

    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(NotReady, _not_ready)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _broken)
    return app


async def _body(request: Request) -> bytes:
    """The body. A form that a web page can send across sites is no JSON by its type, and is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected the header content-type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {BODY_BYTES} bytes")
    return bytes(body)


def read(body: bytes) -> Query:
    """The request in a body: decoded as the readers decode files, so that equal pages are equal sources.
    Raises Refused."""
    try:
        tree = decode(body, Counts())
    except Unusable as e:
        detail = f"expected one JSON object in UTF-8: {_JSON[e.fault.reason]}"
        raise Refused(HTTPStatus.BAD_REQUEST, detail) from e
    try:
        return Query.model_validate(tree)
    except ValidationError as e:
        found = e.errors(include_url=False, include_context=False, include_input=False)
        errors = [{"at": _path(f["loc"], f["type"]), "problem": f["msg"]} for f in found[:20]]
        raise Refused(HTTPStatus.BAD_REQUEST, "the request has not the expected form", errors) from e


_JSON = {
    "bad_json": "it cannot be parsed",
    "not_utf8": "it is not UTF-8",
    "surrogate": "a text has half a surrogate pair",
    "nul": "it has a NUL byte",
    "too_deep": "it is nested too deeply",
    "nan": "a number is not finite",
    "big_integer": "an integer has more than 64 bits",
    "duplicate_key": "a key stands twice in one object",
    "not_object": "it is something else",
}


def _path(loc: tuple[int | str, ...], kind: str) -> str:
    """Where a mistake is. The name of an unknown field is the client's own text: its parent is named."""
    known = loc[:-1] if kind == "extra_forbidden" else loc
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in known).lstrip(".") or "the object"


def asked(query: Query) -> Asked:
    """The request as what is asked."""
    question = Question(digest("ask", query.query), query.query, asked_at=query.time)
    prompts = "prompts" in query.include
    if query.documents is None:
        return Asked(question, prompts=prompts)
    citations, sources, faults = cited(question.id, [d.model_dump() for d in query.documents])
    return Asked(replace(question, citations=citations), sources, faults, prompts)


def reply(answered: Answered, include: Sequence[str]) -> dict[str, Any]:
    """The body of a reply. What could not be answered has no answer: null, never empty."""
    q = answered.question
    said = q.replies.get(q.origin)
    out: dict[str, Any] = {
        "id": q.id,
        "query": q.text,
        "answer": None if q.outcome == FAULT else q.answer,
        "outcome": q.outcome,
        "degraded": list(q.degraded),
        "confidence": said.confidence if said else None,
        "citations": [_citation(e) for e in answered.evidence],
        "timings_ms": dict(answered.timings_ms),
        "usage": dict(answered.usage),
        "versions": {"release": answered.release, "recipe": answered.recipe, "models": dict(answered.models)},
    }
    if "hits" in include:
        out["hits"] = prediction(q)["hits"]
    if "replies" in include:
        out["replies"] = {name: asdict(r) for name, r in q.replies.items()}
    if "prompts" in include:
        out["prompts"] = [[asdict(message) for message in chat] for chat in answered.prompts]
    if "faults" in include:
        out["faults"] = [asdict(f) for f in (*answered.faults, *q.faults)]
    return out


def _citation(evidence: Evidence) -> dict[str, Any]:
    scores = {name: float(value) for name, value in evidence.scores.items()}
    return {**asdict(evidence), "span": list(evidence.span), "scores": scores}


def problem(
    status: HTTPStatus, detail: str, errors: Sequence[Mapping[str, str]] = (), headers: Mapping[str, str] = {}
) -> Response:
    """An error as RFC 9457 writes it."""
    body: dict[str, Any] = {"type": "about:blank", "title": status.phrase, "status": status.value}
    body["detail"] = detail
    if errors:
        body["errors"] = list(errors)
    return JSONResponse(body, status.value, dict(headers), media_type="application/problem+json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error.status, error.detail, error.errors)


async def _not_ready(request: Request, error: Exception) -> Response:
    log.warning("not ready: %s", error)
    detail = "the tables of this recipe are not there yet: `raypipe index` makes them"
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"retry-after": str(RETRY_S)})


async def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path, another method."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    return problem(status, status.description or status.phrase, headers=error.headers or {})


async def _broken(request: Request, error: Exception) -> Response:
    """A defect. The trace goes to the log: the framework raises the error again once this is sent."""
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect in raypipe; its log says where")
