"""The kit that requests share: one set of models, for each request its own index and sink.

Work in the background yields to requests: each call to a model waits until no request is answered. A shadow's
second answer shares models and processor with the live ones. It is made of calls of some milliseconds each;
when none of them begins while a request is in flight, a request waits for one of them at most. A contextvar
says what is background, so one kit serves both.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, Protocol, Self, TypeVar

from raypipe.core.errors import Unavailable
from raypipe.core.index import Index
from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Embed, Kit, Model, Score
from raypipe.core.records import Fault


class SharedKit(Kit, Protocol):
    """A kit whose models serve many requests, and outlive releases."""

    def with_index(self, index: Index) -> SharedKit:
        """The same models with the index of one request."""

    def with_sink(self, sink: Callable[[str], None]) -> SharedKit:
        """The same models; `sink` gets each piece of a reply while it is generated."""

    async def unavailable(self) -> list[str]:
        """The deployments whose models do not answer now."""

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all other models."""


class ForwardingSharedKit(ForwardingKit[SharedKit]):
    """A shared kit that forwards every call to another one; a wrapper overrides only what it changes."""

    def with_index(self, index: Index) -> Self:
        other = copy.copy(self)
        other._kit = self._kit.with_index(index)
        return other

    def with_sink(self, sink: Callable[[str], None]) -> Self:
        other = copy.copy(self)
        other._kit = self._kit.with_sink(sink)
        return other

    async def unavailable(self) -> list[str]:
        return await self._kit.unavailable()

    async def keep(self, models: Iterable[Model]) -> None:
        await self._kit.keep(models)


class PromptRecorder(ForwardingSharedKit):
    def __init__(self, kit: SharedKit, chats: list[Chat]) -> None:
        super().__init__(kit)
        self._chats = chats

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def record_and_generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._chats.extend(chats)
            return await generate(chats, sampling, adapter)

        return record_and_generate


class WithoutGenerators(ForwardingSharedKit):
    """Language models are unavailable, whatever their state: none is asked."""

    def generator(self, model: Model) -> Generator:
        async def refuse(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            raise Unavailable(f"{model.name} is not asked")

        return refuse


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
