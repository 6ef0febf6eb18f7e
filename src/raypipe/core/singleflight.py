"""Single flight: equal requests of one process share the first one in flight. Knows asyncio alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """What is being found out at the moment, by key. One event loop's; callers share one object."""

    def __init__(self) -> None:
        self._flying: dict[K, asyncio.Future[dict[K, V]]] = {}

    async def of(self, keys: Sequence[K], ask: Callable[[list[int]], Awaitable[Iterable[V]]]) -> list[V]:
        """The value of each of these distinct keys.

        `ask` gets the positions of keys that are not in flight and returns their values; the others are
        awaited. If the caller that asks fails or is cancelled, one of the waiting callers asks: no error is
        shared.
        """
        found: dict[K, V] = {}
        while left := [i for i, key in enumerate(keys) if key not in found]:
            theirs = [flight for i in left if (flight := self._flying.get(keys[i])) is not None]
            if mine := [i for i in left if keys[i] not in self._flying]:
                found |= await self._lead([keys[i] for i in mine], mine, ask)
            for flight in dict.fromkeys(theirs):
                landed = await asyncio.shield(flight)  # cancelling one waiter does not cancel the others
                found |= {keys[i]: landed[keys[i]] for i in left if keys[i] in landed}
        return [found[key] for key in keys]

    async def _lead(
        self, keys: list[K], places: list[int], ask: Callable[[list[int]], Awaitable[Iterable[V]]]
    ) -> dict[K, V]:
        flight: asyncio.Future[dict[K, V]] = asyncio.get_running_loop().create_future()
        self._flying.update(dict.fromkeys(keys, flight))
        landed: dict[K, V] = {}
        try:
            landed.update(zip(keys, await ask(places), strict=True))
        finally:
            for key in keys:
                del self._flying[key]
            flight.set_result(landed)  # empty where it failed
        return landed
