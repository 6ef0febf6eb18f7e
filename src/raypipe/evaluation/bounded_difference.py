"""Paired difference of two lists of values, with bounds for questions that are not scored.

The scoring rule can leave a question open, so its value is unknown. A conclusion about the scored questions
holds only if it stays the same with all open questions at their worst, and with all at their best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.metrics.kinds import Measure
from raypipe.metrics.paired_tests import Conclusion, Floats, PairedDifference, conclude, paired

Values = Sequence[float | None]
"""Value of each question; None: not scored."""


@dataclass(frozen=True, slots=True)
class BoundedDifference:
    """Difference of two lists of values, and its bounds for all values that open questions may have."""

    score: PairedDifference  # over the scored questions
    at_worst: PairedDifference  # over the open ones too, each at its worst for the second list
    at_best: PairedDifference  # the same at their best; both ends are `score` if no question is open

    def verdict(
        self, margin: float, ps: Sequence[float | None] = (None, None, None)
    ) -> tuple[Conclusion, int]:
        """Returns the conclusion that holds for any values of the open questions, else `cannot tell`. Also
        returns how many open questions could change it; 0: none can. `ps` has corrected p of `score`,
        `at_worst` and `at_best`; None: the p of that difference itself."""
        ends = self.score, self.at_worst, self.at_best
        said = [conclude(d, margin, p) for d, p in zip(ends, ps, strict=True)]
        return ("cannot tell", self.at_worst.n - self.score.n) if len(set(said)) > 1 else (said[0], 0)


def extremes(before: Values, after: Values, measure: Measure) -> tuple[Floats, Floats]:
    """Returns the least and the largest difference of each question: two arrays, (questions,) float64. An
    open question may have any value of the measure."""

    def filled(values: Values, unknown: float) -> Floats:
        return np.array([unknown if v is None else v for v in values], float)

    low, high = measure.low, measure.high
    return filled(after, low) - filled(before, high), filled(after, high) - filled(before, low)


def bounded(
    before: Values, after: Values, scored: int, measure: Measure, groups: Sequence[str] | None
) -> BoundedDifference:
    """Compares two lists of values of the same questions. The first `scored` questions have a value in both
    lists; later ones are open in one or both. `groups` has the group of each question; None: no groups."""
    span, known = measure.high - measure.low, None if groups is None else groups[:scored]
    one, two = (np.array(values[:scored], float) for values in (before, after))
    score = paired(one, two, span, known)
    if scored == len(before):
        return BoundedDifference(score, score, score)
    ends = (paired(np.zeros(len(d)), d, span, groups) for d in extremes(before, after, measure))
    return BoundedDifference(score, *ends)
