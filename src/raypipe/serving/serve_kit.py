"""Kits that requests share. A kit gives steps access to models and an index. Requests share the models; each
request has its own index and its own sink, a function that gets the pieces of a reply.

`ServeKit` is the gateway's kit. It calls models in Serve deployments, and imports nothing of Ray.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from raypipe.core.errors import ConfError, RaypipeError, Unavailable
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Chats, Generated, Generator, Replies, Sampling
from raypipe.core.protocols import Embed, ForwardingKit, Kit, Model, Role, Score
from raypipe.core.records import Fault
from raypipe.core.references import Reference
from raypipe.models.kit import LocalKit
from raypipe.text.thoughts import DraftText

T = TypeVar("T")


class SharedKit(Kit, Protocol):
    """A kit whose models serve many requests, and outlive releases."""

    def with_index(self, index: Index) -> SharedKit:
        """Returns a kit with the same models, and the index of one request."""

    def with_sink(self, sink: Callable[[str], None]) -> SharedKit:
        """Returns a kit with the same models. If the kit can stream, `sink` gets each piece of a reply."""

    async def unavailable(self) -> list[str]:
        """Lists the deployments whose models do not answer now."""

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all models except these."""


class ForwardingSharedKit(ForwardingKit[SharedKit]):
    """A shared kit that forwards every call to another kit; a subclass overrides what it changes."""

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
    """A shared kit that appends every chat to a list before it is sent."""

    def __init__(self, kit: SharedKit, chats: list[Chat]) -> None:
        super().__init__(kit)
        self._chats = chats

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def record_and_generate(chats: Chats, *args: Any, **kwargs: Any) -> Replies:
            self._chats.extend(chats)
            return await generate(chats, *args, **kwargs)

        return record_and_generate


class WithoutGenerators(ForwardingSharedKit):
    """A shared kit without language models: a chat raises Unavailable."""

    def generator(self, model: Model) -> Generator:
        async def refuse(*args: Any, **kwargs: Any) -> Replies:
            raise Unavailable(f"{model.name} is not asked")

        return refuse


HEALTH_S = 2.0
"""Most seconds for a deployment's health check; it takes some milliseconds, also while models compute."""


class DeploymentMethod(Protocol):
    """Method of a deployment. Raises Unavailable if no replica answers, Overloaded if its queue is full."""

    def remote(self, *args: Any) -> Awaitable[Any]: ...


class DeploymentStream(Protocol):
    def stream(self, *args: Any) -> AsyncIterator[Any]: ...


class ServeKit(ForwardingSharedKit):
    """A `LocalKit` whose models are in deployments. Tokenizers are in this process: each text needs them.

    `embed` takes a model, texts and their role; `score` takes a model and pairs. Both are `compute` of
    `serving.ray.models.ModelDeployment`. `generate` takes a model, chats, sampling and an adapter's name.
    `stream` takes one chat instead; it is used if a request has a sink and sends only one chat.
    """

    def __init__(
        self,
        embed: DeploymentMethod,
        score: DeploymentMethod,
        generate: DeploymentMethod | None,
        stream: DeploymentStream | None = None,
        health: Mapping[str, DeploymentMethod] = {},
        keep: Sequence[DeploymentMethod] = (),
    ) -> None:
        """Takes the methods of the deployments. `health` maps deployments to methods that raise if models
        cannot compute. `keep` has methods that close all models except the given ones, in all replicas."""
        super().__init__(LocalKit(None))
        self._embed, self._score, self._generate, self._stream = embed, score, generate, stream
        self._health, self._keep = health, keep
        self._sink: Callable[[str], None] | None = None

    def with_sink(self, sink: Callable[[str], None]) -> Self:
        other = copy.copy(self)
        other._sink = sink
        return other

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all models except these, in the deployments and in this process."""
        kept = tuple(models)
        await asyncio.gather(self._kit.keep(kept), *(close.remote(kept) for close in self._keep))

    async def unavailable(self) -> list[str]:
        """Lists the deployments whose health check raises, or takes longer than HEALTH_S."""

        async def answers(ready: DeploymentMethod) -> bool:
            try:
                async with asyncio.timeout(HEALTH_S):
                    await ready.remote()
            except (TimeoutError, RaypipeError):
                return False
            return True

        found = await asyncio.gather(*map(answers, self._health.values()))
        return [name for name, fine in zip(self._health, found, strict=True) if not fine]

    def embedder(self, model: Model) -> Embed:
        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            if not texts:
                return np.zeros((0, model.dim), np.float32)
            vectors: np.ndarray = await self._embed.remote(model, list(texts), role)
            return vectors

        return embed

    def reranker(self, model: Model) -> Score:
        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if not pairs:
                return np.zeros(0, np.float32)
            scores: np.ndarray = await self._score.remote(model, list(pairs))
            return scores

        return score

    def generator(self, model: Model) -> Generator:
        remote = self._generate
        if remote is None:
            raise ConfError(f"model {model.name!r}: this application was deployed without a generator")

        async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            if self._sink is None or self._stream is None or len(chats) != 1:
                replies: Replies = await remote.remote(model, tuple(chats), sampling, adapter)
                return replies
            draft = DraftText(thinking=model.thought_tokens > 0)  # the sink gets no thoughts
            async for piece in self._stream.stream(model, chats[0], sampling, adapter):
                ended = isinstance(piece, Generated | Fault)
                if text := draft.rest() if ended else draft.add(piece):
                    self._sink(text)
                if ended:
                    return [piece]
            raise AssertionError(f"model {model.name!r}: a stream ended without its reply")

        return generate

    def data(self, ref: Reference[T]) -> T:
        return ref.through(self._kit.data(ref), lambda request: request, self.embedder)
