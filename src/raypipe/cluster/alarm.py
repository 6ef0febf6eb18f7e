"""A limit on work that nothing else can stop: the kernel ends this process when its time is over.

No thread and no signal handler interrupts a library that loops inside its C code; a timer of the kernel whose
signal has no handler does. The owner of the process sees it die and decides what that means. Standard
library.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Alarm:
    """Limits on several pieces of work of one process at a time: the first that is over ends the process."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}  # piece -> when it must be over, on the monotonic clock
        self._names = itertools.count()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Ends the process if the block takes longer than `seconds`."""
        name = next(self._names)
        self._ends[name] = time.monotonic() + seconds
        self._set()
        try:
            yield
        finally:
            del self._ends[name]
            self._set()

    def _set(self) -> None:
        left = max(0.001, min(self._ends.values()) - time.monotonic()) if self._ends else 0.0
        signal.setitimer(signal.ITIMER_REAL, left)  # 0: none; SIGALRM ends a process that does not handle it
