"""Geometry of the plots of reports, in the units of their SVG view boxes. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raypipe.metrics.kinds import MeasureSummary

WIDTH = 720  # of the bar of all questions
NUMBER = 26  # of a part of it that has room for its number
SPAN = 200  # of the axis of an interval; EDGE of it stands free at both ends
EDGE = 6

BINS = 10  # of a histogram
BIN, HIGH = 60, 90  # width of a bin, height of the highest
FEW = 3  # different values: a table says as much

SIDE = 300  # of a square plot of two shares
FRAME = 40  # around it, for its axes


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Returns where a value between `low` and `high` stands between `start` and `end`, to a tenth of a
    unit."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low), 1)


across, up = scale(0, 1, FRAME, FRAME + SIDE), scale(0, 1, FRAME + SIDE, FRAME)  # of a share in a square plot


def segments(counts: Mapping[str, int]) -> list[tuple[str, int, float, float]]:
    """The stacked bar over all questions: what an answer is, questions, x and width of each that has some.

    >>> segments({"right": 3, "wrong": 0, "not scored": 1})
    [('right', 3, 0.0, 540.0), ('not scored', 1, 540.0, 180.0)]
    """
    wide, numbers = scale(0, sum(counts.values()) or 1, 0, WIDTH), list(counts.values())
    return [(name, n, wide(sum(numbers[:i])), wide(n)) for i, (name, n) in enumerate(counts.items()) if n]


def histogram(values: Sequence[float], of: MeasureSummary | None) -> list[tuple[float, int, float]]:
    """The bins of a measure's range, the last with its upper end: lower end, questions and height of each; []
    for values that are almost all equal.

    >>> lead = MeasureSummary("f1", 0.5, None, 4, 4, 0.0, 1.0)
    >>> [n for _, n, _ in histogram([0, 0.05, 0.5, 1], lead)]
    [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    """
    if of is None or len(set(values)) <= FEW:
        return []
    counts = [0] * BINS
    for value in values:
        counts[min(int(BINS * (value - of.low) / (of.high - of.low)), BINS - 1)] += 1
    tall, low = scale(0, max(counts), 0, HIGH), scale(0, BINS, of.low, of.high)
    return [(low(i), n, tall(n)) for i, n in enumerate(counts)]
