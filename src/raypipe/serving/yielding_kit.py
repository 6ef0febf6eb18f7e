"""Work in the background yields to requests: each call to a model waits until no request is answered.

A shadow's second answer shares models and processor with the live ones. It is made of calls of some
milliseconds each; when none of them begins while a request is in flight, a request waits for one of them at
most. A contextvar says what is background, so one kit serves both. Knows no trial and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Embed, Model, Score
from raypipe.core.records import Fault
from raypipe.serving.shared_kit import ForwardingSharedKit, SharedKit

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 0.005
"""Between two looks whether requests are in flight: well below the time of a request."""

background: ContextVar[bool] = ContextVar("background", default=False)
"""Whether this task's calls yield."""


class InFlight:
    def __init__(self) -> None:
        self.requests = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def none(self) -> None:
        """Returns when none is. Looks again and again, since a request's own pages run on another loop."""
        while self.requests:
            await asyncio.sleep(LOOK_S)


class YieldingKit(ForwardingSharedKit):
    def __init__(self, kit: SharedKit, in_flight: InFlight) -> None:
        super().__init__(kit)
        self._in_flight = in_flight

    def _yielding(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def yielding(*args: P.args, **kwargs: P.kwargs) -> T:
            if background.get():
                await self._in_flight.none()
            return await call(*args, **kwargs)

        return yielding

    def embedder(self, model: Model) -> Embed:
        return self._yielding(self._kit.embedder(model))

    def reranker(self, model: Model) -> Score:
        return self._yielding(self._kit.reranker(model))

    def generator(self, model: Model) -> Generator:
        generate = self._yielding(self._kit.generator(model))

        async def yielding(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            return await generate(chats, sampling, adapter)

        return yielding
