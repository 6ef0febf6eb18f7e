"""The OpenAPI document, from the types that parse the requests and make the replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from raypipe.serving.http import reply_types as replies
from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.requests import AnswerBody, BatchBody, FeedbackBody, RetrieveBody

REF = "#/components/schemas/"

STATUSES = {
    400: "Invalid request; `errors` names the fields and what is allowed there",
    401: "Key missing or unknown",
    403: "Endpoint without keys, request from another machine",
    404: "Not found",
    408: "Body arrived too slowly",
    413: "Body too large",
    415: "Body is not JSON",
    429: "Too many requests; retry later",
    503: "No tables or no release yet, or a model that every answer needs is unavailable; retry later",
}
EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {
            "enum": ["stage", "draft", "answer", "error"], "examples": ["stage"],
            "description": "What `data` is; events of chats have none.",
        },
        "data": {
            "type": "string", "examples": ['{"stage": "dense", "ms": 12.1}'],
            "description": "JSON; the last event of a chat is [DONE].",
        },
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """One route: what answers it (`app.Routes`), and what the document says of it."""

    method: str  # GET or POST
    name: str  # of the method of `Routes`
    summary: str
    about: str
    reply: Any  # its type
    body: Any = None  # of the request
    streams: bool = False
    error: Any = None  # type of an error, where it is no problem
    key: bool = True  # needs one, where the endpoint has keys
    missing: bool = False  # may answer 404


ROUTES = {
    "/v1/answer": Route(
        "POST", "answer", "Answer a question",
        "Runs the recipe on one question: over the store, or over the documents that the request brings. "
        "What cannot be done by the deadline is omitted and named in `degraded`.",
        replies.AnswerResponse, AnswerBody, streams=True,
    ),
    "/v1/answer:batch": Route(
        "POST", "batch", "Answer up to 16 questions",
        "Each gets a reply, or a `problem` of its own. A field that is wrong in one refuses all.",
        replies.BatchResponse, BatchBody,
    ),
    "/v1/retrieve": Route(
        "POST", "retrieve", "Rank passages for a question",
        "Runs the recipe up to its ranking; no answer is made.", replies.RetrieveResponse, RetrieveBody,
    ),
    "/v1/chat/completions": Route(
        "POST", "chat", "Answer the last user message of a chat",
        "The OpenAI protocol. Tools, response formats and several choices are refused.",
        replies.ChatCompletion, ChatBody, streams=True, error=replies.ChatError,
    ),
    "/v1/feedback": Route(
        "POST", "feedback", "Say whether an answer is right",
        "Keeps a verdict, the right answer, or both, next to the captured answer.",
        replies.FeedbackResponse, FeedbackBody,
    ),
    "/v1/index": Route(
        "GET", "index", "Show the tables that are searched",
        "Their rows, the recipe, the release, and some stored questions.", replies.IndexResponse,
    ),
    "/v1/models": Route(
        "GET", "models", "List the models", "The names that a chat may use, with the recipe's weights.",
        replies.ModelList,
    ),
    "/v1/models/{id}": Route(
        "GET", "model", "Show a model", "One entry of the list, by its id.", replies.ChatModel,
        error=replies.ChatError, missing=True,
    ),
    "/openapi.json": Route(
        "GET", "openapi", "Return this document", "All routes, their fields and examples.", dict
    ),
    "/healthz": Route("GET", "healthz", "Liveness", "The process runs.", replies.HealthResponse, key=False),
    "/readyz": Route(
        "GET", "readyz", "Readiness", "The store can be searched.", replies.HealthResponse, key=False
    ),
}  # fmt: skip


def openapi_document() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    paths = {path: {route.method.lower(): _operation(path, route, schemas)} for path, route in ROUTES.items()}
    about = "Answers questions from web pages, with evidence that is exact to the character."
    key = {"type": "http", "scheme": "bearer", "description": "A key of this endpoint."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "raypipe endpoint", "version": "1", "description": about},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": key}},
    }


def _operation(path: str, route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    reply = _content(route.reply, schemas)
    if route.streams:
        example = {name: field["examples"][0] for name, field in EVENT["properties"].items()}
        reply["text/event-stream"] = {"schema": EVENT, "example": example}
    ok = {"description": "OK", "content": reply}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": route.about,
        "responses": {"200": ok, **_refusals(route, schemas)},
        "security": [{"key": []}] if route.key else [],
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "description": f"A JSON object. {route.about}",
            "content": _content(route.body, schemas),
        }
    if "{id}" in path:
        id = {"name": "id", "in": "path", "required": True, "description": "An id of /v1/models."}
        operation["parameters"] = [{**id, "schema": {"type": "string"}, "example": "raypipe"}]
    return operation


def _content(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A type as JSON content: a reference to its schema, which is added to `schemas`, and an example."""
    if kind is dict:
        return {"application/json": {"schema": {"type": "object"}, "example": {"openapi": "3.1.0"}}}
    schema = TypeAdapter(kind).json_schema(ref_template=f"{REF}{{model}}")
    schemas.update(schema.pop("$defs", {}))
    schemas[kind.__name__] = schema
    reference = {"$ref": f"{REF}{kind.__name__}"}
    return {"application/json": {"schema": reference, "example": example_of(reference, schemas)}}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """A value of a schema, made of the examples of its fields."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].removeprefix(REF)], schemas)
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas)
    if schema.get("type") == "array":
        return [example_of(schema["items"], schemas)]
    return {name: example_of(field, schemas) for name, field in schema["properties"].items()}


def _refusals(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    statuses: list[int] = [503]
    if route.key:
        statuses = list(STATUSES) if route.method == "POST" else [401, 403, 503]
    if route.missing:
        statuses.append(404)
    kinds = {"application/problem+json": _content(replies.ProblemBody, schemas)["application/json"]}
    if route.error is not None:
        kinds |= _content(route.error, schemas)
    return {str(s): {"description": STATUSES[s], "content": kinds} for s in statuses}
