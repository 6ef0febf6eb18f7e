"""The interval of a score."""

from __future__ import annotations

import numpy as np
import pytest

from raypipe.metrics.stats import score_interval


@pytest.mark.parametrize("shares", [(0.3, 0.5, 0.2), (0.05, 0.9, 0.05)])
def test_the_interval_holds_the_true_score_about_19_times_in_20(shares: tuple[float, ...]) -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        correct, missing, wrong = random.multinomial(60, shares)
        low, high = score_interval(correct, missing, wrong)
        held += low <= shares[0] - shares[2] <= high
    assert 180 <= held <= 198


def test_it_narrows_with_more_questions_and_holds_the_score_at_the_ends() -> None:
    widths = [np.diff(score_interval(4 * n, 3 * n, 3 * n))[0] for n in (1, 10, 100)]
    assert widths[0] > widths[1] > widths[2]
    assert score_interval(10, 0, 0)[1] == 1 and score_interval(0, 0, 10)[0] == -1
    low, high = score_interval(0, 10, 0)
    assert low < 0 < high


def test_no_question_has_no_interval() -> None:
    with pytest.raises(ValueError, match="no scored question"):
        score_interval(0, 0, 0)
