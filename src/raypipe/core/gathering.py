"""Calls that arrive while one is computed are computed together, next. Knows asyncio and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")


class Gathering(Generic[T, R]):
    """Batches calls without waiting for more: a lone call starts at once.

    `compute` runs in a thread, one batch of an event loop at a time. What it raises, every call of the batch
    raises. A caller that is cancelled does not cancel the others.
    """

    def __init__(self, compute: Callable[[list[T]], list[R]]) -> None:
        self._compute = compute
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[T, asyncio.Future[R]]]] = (
            WeakKeyDictionary()
        )
        self._running: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    async def __call__(self, item: T) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.setdefault(loop, []).append((item, future))
        running = self._running.get(loop)
        if running is None or running.done():
            self._running[loop] = loop.create_task(self._run(loop))
        return await future

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while batch := self._waiting.pop(loop, []):
                waiting = [future for _, future in batch]
                try:
                    found = await asyncio.to_thread(self._compute, [item for item, _ in batch])
                    for future, result in zip(waiting, found, strict=True):
                        if not future.done():
                            future.set_result(result)
                except Exception as e:  # the callers raise it
                    for future in waiting:
                        if not future.done():
                            future.set_exception(e)
        finally:
            del self._running[loop]  # a task holds its loop, which would live as long as this object
