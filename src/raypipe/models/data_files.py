"""What steps read besides models and the index, by references: each is opened once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from raypipe.core.digests import stable
from raypipe.core.errors import Unavailable
from raypipe.core.protocols import Embed, Model
from raypipe.core.references import Reference, Tools

T = TypeVar("T")


class DataFiles:
    """What references gave, opened, by what they are and where they lie."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` (seconds) times calls."""
        self._clock = clock
        self._opened: dict[str, Any] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []  # connections

    def open(self, ref: Reference[T], embedder: Callable[[Model], Embed]) -> T:
        """Opens a reference the first time that it is asked for. Raises as `Reference.require`, and
        Unavailable where its files, which every row needs, cannot be read."""
        key = type(ref).__name__ + stable(ref) + ref.where
        if key not in self._opened:
            try:
                self._opened[key] = ref.open(Tools(embedder, self._clock, self._closing.append))
            except OSError as e:
                raise Unavailable(f"{ref.title()} at {ref.where} cannot be read: {e}") from e
        found: T = self._opened[key]
        return found

    async def close(self) -> None:
        while self._closing:
            await self._closing.pop()()
