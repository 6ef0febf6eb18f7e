"""Stream of one question as server-sent events: stages, drafts, and at last the answer or an error.

event: stage    {"stage": "rerank"}                      the stage begins
event: stage    {"stage": "rerank", "ms": 81.2}          the stage ended
event: draft    {"stage": "generate:web", "text": "The"} a piece of a model's reply, not yet the answer
event: answer   the body that /v1/answer returns without `stream`; the last event
event: error    a problem; the last event

FastAPI's generator routes (`response_class=EventSourceResponse`) do not fit: the request's body decides
between JSON and a stream, and a refusal (400, 429) is a status, sent before a stream begins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from raypipe.serving.http import errors
from raypipe.serving.http.middleware import disconnected
from raypipe.serving.http.replies import AnswerResponse
from raypipe.serving.query import Listener

KEEP_ALIVE_S = 15.0
"""Seconds without an event until a comment is sent: proxies cut connections silent for 30 to 60 s."""

Event: TypeAlias = tuple[str, Any]
"""Name of the event, and its data, which is sent as JSON."""

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers that stop proxies from buffering events."""


class ClosingStream(EventSourceResponse):
    """A response with an event stream. When it ends, it calls `on_end`, even if no client read an event."""

    def __init__(self, chunks: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(chunks, headers=HEADERS)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class EventListener(Listener):
    """Listener that queues the stages and drafts of a question as events."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()  # None: a task of `event_stream` ended
        self._stage = ""

    def on_stage(self, stage: str, seconds: float | None) -> None:
        self._stage = stage
        ended = {} if seconds is None else {"ms": round(seconds * 1000, 1)}
        self.events.put_nowait(("stage", {"stage": stage} | ended))

    def on_draft(self, piece: str) -> None:
        self.events.put_nowait(("draft", {"stage": self._stage, "text": piece}))


async def event_stream(
    request: Request, answer: Callable[[Listener], Awaitable[AnswerResponse]]
) -> AsyncIterator[Event | None]:
    """Answers a question and yields its events. The last event is ("answer", response) or ("error", problem).
    After KEEP_ALIVE_S without an event, None is yielded; the caller then sends a keep-alive comment. If the
    client disconnects, the work is cancelled, and no last event follows."""
    listener = EventListener()
    work, client_gone = asyncio.ensure_future(answer(listener)), asyncio.ensure_future(disconnected(request))
    del answer  # frees the request's documents, even if the client reads slowly
    for task in (work, client_gone):
        task.add_done_callback(lambda _: listener.events.put_nowait(None))  # after the events before it
    try:
        while not client_gone.done():
            try:
                event = await asyncio.wait_for(listener.events.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None
                continue
            if event is not None:
                yield event
            elif work.done():
                try:
                    yield "answer", work.result()
                except Exception as e:
                    yield "error", errors.problem_body(errors.to_problem(e))
                return
    finally:
        for task in (work, client_gone):
            task.cancel()
        await asyncio.gather(work, client_gone, return_exceptions=True)


async def encode_events(events: AsyncIterator[Event | None]) -> AsyncIterator[bytes]:
    async for event in events:
        if event is None:
            yield KEEPALIVE_COMMENT
        else:
            name, data = event
            whole = isinstance(data, AnswerResponse)
            yield encode_event(data.model_dump(exclude_unset=True) if whole else data, name)


def encode_event(data: Any, name: str | None = None) -> bytes:
    """Encodes an event with `data` as ASCII JSON. Before FastAPI 0.140.12, `format_sse_event` splits other
    data at Unicode's line separators, so that a client would read line feeds inside a JSON string.

    >>> encode_event({"text": "a\\u2028b"}, "draft")
    b'event: draft\\ndata: {"text": "a\\\\u2028b"}\\n\\n'
    """
    return format_sse_event(data_str=json.dumps(data), event=name)
