"""The OpenAPI document, from the models that parse the requests."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.requests import AnswerBody, BatchBody, RetrieveBody
from raypipe.serving.http.responses import AnswerResponse, RetrieveResponse

REF = "#/components/schemas/{model}"

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "problem": {"type": "string"}},
            },
        },
    },
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type", "code"]}},
}
STATUSES = {
    400: "Invalid request",
    401: "Key missing or unknown",
    403: "Endpoint without keys, request from another machine",
    404: "Not found",
    408: "Body arrived too slowly",
    413: "Body too large",
    415: "Body is not JSON",
    429: "Too many requests; retry later",
    503: "Tables do not exist yet, or a model that every answer needs is unavailable; retry later",
}
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"enum": ["stage", "draft", "answer", "error"]},  # events of chats have none
        "data": {"type": "string", "description": "JSON; the last event of a chat is [DONE]"},
    },
}
READINESS = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"type": "string"},
        "unavailable": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Deployments whose stages are omitted at the moment",
        },
    },
}


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of every route."""
    schemas: dict[str, Any] = {"Problem": PROBLEM, "Error": ERROR}

    def ref(kind: Any) -> dict[str, str]:
        schema = TypeAdapter(kind).json_schema(ref_template=REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[kind.__name__] = schema
        return {"$ref": REF.format(model=kind.__name__)}

    answer, ranking = ref(AnswerResponse), ref(RetrieveResponse)
    answers = {
        "type": "object",
        "properties": {
            "answers": {
                "type": "array",
                "items": {"anyOf": [answer, {"type": "object", "required": ["problem"]}]},
            }
        },
    }
    anything = {"type": "object"}
    paths = {
        "/v1/answer": _post("Answer a question", ref(AnswerBody), answer, stream=True),
        "/v1/answer:batch": _post("Answer up to 16 questions", ref(BatchBody), answers),
        "/v1/retrieve": _post("Rank passages for a question", ref(RetrieveBody), ranking),
        "/v1/chat/completions": _post(
            "Answer the last user message of a chat", ref(ChatBody), anything, stream=True, error="Error"
        ),
        "/v1/index": _get("Show the tables that are searched", anything),
        "/v1/models": _get("List the model names and weights", anything),
        "/openapi.json": _get("Return this document", anything),
        "/healthz": _get("Liveness: the process runs", READINESS, key=False),
        "/readyz": _get("Readiness: the store can be searched", READINESS, key=False),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "raypipe endpoint", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(
    summary: str, body: Any, reply: Any, stream: bool = False, error: str = "Problem"
) -> dict[str, Any]:
    kinds: dict[str, Any] = {"application/json": {"schema": reply}}
    if stream:
        kinds["text/event-stream"] = {"schema": EVENT}
    request = {"required": True, "content": {"application/json": {"schema": body}}}
    responses = {"200": {"description": "OK", "content": kinds}, **_refusals(tuple(STATUSES), error)}
    return {
        "post": {
            "summary": summary,
            "requestBody": request,
            "responses": responses,
            "security": [{"key": []}],
        }
    }


def _get(summary: str, reply: Any, key: bool = True) -> dict[str, Any]:
    responses = {"200": {"description": "OK", "content": {"application/json": {"schema": reply}}}}
    responses |= _refusals((401, 403, 503) if key else (503,), "Problem")
    return {"get": {"summary": summary, "responses": responses, "security": [{"key": []}] if key else []}}


def _refusals(statuses: tuple[int, ...], error: str) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    kinds = (
        problem
        if error == "Problem"
        else problem | {"application/json": {"schema": {"$ref": REF.format(model=error)}}}
    )
    return {str(s): {"description": STATUSES[s], "content": kinds} for s in statuses}
