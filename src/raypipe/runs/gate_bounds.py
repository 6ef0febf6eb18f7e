"""Gates on a share hold for the end of its interval: a bound that few questions reach by luck is not passed.

Pure functions on a score's counts; reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raypipe.metrics.intervals import Interval, rate_interval, score_interval

_HITS = {
    "accuracy": "n_correct", "hallucination": "n_hallucination", "missing": "n_miss",
    "exact_accuracy": "n_correct_exact",
}  # fmt: skip
SHARES = frozenset({"score", *_HITS})
"""Numbers of a run that rest on its scored questions."""
MOST = 10_000_000  # questions; a bound that needs more is out of reach


def interval_of(metric: str, score: Mapping[str, Any], questions: int | None = None) -> Interval:
    """95 % interval of a share, from a run's counts; of as many `questions` of the same kind, where given."""
    counts = [score[name] for name in ("n_correct", "n_miss", "n_hallucination")]
    scored = sum(counts)
    factor = 1.0 if questions is None else questions / scored
    if metric == "score":
        right, missing, wrong = (round(c * factor) for c in counts)
        return score_interval(right, missing, wrong)
    n = round(scored * factor)
    return rate_interval(min(n, round(score[_HITS[metric]] * factor)), n)


def end_of(comparison: str, interval: Interval) -> float | None:
    """The end of the interval that a bound has to hold for; None for `==`, which no interval can prove."""
    return {">": interval[0], "<": interval[1]}.get(comparison[0])


def questions_needed(
    metric: str, score: Mapping[str, Any], comparison: str, holds: Callable[[float], bool]
) -> int | None:
    """How many scored questions of the same kind would pass a bound; None: no number of them would."""
    scored: int = score["total"] - score["n_unscored"]

    def passes(n: int) -> bool:
        end = end_of(comparison, interval_of(metric, score, n))
        return end is not None and holds(end)

    high = scored
    while not passes(high):
        if (high := high * 2) > MOST:
            return None
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
