"""Calls of this process: their context, sharing of calls in flight, batching, and waits between tries. Uses
asyncio; depends on no model and no server."""

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
"""Value of `About.recipe` for calls about sources. Any recipe may make them; the ids are source ids."""


@dataclass(frozen=True, slots=True)
class About:
    """Context of a call: the recipe and the questions, or the sources, that need it."""

    recipe: str = ""  # digest, or OF_SOURCES; "": no recipe
    run: str = ""  # run that refuses cached replies of language models; "": they are used
    questions: tuple[str, ...] = ()  # question ids; source ids with OF_SOURCES
    each: bool = False  # True: a call makes one request per question, in order
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a request -> ids of its questions. A request without an entry belongs to all `questions`."""

    def owners(self, key: str) -> tuple[str, ...]:
        """Returns the ids of the questions that need a request."""
        return self.of.get(key, self.questions)


_NOW: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039 - About is frozen


def now() -> About:
    """Returns the context of the current calls."""
    return _NOW.get()


@contextmanager
def about(
    questions: Sequence[str] | None = None,
    recipe: str | None = None,
    each: bool = False,
    run: str | None = None,
) -> Iterator[None]:
    """Sets the context of the calls in a block. None keeps the surrounding value. `each`: a call in the block
    makes one request per question, in order."""
    known = now()
    asked = known.questions if questions is None else tuple(questions)
    of = known.recipe if recipe is None else recipe
    with _put(About(of, known.run if run is None else run, asked, each)):
        yield


@contextmanager
def owned(keys: Sequence[str]) -> Iterator[None]:
    """Assigns the requests of a block to its questions: the nth key to the nth question. Without
    `About.each`, or with another number of keys, every request belongs to all questions."""
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
    values: dict[K, V] = field(default_factory=dict)  # for all keys of `asked`; {}: the call failed
    error: BaseException | None = None  # why the call failed; None also if its caller was cancelled


class SingleFlight(Generic[K, V]):
    """Calls in flight, by key: callers that need one key share its call. One object per event loop."""

    def __init__(self) -> None:
        self._flying: dict[K, asyncio.Future[_Landing[K, V]]] = {}

    async def of(self, keys: Sequence[K], ask: Callable[[list[int]], Awaitable[Iterable[V]]]) -> list[V]:
        """Returns the values of distinct keys, in order.

        `ask` gets the positions of the keys that are not in flight, and returns their values. Keys in flight
        are awaited. If their call fails, a waiting caller that wanted all of its keys raises the same error.
        An equal call would fail alike. A caller that wanted only some of them calls `ask` itself. So does any
        waiting caller if the first caller is cancelled.
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

    `compute` runs in a thread, one batch of an event loop at a time. If it raises, every call of the batch
    raises the same error. Cancelling one caller does not cancel the others.
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


P = ParamSpec("P")

RETRY_STATUSES: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""HTTP statuses after which another try may succeed."""


class Backoff:
    """Waits between the tries of one request.

    The nth wait is `first_s * 2 ** (n - 1)`, at most `longest_s`, times a factor from 0.5 to 1.5.

    >>> backoff = Backoff(tries=4, first_s=1.0, longest_s=3.0, jitter=lambda: 0.5)
    >>> [backoff.next_s() for _ in range(4)]
    [1.0, 2.0, 3.0, None]
    """

    def __init__(
        self, tries: int, first_s: float, longest_s: float = 30.0, jitter: Callable[[], float] = random.random
    ) -> None:
        """Starts without a failed try. `tries` includes the first. `jitter` draws from 0 to 1."""
        self._tries, self._first_s, self._longest_s, self._jitter = tries, first_s, longest_s, jitter
        self._failed = 0

    def next_s(self, at_least_s: float = 0.0) -> float | None:
        """Counts a failed try. Returns the seconds to wait before the next; None: no try remains.

        `at_least_s`: the wait that the server asks for (`retry_after_s`); it counts up to `longest_s`.
        """
        self._failed += 1
        if self._failed >= self._tries:
            return None
        wait_s = min(self._longest_s, self._first_s * 2.0 ** (self._failed - 1)) * (0.5 + self._jitter())
        return max(wait_s, min(at_least_s, self._longest_s))

    def reset(self) -> None:
        """Sets the count of failed tries to 0 after a try that succeeded."""
        self._failed = 0


async def until_available(work: Callable[[], Awaitable[T] | T], backoff: Backoff) -> T:
    """Calls `work` until it succeeds, with a wait after each Unavailable. Raises the last Unavailable if no
    try remains. Raises WorkerBroken immediately: waiting does not repair a process that cannot compute."""
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
    """Wraps a call in `until_available`. Each call has a backoff of its own."""

    async def made(*args: P.args, **named: P.kwargs) -> T:
        return await until_available(lambda: call(*args, **named), Backoff(tries, first_s))

    return made


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Returns the seconds to wait by a `Retry-After` header (number or date) or `retry-after-ms`; else 0.

    >>> retry_after_s({"retry-after": "7"}), retry_after_s({"retry-after-ms": "250"}), retry_after_s({})
    (7.0, 0.25, 0.0)
    """
    with suppress(ValueError):
        return max(0.0, float(headers.get("retry-after-ms", "")) / 1000)
    return _seconds(headers.get("retry-after", ""))


def limit_wait_s(headers: Mapping[str, str], flying: int) -> float:
    """Returns the seconds until a server's rate limit admits the next request; 0 if it may be sent now.
    Reads headers such as `x-ratelimit-remaining-requests` and `x-ratelimit-reset-requests`, for calls and for
    tokens. `flying`: requests in flight, which the limit has not counted yet.

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
    """Converts a header's value to seconds. Reads a number, a duration such as 1m2.5s, or a date; else 0."""
    with suppress(ValueError):
        number = float(text)
        if number > 1e9:  # seconds or milliseconds since the epoch
            return max(0.0, (number / 1000 if number > 1e12 else number) - time.time())
        return max(0.0, number)
    if parts := re.fullmatch(r"(?:[\d.]{1,20}(?:ms|h|m|s)){1,4}", text):
        return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]{1,20})(ms|h|m|s)", parts[0]))
    for read in (email.utils.parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError):
            return max(0.0, read(text).timestamp() - time.time())
    return 0.0
