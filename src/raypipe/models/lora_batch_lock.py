"""A fair lock that admits one kind of call at a time, and any number of that kind.

vLLM's CPU kernels give a base row an adapter's text when both are in one batch, silently. Behind this gate
they never are, and neither kind starves: once a call of another kind waits, newcomers of the kind inside
queue up behind it, so no call waits for more than one round of each other kind. Knows asyncio alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class LoraBatchLock:
    """`async with gate.turn(kind)`. A kind that equals no other (`object()`) is let in alone."""

    def __init__(self) -> None:
        self._kind: Hashable = None
        self._inside = 0
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self, kind: Hashable) -> AsyncIterator[None]:
        await self._enter(kind)
        try:
            yield
        finally:
            self._inside -= 1
            self._admit()

    async def _enter(self, kind: Hashable) -> None:
        if not self._waiting and (not self._inside or self._kind == kind):
            self._kind = kind
            self._inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.remove((kind, place))
            else:  # let in at the very moment it was cancelled
                self._inside -= 1
            self._admit()
            raise

    def _admit(self) -> None:
        """Admits the calls that may run now.

        When the gate is empty those are all calls of the kind that has waited longest, also those queued
        behind other kinds: these wait for that kind's round in any case."""
        if not self._waiting:
            return
        if not self._inside:
            self._kind = self._waiting[0][0]
        elif self._waiting[0][0] != self._kind:
            return
        stay: deque[tuple[Hashable, asyncio.Future[None]]] = deque()
        for kind, place in self._waiting:
            if kind == self._kind and not place.cancelled():
                self._inside += 1
                place.set_result(None)
            else:
                stay.append((kind, place))
        self._waiting = stay
