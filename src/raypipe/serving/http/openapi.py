"""The OpenAPI document: FastAPI's own, with the bodies, streams and errors that FastAPI does not see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from raypipe.serving.http.chat import ChatBody, ChatError
from raypipe.serving.http.errors import CHAT_PATHS
from raypipe.serving.http.listing import ListingBody
from raypipe.serving.http.replies import ProblemBody, StreamEvent
from raypipe.serving.http.requests import AnswerBody, BatchBody, FeedbackBody, RetrieveBody, StrictBody

REF = "#/components/schemas/{model}"

STATUSES = {
    400: "Invalid request; `errors` names the fields and what is allowed there",
    401: "Key missing or unknown",
    403: "Endpoint without keys, request from another machine",
    404: "Not found",
    408: "Body arrived too slowly",
    413: "Body too large",
    415: "Body is not JSON",
    429: "Too many requests; retry later",
    503: "No tables or no release yet, endpoint too busy, or a model that every answer needs is unavailable; "
    "retry later",
}

CHAT = "/v1/chat/completions"
BODIES = (AnswerBody, BatchBody, RetrieveBody, ListingBody, ChatBody, FeedbackBody)


def takes(body: type[StrictBody] | None = None) -> dict[str, Any]:
    """Describes a route that needs a key. If `body` is given, also describes the body of the request."""
    operation: dict[str, Any] = {"security": [{"key": []}]}
    if body is not None:
        operation["requestBody"] = {"required": True, "description": body.__doc__, "content": content(body)}
    return operation


def content(shape: type[Any], media: str = "application/json") -> dict[str, Any]:
    return {media: {"schema": {"$ref": REF.format(model=shape.__name__)}}}


def responses(path: str, statuses: list[int]) -> dict[int | str, dict[str, Any]]:
    """Describes the streams and the errors of a route."""
    chat = path.startswith(CHAT_PATHS)
    shape = content(ChatError) if chat else content(ProblemBody, "application/problem+json")
    described: dict[int | str, str] = {"default": "Any other error", **{s: STATUSES[s] for s in statuses}}
    streams = content(StreamEvent, "text/event-stream") if path in ("/v1/answer", CHAT) else {}
    refusals = {status: {"description": text, "content": shape} for status, text in described.items()}
    return {200: {"content": streams}, **refusals}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Returns the document of an app; the first call builds it."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    about = "Answers questions from web pages, with evidence that is exact to the character."
    document = get_openapi(title=app.title, version="1", description=about, routes=app.routes)
    shapes: Any = [(shape, "validation") for shape in (*BODIES, ProblemBody, ChatError, StreamEvent)]
    key = {"type": "http", "scheme": "bearer", "description": "A key of this endpoint."}
    document["components"]["securitySchemes"] = {"key": key}
    document["components"]["schemas"] |= models_json_schema(shapes, ref_template=REF)[1]["$defs"]
    app.openapi_schema = document
    return document
