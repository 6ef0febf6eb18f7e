"""Sharing and batching of concurrent calls, with asyncio."""

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
    values: dict[K, V] = field(default_factory=dict)  # for all keys of `asked`; {}: the call failed
    error: BaseException | None = None  # why the call failed; None also if its caller was cancelled


class SingleFlight(Generic[K, V]):
    """Calls in flight: concurrent callers in one event loop that need the same key share one call."""

    def __init__(self) -> None:
        self._flying: dict[K, asyncio.Future[_Landing[K, V]]] = {}

    async def of(self, keys: Sequence[K], ask: Callable[[list[int]], Awaitable[Iterable[V]]]) -> list[V]:
        """Returns the values of distinct keys, in order. `ask` gets the positions of the keys that are not in
        flight, and returns their values.

        Keys in flight are awaited. If the call of another caller fails, a waiting caller that wants all keys
        of that call raises the same error, because an equal call would fail alike. A waiting caller that
        wants only some of them calls `ask` itself. If the other caller is cancelled, every waiting caller
        calls `ask` itself.
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
        except BaseException as e:  # a panic in Rust is not an Exception
            landing.error = None if isinstance(e, asyncio.CancelledError) else e
            raise
        finally:
            for key in keys:
                del self._flying[key]
            flight.set_result(landing)
        return landing.values


class Gathering(Generic[T, R]):
    """Batching of concurrent calls without a delay: a lone call starts immediately.

    Calls that arrive while a batch is computed form the next one. `compute` runs in a thread, one batch of an
    event loop at a time. If it raises, every call of the batch raises the same error. Cancelling one caller
    does not cancel the others.
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
                except BaseException as e:  # for the callers; a panic in Rust is not an Exception
                    for future in waiting:
                        if not future.done():
                            future.set_exception(e)
        finally:
            del self._running[loop]  # a task refers to its loop, and would keep it as long as this object
