"""Work in the background yields to requests: each call to a model waits until no request is answered.

A shadow's second answer shares models and processor with the live ones. It is made of calls of some
milliseconds each; when none of them begins while a request is in flight, a request waits for one of them at
most. A contextvar says what is background, so one kit serves both. Knows no trial and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Embed, Index, Model, Role, Score
from raypipe.core.records import Fault
from raypipe.serving.shared_kit import ClosingKit, SharedKit

LOOK_S = 0.005
"""Between two looks whether requests are in flight: well below the time of a request."""

background: ContextVar[bool] = ContextVar("background", default=False)
"""Whether this task's calls yield."""


class InFlight:
    """How many requests are being answered in this process."""

    def __init__(self) -> None:
        self.requests = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts one while the block runs."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def none(self) -> None:
        """Returns when none is. Looks again and again, since a request's own pages run on another loop."""
        while self.requests:
            await asyncio.sleep(LOOK_S)


class YieldingKit(ForwardingKit[SharedKit]):
    """A kit whose calls yield where `background` says so."""

    def __init__(self, kit: SharedKit, in_flight: InFlight) -> None:
        super().__init__(kit)
        self._in_flight = in_flight

    def with_index(self, index: Index) -> YieldingKit:
        return YieldingKit(self._kit.with_index(index), self._in_flight)

    def with_sink(self, sink: Callable[[str], None]) -> YieldingKit:
        return YieldingKit(self._kit.with_sink(sink), self._in_flight)

    async def unavailable(self) -> list[str]:
        return await self._kit.unavailable()

    async def _turn(self) -> None:
        if background.get():
            await self._in_flight.none()

    def embedder(self, model: Model) -> Embed:
        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            await self._turn()
            return await self._kit.embedder(model)(texts, role)

        return embed

    def reranker(self, model: Model) -> Score:
        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            await self._turn()
            return await self._kit.reranker(model)(pairs)

        return score

    def generator(self, model: Model) -> Generator:
        async def generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            await self._turn()
            return await self._kit.generator(model)(chats, sampling, adapter)

        return generate


class TrialKit(YieldingKit):
    """The kit of a gateway that may have a release on trial: it closes no model of the other release."""

    def __init__(self, kit: ClosingKit, in_flight: InFlight) -> None:
        super().__init__(kit, in_flight)
        self._closing = kit
        self.on_trial: tuple[Model, ...] = ()  # models of the release on trial

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all models but these and those of the release on trial."""
        await self._closing.keep(dict.fromkeys((*models, *self.on_trial)))
