"""The OpenAI chat protocol over the same questions: existing chat clients work unchanged.

The question is the last message of the user; earlier turns and system messages are not read, since a recipe
has prompts of its own. For the same reason sampling fields are taken and have no effect; what would change
what is asked for (tools, several choices, a response format) is refused. The evidence is in `annotations`, as
url_citation, and, exact to the character, in the field `raypipe`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Literal

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from raypipe.serving.http.errors import Refused
from raypipe.serving.http.requests import Beside, Strict
from raypipe.serving.http.responses import Cited, Said
from raypipe.serving.http.stream import Event


class Text(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str = Field(max_length=100_000)


class Turn(BaseModel):
    """One message. Clients send replies back with whatever fields they had."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Text] | None = Field(default=None)

    def words(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False  # has no effect


class ChatBody(Strict):
    """The body of /v1/chat/completions."""

    model: str = Field(max_length=200)  # an id of /v1/models
    messages: list[Turn] = Field(min_length=1, max_length=1000)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    raypipe: Beside = Beside()  # what stands beside the question: time, documents, filters, deadline_s
    # Taken, and without effect: the recipe says how its models are asked.
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None  # of any form: its keys are the client's, and stand in no error
    store: bool | None = None

    def query(self) -> str:
        """The question. Raises Refused where there is none."""
        said = [turn.words() for turn in self.messages if turn.role == "user"]
        if not said or not said[-1].strip():
            raise Refused(HTTPStatus.BAD_REQUEST, "expected a message of the user with text in it")
        if len(said[-1]) > 10_000:
            raise Refused(HTTPStatus.BAD_REQUEST, "expected a question of at most 10000 characters")
        return said[-1]


def completion(id: str, model: str, said: Said) -> dict[str, Any]:
    """The whole reply."""
    message = {"role": "assistant", **_content(said), "annotations": sources(said)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {**_head(id, model, "chat.completion"), "choices": [choice], "usage": usage(said), **_beside(said)}


async def chunks(id: str, body: ChatBody, found: AsyncIterator[Event | None]) -> AsyncIterator[str]:
    """The reply as the protocol streams it. Drafts are not sent: a client would take them for the answer."""
    head = _head(id, body.model, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    async for event in found:
        if event is None or event[0] in ("stage", "draft"):
            yield ": still at it\n\n"
        elif event[0] == "error":
            yield _data(error_body(event[1]["status"], event[1]["detail"]))
        else:
            said: Said = event[1]
            yield chunk({**_content(said), "annotations": sources(said)})
            yield chunk({}, "stop", **_beside(said))
            if body.stream_options and body.stream_options.include_usage:
                yield _data({**head, "choices": [], "usage": usage(said)})
    yield "data: [DONE]\n\n"


def sources(said: Said) -> list[dict[str, Any]]:
    """The evidence that has a url. Each stands behind the whole answer."""
    end = len(said["answer"] or "")
    return [_annotation(c, c["url"], end) for c in said["citations"] if c["url"]]


def _annotation(citation: Cited, url: str, end: int) -> dict[str, Any]:
    at = {"url": url, "title": citation["quote"][:100], "start_index": 0, "end_index": end}
    return {"type": "url_citation", "url_citation": at}


def usage(said: Said) -> dict[str, int]:
    """Tokens of every chat that the recipe asked."""
    prompt, written = said["usage"]["prompt_tokens"], said["usage"]["generated_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _content(said: Said) -> dict[str, Any]:
    """An answer, or, where the question could not be done, a refusal."""
    if said["answer"] is None:
        return {"content": None, "refusal": "the question could not be answered: see raypipe.outcome"}
    return {"content": said["answer"], "refusal": None}


def _beside(said: Said) -> dict[str, Any]:
    fields = ("outcome", "degraded", "confidence", "citations", "timings_ms", "versions")
    return {"raypipe": {name: said[name] for name in fields}}  # type: ignore[literal-required]


def _head(id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": int(time.time()), "model": model}


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as this protocol writes it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}


def refusal(refused: Refused) -> Response:
    """The whole response of an error."""
    where = "; ".join(f"{e['at']}: {e['problem']}" for e in refused.errors)
    message = f"{refused.detail}: {where}" if where else refused.detail
    return JSONResponse(error_body(refused.status, message), refused.status.value, dict(refused.headers))
