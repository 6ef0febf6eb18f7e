"""Calls of this process: the questions or sources that they are made for, calls in flight that are
shared, and the waits between tries. Knows asyncio; knows no model and no server.
"""

from __future__ import annotations

import asyncio
import email.utils
import inspect
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from raypipe.core.errors import Unavailable, WorkerBroken

OF_SOURCES: Final = "sources"
"""In the place of a recipe: the calls are about sources, whatever recipe asks, and the ids are theirs."""


@dataclass(frozen=True, slots=True)
class About:
    """A recipe, and questions of one batch; or sources."""

    recipe: str = ""  # digest; OF_SOURCES; "": of none
    run: str = ""  # that asks language models afresh; "": cached replies hold
    questions: tuple[str, ...] = ()  # ids, or those of sources
    each: bool = False  # True: a call has one request for each question, in order
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a request -> the questions that made it, where that is known more closely."""

    def owners(self, key: str) -> tuple[str, ...]:
        """Ids of the questions that a request was made for."""
        return self.of.get(key, self.questions)


_NOW: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039 - About is frozen


def now() -> About:
    """Says what the work of this moment is about."""
    return _NOW.get()


@contextmanager
def about(
    questions: Sequence[str] | None = None,
    recipe: str | None = None,
    each: bool = False,
    run: str | None = None,
) -> Iterator[None]:
    """Says it of a block; None: as around it. `each`: a call in it has one request for each question."""
    known = now()
    asked = known.questions if questions is None else tuple(questions)
    of = known.recipe if recipe is None else recipe
    with _put(About(of, known.run if run is None else run, asked, each)):
        yield


@contextmanager
def owned(keys: Sequence[str]) -> Iterator[None]:
    """Says of a block which questions its requests are for, where each question has one of these keys."""
    known = now()
    of: dict[str, tuple[str, ...]] = {}
    if known.each and len(keys) == len(known.questions):
        for key, id in zip(keys, known.questions, strict=True):
            of[key] = (*of.get(key, ()), id)
    with _put(replace(known, of=of)):
        yield


@contextmanager
def _put(value: About) -> Iterator[None]:
    token = _NOW.set(value)
    try:
        yield
    finally:
        _NOW.reset(token)


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


P = ParamSpec("P")

RETRY_STATUSES: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""HTTP statuses after which another try may succeed."""


class Backoff:
    """Counts the failed tries of one request and gives the wait before the next.

    The nth wait is `first_s * 2 ** (n - 1)`, at most `longest_s`, times a factor from 0.5 to 1.5.

    >>> backoff = Backoff(tries=4, first_s=1.0, longest_s=3.0, jitter=lambda: 0.5)
    >>> [backoff.next_s() for _ in range(4)]
    [1.0, 2.0, 3.0, None]
    """

    def __init__(
        self, tries: int, first_s: float, longest_s: float = 30.0, jitter: Callable[[], float] = random.random
    ) -> None:
        """`tries`: in all, the first included. `jitter` draws from 0 to 1."""
        self._tries, self._first_s, self._longest_s, self._jitter = tries, first_s, longest_s, jitter
        self._failed = 0

    def next_s(self, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait before the next try, after one failed; None: no try is left.

        `at_least_s`: what the server asked for (`retry_after_s`); it counts up to `longest_s`.
        """
        self._failed += 1
        if self._failed >= self._tries:
            return None
        wait_s = min(self._longest_s, self._first_s * 2.0 ** (self._failed - 1)) * (0.5 + self._jitter())
        return max(wait_s, min(at_least_s, self._longest_s))

    def reset(self) -> None:
        """Starts counting again, since a try brought something."""
        self._failed = 0


async def until_available(work: Callable[[], Awaitable[T] | T], backoff: Backoff) -> T:
    """The result of `work`, done again after a wait while something is unavailable and a try is left.
    A process that cannot compute does not get better by waiting: WorkerBroken is raised at once."""
    while True:
        try:
            made = work()
            done: T = await made if inspect.isawaitable(made) else made
        except WorkerBroken:
            raise
        except Unavailable:
            if (wait_s := backoff.next_s()) is None:
                raise
            await asyncio.sleep(wait_s)
        else:
            backoff.reset()
            return done


def retrying(
    call: Callable[P, Awaitable[T]], tries: int, first_s: float = 1.0
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns the same call, made as `until_available` does, with a backoff of its own each time."""

    async def made(*args: P.args, **named: P.kwargs) -> T:
        return await until_available(lambda: call(*args, **named), Backoff(tries, first_s))

    return made


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that a `Retry-After` header (a number or a date) or `retry-after-ms` asks for; 0 without one.

    >>> retry_after_s({"retry-after": "7"}), retry_after_s({"retry-after-ms": "250"}), retry_after_s({})
    (7.0, 0.25, 0.0)
    """
    with suppress(ValueError):
        return max(0.0, float(headers.get("retry-after-ms", "")) / 1000)
    return _seconds(headers.get("retry-after", ""))


def limit_wait_s(headers: Mapping[str, str], flying: int) -> float:
    """Seconds until a server's limit of calls or tokens a minute takes the next request, by its headers
    (`x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests`); 0 where it takes one now. `flying`:
    requests in flight, which the limit has not counted yet.

    >>> limit_wait_s({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m2.5s"}, 0)
    62.5
    >>> limit_wait_s({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0)
    0.02
    >>> limit_wait_s({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "9"}, 4)
    0.0
    """
    waits = [0.0]
    for of, least in (("-requests", flying), ("-tokens", 0), ("", flying)):
        with suppress(ValueError):
            if float(headers.get(f"x-ratelimit-remaining{of}", "")) <= least:
                waits.append(_seconds(headers.get(f"x-ratelimit-reset{of}", "")))
    return max(waits)


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _seconds(text: str) -> float:
    """Seconds of a header's value: a number, a length such as 1m2.5s, or a date; 0 for anything else."""
    with suppress(ValueError):
        number = float(text)
        if number > 1e9:  # a time since the epoch, of seconds or milliseconds
            return max(0.0, (number / 1000 if number > 1e12 else number) - time.time())
        return max(0.0, number)
    if parts := re.fullmatch(r"(?:[\d.]{1,20}(?:ms|h|m|s)){1,4}", text):
        return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]{1,20})(ms|h|m|s)", parts[0]))
    for read in (email.utils.parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError):
            return max(0.0, read(text).timestamp() - time.time())
    return 0.0
