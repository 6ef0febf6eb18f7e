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

from raypipe.online import Heard
from raypipe.service import problems
from raypipe.service.gate import left

QUIET_S = 15.0
"""After this long without an event a comment is sent: proxies cut connections that say nothing for 30 to 60
s."""

Event: TypeAlias = tuple[str, Any]
"""Name, and what is sent as JSON."""

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""No proxy keeps an event back."""


class Listening(Heard):
    """What is heard while a question is answered, as events in a queue."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._stage = ""

    def stage(self, stage: str, seconds: float | None) -> None:
        self._stage = stage
        ended = {} if seconds is None else {"ms": round(seconds * 1000, 1)}
        self.events.put_nowait(("stage", {"stage": stage} | ended))

    def draft(self, piece: str) -> None:
        self.events.put_nowait(("draft", {"stage": self._stage, "text": piece}))


async def events(
    request: Request, work: Callable[[Heard], Awaitable[Any]], done: Callable[[], Awaitable[None]]
) -> AsyncIterator[Event | None]:
    """Events until the work's result, as ("answer", result), or ("error", problem); None where nothing
    happened for QUIET_S. The work ends when the client goes; `done` is awaited however it ends."""
    heard = Listening()
    doing = asyncio.ensure_future(work(heard))
    leaving = asyncio.ensure_future(left(request))
    next_one: asyncio.Future[Event] | None = None
    try:
        while True:
            next_one = next_one or asyncio.ensure_future(heard.events.get())
            waiting: set[asyncio.Future[Any]] = {next_one, leaving, doing}
            await asyncio.wait(waiting, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            if next_one.done():
                yield next_one.result()
                next_one = None
            elif leaving.done():
                return
            elif doing.done():
                yield _last(doing)
                return
            else:
                yield None
    finally:
        for task in (doing, leaving, next_one):
            if task is not None:
                task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
        await done()


def _last(doing: asyncio.Future[Any]) -> Event:
    error = doing.exception()
    if error is None:
        return "answer", doing.result()
    if not isinstance(error, Exception):
        raise error
    return "error", problems.body(problems.told(error))


async def written(found: AsyncIterator[Event | None]) -> AsyncIterator[str]:
    """The events as lines. JSON has no line break of its own."""
    async for event in found:
        if event is None:
            yield ": still at it\n\n"
        else:
            yield f"event: {event[0]}\ndata: {json.dumps(event[1], ensure_ascii=False)}\n\n"
