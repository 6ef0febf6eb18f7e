"""A clock of one process whose pieces of work share its seconds.

Pieces that wait for the same engine overlap. Each is booked its part of the time, so that all of them add up
to the seconds of the process, and an estimate may divide these by rows. For one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SharedClock:
    """Seconds that advance by a part of the wall time: one of as many as there are pieces.

    >>> moments = iter([0.0, 0.0, 2.0, 2.0, 6.0, 6.0, 7.0])
    >>> clock = SharedClock(lambda: next(moments))
    >>> with clock.piece():
    ...     alone = clock()
    ...     with clock.piece():
    ...         together = clock() - alone
    >>> alone, together  # of 2 and of 4 seconds
    (2.0, 2.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._last = now, now()
        self._seconds, self._pieces = 0.0, 0

    def __call__(self) -> float:
        now = self._now()
        self._seconds += (now - self._last) / max(1, self._pieces)
        self._last = now
        return self._seconds

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Counts the block as a piece of work."""
        self()
        self._pieces += 1
        try:
            yield
        finally:
            self()
            self._pieces -= 1
