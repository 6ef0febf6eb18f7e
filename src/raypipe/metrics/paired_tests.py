"""Confidence intervals of means over few questions, and paired tests of two or more runs.

Pure functions on counts and values; none depends on a metric or a file. `score_interval` and `mean_intervals`
state how often they contain the true value; bench/figures/certainty.py measures it for comparisons. A paired
test assumes that two runs are equally good. The difference of each question is then as likely positive as
negative (Fisher's randomization test; Smucker, Allan and Carterette 2007). If differences are whole numbers,
the test is exact, up to a limit of work: a convolution of binomials gives the distribution of their sum over
all signs. For a rate it is McNemar's exact test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_DRAWS = 20_000  # at 10 questions the ends of an interval then vary by about .01 between seeds
FEWEST_GROUPS = 6  # five signs give p = 1/16 at best
Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]


def score_interval(correct: int, missing: int, wrong: int) -> Interval:
    """Computes the 95 % interval of a score, (correct - wrong) / all questions, in -1..1.

    The interval is the middle 95 % of a Dirichlet posterior under Jeffreys' prior, widened to contain the
    score itself. If ten questions were all missed, a bootstrap would give [0, 0]; this interval stays as wide
    as ten questions leave it. In simulations it contains the true score in 91-100 % of 150 draws. They cover
    10, 50 and 300 questions, and verdicts from equally frequent to .98 of one verdict. Raises ValueError
    without questions.
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
    """Computes Wilson's interval of the rate `hits` / `n` (Wilson 1927; Brown, Cai and DasGupta 2001). Raises
    ValueError for an `n` of 0, and for `hits` outside 0..`n`.

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
    """Computes the interval of a mean by `mean_intervals`. Returns None without values or with few groups."""
    return mean_intervals(values, ends, groups, (level,))[0]


def mean_intervals(
    values: Sequence[float] | Floats, ends: Interval, groups: Sequence[str] | None, levels: Sequence[float]
) -> list[Interval | None]:
    """Computes intervals of a mean at several levels, from one set of random draws of the mean. `values` has
    one value for each question, between the `ends`. `groups` has the group of each question; None: no groups.
    Every interval is widened to contain the mean. The draws depend on the values:

    - Whole numbers with at most nine between the ends, such as CRAG's differences in -2..2: the share of each
      number is drawn from a Dirichlet posterior, with prior 1/2 for each number.
    - Other values: questions get random Dirichlet weights, and half a question is added at either end. The
      halves keep the interval wide if few values differ. If 99 % of the values are equal, it contains the
      true mean in 95 to 100 % of runs of 350 to 1,000 questions; without the halves in 83 to 90 %.
    - Values in groups, such as the questions of one paper: groups get the weights, and half a group is added
      at either end. The draws are then spread, because weights alone vary too little for few groups. The
      interval contains the true mean in 92 to 99 % of runs whose groups are right or wrong as a whole
      (bench/drills/coverage.py).

    An interval is None without values, or with fewer than FEWEST_GROUPS groups. Raises ValueError for a value
    that is not between the ends.
    """
    x = np.asarray(values, dtype=float)
    if not len(x):
        return [None] * len(levels)
    if outside := x[~((x >= ends[0]) & (x <= ends[1]))][:1].tolist():
        raise ValueError(f"expected values from {ends[0]:g} to {ends[1]:g}, found {outside[0]:g}")
    mean = float(x.mean())
    whole, counts = np.unique(x, return_counts=True)
    rng = np.random.default_rng(0)
    if groups is not None:
        sums, sizes = group_sums(x, groups)
        n = len(sums)
        if n < FEWEST_GROUPS:
            return [None] * len(levels)
        usual = float(sizes.mean())  # size of the group whose half is added at either end
        drawn = _weighted_means(rng, np.ones(n), sums, sizes, usual, ends)
        # Dirichlet weights give a variance of s2 / (N + 1) for N units, with their biased s2; a mean has
        # s2 / (N - 1). At six groups that is .15 wider, at 60 .02.
        drawn = np.clip(mean + (drawn - mean) * math.sqrt((n + 2) / n), *ends)
    elif np.array_equal(whole, np.round(whole)) and ends[1] - ends[0] <= 8:
        support = np.arange(ends[0], ends[1] + 1)
        prior = np.full(len(support), 0.5)
        prior[np.searchsorted(support, whole)] += counts
        drawn = rng.dirichlet(prior, _DRAWS) @ support
    else:
        drawn = _weighted_means(rng, counts.astype(float), whole, np.ones(len(whole)), 1.0, ends)
    tails = np.quantile(drawn, [tail for level in levels for tail in ((1 - level) / 2, (1 + level) / 2)])
    return [
        (min(float(low), mean), max(float(high), mean))
        for low, high in zip(tails[::2], tails[1::2], strict=True)
    ]


def _weighted_means(
    rng: np.random.Generator, counts: Floats, sums: Floats, sizes: Floats, usual: float, ends: Interval
) -> Floats:
    """Draws the mean of units (values or groups) under random weights; returns (_DRAWS,) means. Each unit has
    a sum, a size and a count of its occurrences. Half a unit of the `usual` size is added at either end."""
    counts = np.concatenate([counts, [0.5, 0.5]])
    above, below = np.concatenate([sums, usual * np.array(ends)]), np.concatenate([sizes, [usual, usual]])
    weights = (rng.dirichlet(counts, _AT_ONCE) for _ in range(_DRAWS // _AT_ONCE))
    return np.concatenate([(w @ above) / (w @ below) for w in weights])


def group_sums(x: Floats, groups: Sequence[str]) -> tuple[Floats, Floats]:
    """Returns each group's sum of values and number of questions. Groups are ordered by name."""
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    return np.bincount(member, weights=x).astype(np.float64), np.bincount(member).astype(np.float64)


Conclusion = Literal["better", "worse", "same", "cannot tell"]

_AT_ONCE = 1_000  # draws in one step: some 20 MB at 2,706 questions
DRAWS = 100_000  # sets of signs, without an exact test: a p of .05 then varies by .0014
_DRAWN_MOST = 1_000_000_000  # drawn signs: a second. A million units get 1,000 sets: .05 then varies by .014
_FEW = 16  # units whose 65,536 sets of signs are all tried: fewer than DRAWS
_EXACT_MOST = 200_000_000  # products: a tenth of a second; 2,706 differences of 1 or 2 take 4e7
MARGIN = 0.02  # default for `same` and `not worse`: what 2,706 questions can show (Card 2020)
_POWER = 2.80  # z(.975) + z(.8): a difference of 2.8 standard errors is significant in 80 % of runs


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of two runs over the same questions, `after - before`."""

    n: int  # questions in both
    groups: int | None  # groups, each counted as one unit; None: each question by itself
    before: float  # mean over the n questions
    after: float
    difference: float  # mean of after - before
    up: int  # questions whose value rose
    down: int
    interval: Interval | None  # 95 %; None: too few groups
    interval_90: Interval | None  # 90 %: two one-sided tests at 5 % each
    p: float  # two-sided
    exact: bool  # False: from drawn signs, see `sign_flip`
    minimum_detectable: float | None  # difference that these questions show in 80 % of runs; None: unknown
    questions_needed: int | None  # number of questions that would show `difference`; None: it is 0


def paired(
    before: Sequence[float] | Floats,
    after: Sequence[float] | Floats,
    span: float,
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> PairedDifference:
    """Compares two runs by their values for the same questions, in the same order. `span` is the greatest
    possible difference of two values: 2 for CRAG's -1, 0, 1, and 1 for a rate. `groups` has the group of each
    question. Raises ValueError without questions, for unequal lengths, and for a difference beyond `span`."""
    a, b = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if len(a) != len(b) or not len(a) or (groups is not None and len(groups) != len(a)):
        raise ValueError(f"expected pairs, found {len(a)} and {len(b)} values")
    d = b - a
    units, sizes = (d, np.ones(len(d))) if groups is None else group_sums(d, groups)
    p, exact = sign_flip(units, seed)
    wide, narrow = mean_intervals(d, (-span, span), groups, (0.95, 0.90))
    # The standard error of the mean; questions of a group move together. 0 for a single unit.
    rest = units - d.mean() * sizes
    spread = len(units) / (len(units) - 1) * float(rest @ rest) if len(units) > 1 else 0.0
    error = math.sqrt(spread) / len(d) or (0.0 if wide is None else (wide[1] - wide[0]) / 2 / 1.96)
    mean = float(d.mean())
    return PairedDifference(
        n=len(d),
        groups=None if groups is None else len(units),
        before=float(a.mean()),
        after=float(b.mean()),
        difference=mean,
        up=int((d > 0).sum()),
        down=int((d < 0).sum()),
        interval=wide,
        interval_90=narrow,
        p=p,
        exact=exact,
        minimum_detectable=_POWER * error if error else None,
        questions_needed=math.ceil(len(d) * (_POWER * error / mean) ** 2) if mean else None,
    )


def sign_flip(units: Floats, seed: int = 0) -> tuple[float, bool]:
    """Computes the two-sided p of a sum of differences, and whether p is exact. The test assumes equally good
    runs: each difference is as likely positive as negative. `units` are differences, or their sums by group.

    Up to _FEW units, and whole numbers if it takes at most _EXACT_MOST products, a tenth of a second, give an
    exact p without a seed. Otherwise DRAWS sets of random signs are drawn. If b of m sets have a sum at least
    as far from 0 as that of `units`, p is (b + 1) / (m + 1), never 0 (Phipson and Smyth 2010). Very many
    units get fewer sets, to bound the time (`_draws`).

    >>> sign_flip(np.array([1.0] * 4 + [0.0] * 111))  # 4 of 115 questions gained, none lost
    (0.125, True)
    """
    sizes = np.abs(units[units != 0])
    if not len(sizes):
        return 1.0, True
    found = abs(float(units.sum()))
    if len(sizes) <= _FEW:
        bits = np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1  # (2**units, units) 0 or 1
        return float((np.abs((2 * bits - 1) @ sizes) >= found * (1 - 1e-12)).mean()), True
    if not np.array_equal(sizes, np.round(sizes)):
        return _drawn(sizes, found, seed), False
    of_size = [(int(size), int(n)) for size, n in zip(*np.unique(sizes, return_counts=True), strict=True)]
    width = np.cumsum([2.0 * size * n for size, n in of_size])  # range of sums of the sizes up to here
    products = float(np.diff(width, prepend=0.0) @ width)
    if products > _EXACT_MOST:
        return _drawn(sizes, found, seed), False
    chances: npt.NDArray[Any] = np.ones(1)  # probability of each sum, from least to largest, in steps of 1
    for size, n in of_size:
        k = np.arange(n + 1)
        log = np.array([math.lgamma(i + 1) for i in range(n + 1)])
        spread = np.zeros(2 * size * n + 1)  # every sum of `n` values of +size or -size
        spread[:: 2 * size] = np.exp(log[n] - log[k] - log[n - k] - n * math.log(2))  # fair coins
        chances = np.convolve(chances, spread)
    sums = np.arange(len(chances)) - (len(chances) - 1) // 2
    return min(1.0, float(chances[np.abs(sums) >= found].sum())), True


def _draws(units: int) -> tuple[int, int]:
    """Returns the number of steps that draw sets of signs, and the sets per step. A step takes some 20 MB."""
    step = max(1, min(_AT_ONCE, 3_000 * _AT_ONCE // units))
    return min(DRAWS, _DRAWN_MOST // units) // step or 1, step


def _drawn(sizes: Floats, found: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    as_far, bytes_each, (steps, step) = 0, -(-len(sizes) // 8), _draws(len(sizes))
    heads = np.concatenate([sizes, np.zeros(8 * bytes_each - len(sizes))]).astype(np.float32)
    for _ in range(steps):
        bits = np.frombuffer(rng.bytes(step * bytes_each), np.uint8).reshape(step, bytes_each)
        sums = 2 * (np.unpackbits(bits, axis=1).astype(np.float32) @ heads) - heads.sum()
        as_far += int((np.abs(sums) >= found * (1 - 1e-5)).sum())  # single precision gives a sum to 1e-6
    return (as_far + 1) / (steps * step + 1)


def conclude(found: PairedDifference, margin: float = MARGIN, p: float | None = None) -> Conclusion:
    """Concludes how the second run compares to the first. `better` or `worse` needs p under .05 and a 95 %
    interval without 0. `same` needs a 90 % interval within `margin` of 0. Anything else is `cannot tell`. `p`
    is a value corrected for several comparisons; if it is None, the p in `found` decides."""
    p = found.p if p is None else p
    if found.interval is None or found.interval_90 is None:
        return "cannot tell"
    if p < 0.05 and (found.interval[0] > 0 or found.interval[1] < 0):
        return "better" if found.difference > 0 else "worse"
    if -margin < found.interval_90[0] and found.interval_90[1] < margin:
        return "same"
    return "cannot tell"


def not_worse(found: PairedDifference, margin: float = MARGIN) -> bool:
    """Returns whether the 90 % interval shows that the second run is at most `margin` worse."""
    return found.interval_90 is not None and found.interval_90[0] > -margin


def holm(ps: Sequence[float]) -> list[float]:
    """Corrects p values for their number by Holm's method (1979). Returns them in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    out, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = worst
    return out


def max_t(differences: Sequence[Floats], seed: int = 0) -> list[float]:
    """Computes a two-sided p for the mean of each array, corrected for the number of arrays.

    Each array has the differences of one comparison, over the same questions. Uses Westfall and Young's
    step-down maxT (1993, algorithm 4.1) with random signs. A drawn sign applies to a question's differences
    in all arrays, because runs that answer alike also err alike. Holm's bound ignores this and gives larger
    p. A single array gets the p of `sign_flip`, exact if possible. For several arrays, p is (b + 1) / (m + 1)
    as in `sign_flip`, never exact. Raises ValueError without arrays, and for arrays of different lengths.

    >>> apart, noise = np.array([1.0] * 12 + [0.0] * 88), np.array([1.0, -1.0] * 6 + [0.0] * 88)
    >>> [round(p, 2) for p in max_t([apart, noise])]
    [0.0, 1.0]
    """
    if not differences or len({len(d) for d in differences}) > 1:
        raise ValueError(f"expected arrays of one length, found {[len(d) for d in differences]}")
    if len(differences) == 1:
        return [sign_flip(differences[0], seed)[0]]
    table = np.column_stack(differences)  # (n, runs)
    scale = np.sqrt((table**2).sum(axis=0))  # the same under all signs
    table = np.divide(table, scale, out=np.zeros_like(table), where=scale > 0)
    found = np.abs(table.sum(axis=0))
    order = np.argsort(-found, kind="stable")  # the largest statistic first
    as_far = np.zeros(len(order), int)
    rng = np.random.default_rng(seed)
    steps, step = _draws(len(table))
    for _ in range(steps):
        signs = rng.integers(0, 2, (step, len(table)), np.int8) * np.int8(2) - np.int8(1)
        drawn = np.abs(signs.astype(np.float32) @ table.astype(np.float32))[:, order]
        # For each run: the largest value among this and all less sure runs.
        largest = np.maximum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
        as_far += (largest >= found[order] * (1 - 1e-5)).sum(axis=0)
    out = np.empty(len(order))
    out[order] = np.maximum.accumulate((as_far + 1) / (steps * step + 1))
    return [float(p) for p in out]
