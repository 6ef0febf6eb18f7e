"""Waits between the tries of a call: growing waits, and waits that a server's HTTP headers ask for."""

from __future__ import annotations

import asyncio
import email.utils
import inspect
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar

from raypipe.core.errors import Unavailable, WorkerBroken

T = TypeVar("T")
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
        """Sets the limits. `tries` includes the first try. `jitter` draws a number from 0 to 1."""
        self._tries, self._first_s, self._longest_s, self._jitter = tries, first_s, longest_s, jitter
        self._failed = 0

    def next_s(self, at_least_s: float = 0.0) -> float | None:
        """Counts a failed try. Returns the seconds to wait before the next try, or None if no try remains.
        `at_least_s` is a wait that the server asks for; it counts up to `longest_s`."""
        self._failed += 1
        if self._failed >= self._tries:
            return None
        wait_s = min(self._longest_s, self._first_s * 2.0 ** (self._failed - 1)) * (0.5 + self._jitter())
        return max(wait_s, min(at_least_s, self._longest_s))

    def reset(self) -> None:
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
    """Wraps a function: each call is tried up to `tries` times while it raises Unavailable."""

    async def made(*args: P.args, **named: P.kwargs) -> T:
        return await until_available(lambda: call(*args, **named), Backoff(tries, first_s))

    return made


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Returns the wait in seconds from the header `retry-after-ms` or `retry-after` (number or date), else 0.

    >>> retry_after_s({"retry-after": "7"}), retry_after_s({"retry-after-ms": "250"}), retry_after_s({})
    (7.0, 0.25, 0.0)
    """
    with suppress(ValueError):
        return max(0.0, float(headers.get("retry-after-ms", "")) / 1000)
    return _seconds(headers.get("retry-after", ""))


def limit_wait_s(headers: Mapping[str, str], flying: int) -> float:
    """Returns the seconds until a server's rate limit admits the next request; 0 means now. Reads headers
    such as `x-ratelimit-remaining-requests` and `x-ratelimit-reset-requests`, for requests and for tokens.
    `flying` requests are in flight, and the server has not counted them yet.

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
    """Converts the value of a header to seconds from now. The value is a number, a duration such as 1m2.5s,
    or a date. A number above 1e9 is a time since the epoch. Returns 0 for any other text."""
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
