"""Weights that make a measure largest, one weight at a time. Knows functions of arrays alone.

Ranking measures are steps in the weights: they have no slope. Coordinate ascent needs none (Metzler and Croft
2007) and is exact for two weights but for the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FACTORS = (0.0, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.18, 1.4, 2.0, 4.0)
"""What a weight is multiplied by in turn; the others share what is left. After three rounds two neighbours
differ by some 5 %, which moves no measure by more than its noise."""
LEAST = 0.02  # of a weight that is tried again after it was 0, as a share of all weights
ROUNDS = 10
GAIN = 1e-6  # less than one rank of one question in a million


def climb(value: Callable[[Floats], float], starts: Sequence[Floats]) -> tuple[Floats, float]:
    """Weights of at least 0 that sum to 1 with the largest value found, and that value. Of equally good ones
    the first: `starts` begin with what is preferred."""
    best: tuple[Floats, float] | None = None
    for start in starts:
        w = _shares(start)
        found = _from(value, w, value(w))
        if best is None or found[1] > best[1] + GAIN:
            best = found
    assert best is not None, "expected a start"
    return best


def _shares(w: Floats) -> Floats:
    out: Floats = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
    return out


def _from(value: Callable[[Floats], float], w: Floats, now: float) -> tuple[Floats, float]:
    for _ in range(ROUNDS):
        before = now
        for i in range(len(w)):
            for factor in FACTORS:
                tried = w.copy()
                tried[i] = factor * max(w[i], LEAST)
                if not tried.sum():
                    continue
                tried = _shares(tried)
                if (found := value(tried)) > now + GAIN:
                    w, now = tried, found
        if now <= before + GAIN:
            break
    return w, now
