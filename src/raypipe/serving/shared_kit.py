"""The kit that requests share: one set of models, for each request its own index and sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from raypipe.core.protocols import Index, Kit, Model


class SharedKit(Kit, Protocol):
    """A kit whose models serve many requests."""

    def with_index(self, index: Index) -> SharedKit:
        """The same models with the index of one request."""

    def with_sink(self, sink: Callable[[str], None]) -> SharedKit:
        """The same models; `sink` gets each piece of a reply while it is generated."""

    async def unavailable(self) -> list[str]:
        """The deployments whose models do not answer now."""


class ClosingKit(SharedKit, Protocol):
    """A kit that outlives releases, and closes their models."""

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all other models."""
