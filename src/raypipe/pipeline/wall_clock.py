"""Where the wall time of a run goes, in parts that add up to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARTS = ("opening", "reading", "planning", "starting", "loading", "computing", "storing", "scoring", "rest")
"""Python, imports and recipe; files into the store; the plan; Ray, engines and workers; imports and weights
of models in workers; the steps; tables and cached values; answers to scores; all that no other part has."""


class WallClock:
    """Seconds by part. At any moment one part is on: a part inside another takes the time from it.

    So all parts add up to the wall time, whatever is forgotten: that is `rest`.

    >>> moments = iter([10.0, 11.0, 14.0, 15.0, 17.0])
    >>> clock = WallClock(lambda: next(moments), began=9.0)
    >>> with clock.part("reading"):
    ...     with clock.part("starting"):
    ...         pass
    >>> clock.parts()["opening"], clock.parts()["reading"], clock.parts()["rest"]
    (1.0, 5.0, 1.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, began: float | None = None) -> None:
        """`began`: when the run did, by the clock `now`; None: now."""
        self._now, self._last, self._on = now, now(), ["rest"]
        self._seconds = dict.fromkeys(PARTS, 0.0)
        if began is not None:
            self._seconds["opening"] = self._last - began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Books the time of the block on a part."""
        self._book()
        self._on.append(name)
        try:
            yield
        finally:
            self._book()
            self._on.pop()

    @contextmanager
    def tasks(self) -> Iterator[dict[str, dict[str, float]]]:
        """Books the time of tasks that workers do: what the busiest of them did on its parts, and that for
        which not even this one worked on `starting`. The block fills worker -> part -> seconds."""
        busy: dict[str, dict[str, float]] = {}
        self._book()
        self._on.append("starting")
        before = self._seconds["starting"]
        try:
            yield busy
        finally:
            self._book()
            self._on.pop()
            busiest = max(busy.values(), key=lambda parts: sum(parts.values()), default={})
            whole, most = sum(busiest.values()), self._seconds["starting"] - before
            share = min(1.0, most / whole) if whole > 0 else 0.0  # workers may do several tasks at once
            for name, seconds in busiest.items():
                self._seconds[name] += seconds * share
                self._seconds["starting"] -= seconds * share

    def _book(self) -> None:
        now = self._now()
        self._seconds[self._on[-1]] += now - self._last
        self._last = now

    def parts(self) -> dict[str, float]:
        """Seconds of each part until the last change of part; their sum is the wall time until then."""
        return dict(self._seconds)

    def total(self) -> float:
        """The wall time until now, of which `parts` then gives the parts."""
        self._book()
        return sum(self._seconds.values())
