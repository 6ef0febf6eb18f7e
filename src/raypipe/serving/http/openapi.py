"""The OpenAPI document, from the same models that read the requests."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.requests import Batch, Retrieval, Streamed
from raypipe.serving.http.responses import Retrieved, Said

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
    400: "not the expected form",
    401: "no key, or an unknown one",
    403: "an endpoint without keys, asked from another machine",
    404: "no such thing",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "not JSON",
    429: "as many requests as can be answered in time are being answered",
    503: "the tables are not there yet, or a model that no answer can do without is away",
}
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"enum": ["stage", "draft", "answer", "error"]},  # chats: no name
        "data": {"type": "string", "description": "JSON; the last one of a chat is [DONE]"},
    },
}
READY = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"type": "string"},
        "away": {"type": "array", "items": {"type": "string"}, "description": "what is left out now"},
    },
}


def described() -> dict[str, Any]:
    """The document."""
    schemas: dict[str, Any] = {"Problem": PROBLEM, "Error": ERROR}

    def ref(of: Any) -> dict[str, str]:
        schema = TypeAdapter(of).json_schema(ref_template=REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[of.__name__] = schema
        return {"$ref": REF.format(model=of.__name__)}

    said, answer = ref(Said), ref(Retrieved)
    answers = {
        "type": "object",
        "properties": {
            "answers": {
                "type": "array",
                "items": {"anyOf": [said, {"type": "object", "required": ["problem"]}]},
            }
        },
    }
    anything = {"type": "object"}
    paths = {
        "/v1/answer": _post("answers a question", ref(Streamed), said, stream=True),
        "/v1/answer:batch": _post("answers up to 16 questions", ref(Batch), answers),
        "/v1/retrieve": _post("ranks passages for a question", ref(Retrieval), answer),
        "/v1/chat/completions": _post(
            "answers the last message of a chat", ref(ChatBody), anything, stream=True, error="Error"
        ),
        "/v1/index": _get("what is searched", anything),
        "/v1/models": _get("what answers", anything),
        "/openapi.json": _get("this document", anything),
        "/healthz": _get("the process is alive", READY, key=False),
        "/readyz": _get("questions can be asked of the store", READY, key=False),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "raypipe", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(about: str, body: Any, reply: Any, stream: bool = False, error: str = "Problem") -> dict[str, Any]:
    kinds: dict[str, Any] = {"application/json": {"schema": reply}}
    if stream:
        kinds["text/event-stream"] = {"schema": EVENT}
    sent = {"required": True, "content": {"application/json": {"schema": body}}}
    responses = {"200": {"description": "done", "content": kinds}, **_refusals(tuple(STATUSES), error)}
    return {
        "post": {"summary": about, "requestBody": sent, "responses": responses, "security": [{"key": []}]}
    }


def _get(about: str, reply: Any, key: bool = True) -> dict[str, Any]:
    responses = {"200": {"description": "done", "content": {"application/json": {"schema": reply}}}}
    responses |= _refusals((401, 403, 503) if key else (503,), "Problem")
    return {"get": {"summary": about, "responses": responses, "security": [{"key": []}] if key else []}}


def _refusals(statuses: tuple[int, ...], error: str) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    kinds = (
        problem
        if error == "Problem"
        else problem | {"application/json": {"schema": {"$ref": REF.format(model=error)}}}
    )
    return {str(s): {"description": STATUSES[s], "content": kinds} for s in statuses}
