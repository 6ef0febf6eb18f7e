"""Requests of one process in flight: equal ones share the first (single flight), and those that arrive while
one is computed are computed together, next (gathering). Knows asyncio alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class _Landing(Generic[K, V]):
    asked: Sequence[K]
    values: dict[K, V] = field(default_factory=dict)  # of all that were asked; {}: it failed
    error: BaseException | None = None  # that it failed with; None also where its caller was cancelled


class SingleFlight(Generic[K, V]):
    """Results that are being computed at the moment, by key. One event loop's; callers share one object."""

    def __init__(self) -> None:
        self._flying: dict[K, asyncio.Future[_Landing[K, V]]] = {}

    async def of(self, keys: Sequence[K], ask: Callable[[list[int]], Awaitable[Iterable[V]]]) -> list[V]:
        """The value of each of these distinct keys.

        `ask` gets the positions of keys that are not in flight and returns their values; the others are
        awaited. What `ask` raises, all raise that wait for its keys and wanted all of them: an equal call
        would fail alike. If it fails over others' keys, or its caller is cancelled, one who waits asks.
        """
        found, wanted = dict[K, V](), set(keys)
        while left := [i for i, key in enumerate(keys) if key not in found]:
            theirs = [flight for i in left if (flight := self._flying.get(keys[i])) is not None]
            if mine := [i for i in left if keys[i] not in self._flying]:
                found |= await self._lead([keys[i] for i in mine], mine, ask)
            for flight in dict.fromkeys(theirs):
                landing = await asyncio.shield(flight)  # cancelling one waiter does not cancel the others
                if landing.error is not None and wanted.issuperset(landing.asked):
                    raise landing.error
                found |= {keys[i]: landing.values[keys[i]] for i in left if keys[i] in landing.values}
        return [found[key] for key in keys]

    async def _lead(
        self, keys: list[K], places: list[int], ask: Callable[[list[int]], Awaitable[Iterable[V]]]
    ) -> dict[K, V]:
        flight: asyncio.Future[_Landing[K, V]] = asyncio.get_running_loop().create_future()
        self._flying.update(dict.fromkeys(keys, flight))
        landing = _Landing[K, V](keys)
        try:
            landing.values.update(zip(keys, await ask(places), strict=True))
        except BaseException as e:  # a panic of Rust is no Exception
            landing.error = None if isinstance(e, asyncio.CancelledError) else e
            raise
        finally:
            for key in keys:
                del self._flying[key]
            flight.set_result(landing)
        return landing.values


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
                except asyncio.CancelledError:  # the loop ends
                    for future in waiting:
                        future.cancel()
                    raise
                except BaseException as e:  # the callers raise it; a panic of Rust is no Exception
                    for future in waiting:
                        if not future.done():
                            future.set_exception(e)
        finally:
            del self._running[loop]  # a task holds its loop, which would live as long as this object
