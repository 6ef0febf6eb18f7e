"""Confidence intervals over few questions. Pure functions on counts and values; knows no metric.

Which interval belongs where, and its coverage, stands with each function; bench/certainty.py measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_DRAWS = 20_000  # the ends of an interval then repeat to about .01 between seeds at 10 questions
BOOTSTRAP_FROM = 300  # questions; of 115 of which few differ a percentile bootstrap covers 92 %, not 95
FEWEST_GROUPS = 6  # five signs can at best give p = 1/16
Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]


def score_interval(correct: int, missing: int, wrong: int) -> Interval:
    """95 % interval of (correct - wrong) / all for `correct + missing + wrong > 0` questions, in -1..1.

    The central part of a Dirichlet posterior under Jeffreys' prior, stretched to hold the score itself.
    A bootstrap would say [0, 0] of ten questions that were all missed; this stays as wide as ten
    questions leave it. It holds the true score in 91-100 % of 150 draws for true shares from even to .98
    and 10, 50 or 300 questions.
    """
    n = correct + missing + wrong
    if n <= 0:
        raise ValueError("no scored question, no interval")
    alpha = np.array([correct, missing, wrong]) + 0.5
    shares = np.random.default_rng(0).dirichlet(alpha, _DRAWS)  # (draws, 3), rows sum to 1
    low, high = np.quantile(shares[:, 0] - shares[:, 2], [0.025, 0.975])
    score = (correct - wrong) / n
    return min(float(low), score), max(float(high), score)


def rate_interval(hits: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's interval of a rate: `hits` of `n > 0` questions (Wilson 1927; Brown, Cai and DasGupta 2001).

    >>> low, high = rate_interval(9, 10)
    >>> round(low, 3), round(high, 3)
    (0.596, 0.982)
    """
    if not 0 <= hits <= n or not n:
        raise ValueError(f"expected 0 <= hits <= n and n > 0, found {hits} of {n}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    center = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, center - half), min(1.0, center + half)


def mean_interval(
    values: Sequence[float] | Floats, ends: Interval, groups: Sequence[str] | None = None, level: float = 0.95
) -> Interval | None:
    """Interval of the mean of `values` (one a question, each between `ends`); None where none is honest."""
    return mean_intervals(values, ends, groups, (level,))[0]


def mean_intervals(
    values: Sequence[float] | Floats, ends: Interval, groups: Sequence[str] | None, levels: Sequence[float]
) -> list[Interval | None]:
    """The same at several levels, from one draw.

    - Questions in groups (several of one paper, of one page): from the groups' sums with Student's t, as
      many degrees of freedom as groups less one (Miller 2024). None for fewer than FEWEST_GROUPS groups.
      Coverage 95 to 99 % for 6 to 30 groups whose questions move together.
    - Values that are whole numbers, as CRAG's differences in -2..2: Dirichlet(1/2) on their counts.
    - Others: a percentile bootstrap from BOOTSTRAP_FROM questions on; for fewer the same with one half
      question at either end of the range, which keeps it wide where few questions differ.
    """
    x = np.asarray(values, dtype=float)
    if not len(x):
        return [None] * len(levels)
    mean = float(x.mean())
    if groups is not None:
        from scipy import stats  # half a second of import, for this alone

        count = len(set(groups))
        if count < FEWEST_GROUPS:
            return [None] * len(levels)
        t = stats.t.ppf((1 + np.asarray(levels)) / 2, count - 1)
        halves = [float(half) for half in t * standard_error(x, groups)]
        return [(mean - half, mean + half) for half in halves]
    whole, counts = np.unique(x, return_counts=True)
    rng = np.random.default_rng(0)
    if np.array_equal(whole, np.round(whole)) and ends[1] - ends[0] <= 8:
        support = np.arange(ends[0], ends[1] + 1)
        prior = np.full(len(support), 0.5)
        prior[np.searchsorted(support, whole)] += counts
        drawn = rng.dirichlet(prior, _DRAWS) @ support
    elif len(x) >= BOOTSTRAP_FROM:
        n = len(x)  # means of resamples, a thousand at once: some 20 MB at 2,706 questions
        drawn = np.concatenate([rng.multinomial(n, counts / n, 1_000) @ whole / n for _ in range(10)])
    else:
        weights = np.concatenate([counts, [0.5, 0.5]])
        drawn = rng.dirichlet(weights, _DRAWS) @ np.concatenate([whole, ends])
    tails = np.quantile(drawn, [tail for level in levels for tail in ((1 - level) / 2, (1 + level) / 2)])
    return [
        (min(float(low), mean), max(float(high), mean))
        for low, high in zip(tails[::2], tails[1::2], strict=True)
    ]


def standard_error(x: Floats, groups: Sequence[str] | None = None) -> float:
    """Of the mean; of questions in groups as they move together. 0 where there is one unit alone."""
    sums, sizes = (x, np.ones(len(x))) if groups is None else group_sums(x, groups)
    if len(sums) < 2:
        return 0.0
    rest = sums - x.mean() * sizes
    return math.sqrt(len(sums) / (len(sums) - 1) * float(rest @ rest)) / len(x)


def group_sums(x: Floats, groups: Sequence[str]) -> tuple[Floats, Floats]:
    """The sum of the values and the number of questions of each group, groups in order of name."""
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    return np.bincount(member, weights=x).astype(np.float64), np.bincount(member).astype(np.float64)
