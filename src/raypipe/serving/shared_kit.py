"""The kit that requests share: one set of models, for each request its own index and sink."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Self

from raypipe.core.errors import Unavailable
from raypipe.core.index import Index
from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Kit, Model
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
    """Appends every chat that a language model gets to a list, for `include: [prompts]`."""

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
