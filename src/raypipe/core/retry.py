"""Waits between the tries of one request: bounded in number, doubling, with jitter.

For all requests over a network that may fail for a while. The caller makes the tries, waits, and decides what
a failure is: a response, an exception, or a file that did not grow.
"""

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

P = ParamSpec("P")
T = TypeVar("T")

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
