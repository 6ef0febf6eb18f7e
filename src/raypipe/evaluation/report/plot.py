"""Geometry of the plots in reports, in units of their SVG view boxes. Templates see this module as `plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raypipe.metrics.kinds import MeasureSummary

WIDTH = 720  # width of the stacked bar of all questions
NUMBER = 26  # least width of a bar segment that shows its number
SPAN = 200  # length of an interval's axis, with EDGE free at each end
EDGE = 6

BINS = 10  # bins of a histogram
BIN, HIGH = 60, 90  # width of a bin, height of the highest bin
FEW = 3  # distinct values up to which a table replaces the histogram

SIDE = 300  # side of a square plot with a share on each axis
FRAME = 40  # space around it for its axes


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Returns a function that maps low..high linearly to start..end, rounded to a tenth of a unit."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low), 1)


across, up = scale(0, 1, FRAME, FRAME + SIDE), scale(0, 1, FRAME + SIDE, FRAME)  # x and y of a share


def segments(counts: Mapping[str, int]) -> list[tuple[str, int, float, float]]:
    """Returns the non-empty segments of the stacked bar: name, number of questions, x, width.

    >>> segments({"right": 3, "wrong": 0, "not scored": 1})
    [('right', 3, 0.0, 540.0), ('not scored', 1, 540.0, 180.0)]
    """
    wide, numbers = scale(0, sum(counts.values()) or 1, 0, WIDTH), list(counts.values())
    return [(name, n, wide(sum(numbers[:i])), wide(n)) for i, (name, n) in enumerate(counts.items()) if n]


def histogram(values: Sequence[float], of: MeasureSummary | None) -> list[tuple[float, int, float]]:
    """Sorts values into bins of a measure's range. Returns each bin's lower end, number of values and height.
    The last bin includes its upper end. Returns [] without a measure, or if at most FEW values are distinct.

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
