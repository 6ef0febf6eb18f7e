"""Server-sent events: what happens to a question, while it happens.

event: stage    {"stage": "rerank"}                      it begins
event: stage    {"stage": "rerank", "ms": 81.2}          it ended
event: draft    {"stage": "generate:web", "text": "The"} a piece of what a model writes: not the answer
yet event: answer   the body that /v1/answer has without `stream`; the last event
event: error    a problem; the last event
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from raypipe.serving.answerer import Heard
from raypipe.serving.http import errors
from raypipe.serving.http.admission import left

QUIET_S = 15.0
"""After this long without an event a comment is sent: proxies cut connections that say nothing for 30 to 60
s."""

Event: TypeAlias = tuple[str, Any]
"""Name, and what is sent as JSON."""

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""No proxy keeps an event back."""


class Held(StreamingResponse):
    """A stream that gives back what it holds when it ends, even if nobody ever read from it."""

    def __init__(self, lines: AsyncIterator[str], done: Callable[[], Awaitable[None]]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers=HEADERS)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._done()


class Listening(Heard):
    """What is heard while a question is answered, as events in a queue."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()  # None: the work is done
        self._stage = ""

    def stage(self, stage: str, seconds: float | None) -> None:
        self._stage = stage
        ended = {} if seconds is None else {"ms": round(seconds * 1000, 1)}
        self.events.put_nowait(("stage", {"stage": stage} | ended))

    def draft(self, piece: str) -> None:
        self.events.put_nowait(("draft", {"stage": self._stage, "text": piece}))


async def events(request: Request, work: Callable[[Heard], Awaitable[Any]]) -> AsyncIterator[Event | None]:
    """Events until the work's result, as ("answer", result), or ("error", problem); None where nothing
    happened for QUIET_S. The work ends when the client goes."""
    heard = Listening()
    doing = asyncio.ensure_future(work(heard))
    doing.add_done_callback(lambda _: heard.events.put_nowait(None))  # after whatever was heard before
    leaving = asyncio.ensure_future(left(request))
    coming: asyncio.Future[Event | None] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(heard.events.get())
            waiting: set[asyncio.Future[Any]] = {coming, leaving}
            await asyncio.wait(waiting, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                if (event := coming.result()) is None:
                    yield _last(doing)
                    return
                yield event
                coming = None
            elif leaving.done():
                return
            else:
                yield None
    finally:
        for task in (doing, leaving, coming):
            if task is not None:
                task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


def _last(doing: asyncio.Future[Any]) -> Event:
    error = doing.exception()
    if error is None:
        return "answer", doing.result()
    if not isinstance(error, Exception):
        raise error
    return "error", errors.body(errors.told(error))


async def written(found: AsyncIterator[Event | None]) -> AsyncIterator[str]:
    """The events as lines. JSON has no line break of its own."""
    async for event in found:
        if event is None:
            yield ": still at it\n\n"
        else:
            yield f"event: {event[0]}\ndata: {json.dumps(event[1], ensure_ascii=False)}\n\n"
