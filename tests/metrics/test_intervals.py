"""Intervals of scores, rates and means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raypipe.metrics.paired_tests import mean_interval, rate_interval, score_interval


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


@pytest.mark.parametrize(("hits", "n"), [(0, 7), (3, 7), (7, 7), (640, 2706)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_of_a_rate_is_wilsons(hits: int, n: int, level: float) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
    assert rate_interval(hits, n, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_rate_of_no_questions_is_refused() -> None:
    with pytest.raises(ValueError, match="0 of 0"):
        rate_interval(0, 0)


def test_groups_count_as_one_each_and_under_six_there_is_no_interval() -> None:
    values = [1.0, 1.0, 0.0, 1.0] * 6
    alone = mean_interval(values, (-1, 1))
    assert mean_interval(values, (-1, 1), ["a", "b", "c", "d", "e"] * 4 + ["a"] * 4) is None
    same = mean_interval(values, (-1, 1), [str(i // 4) for i in range(24)])
    assert same is not None and alone is not None and same[0] < alone[0] < 0.75 < min(alone[1], same[1])


@pytest.mark.parametrize("groups", [6, 20, 60])
def test_groups_of_which_none_differ_do_not_prove_that_the_next_does_not(groups: int) -> None:
    names = [str(i // 5) for i in range(5 * groups)]
    tied = mean_interval([0.0] * len(names), (-1, 1), names, 0.9)
    assert tied is not None and tied[0] < -1 / groups / 2 and tied[1] > 1 / groups / 2


def test_a_value_outside_of_its_range_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="expected values from 0 to 1, found 3"):
        mean_interval([0.5, 3.0], (0, 1))
    with pytest.raises(ValueError, match="found nan"):
        mean_interval([float("nan")], (0, 1))


def test_an_interval_of_other_values_stays_wide_where_few_questions_differ() -> None:
    few = mean_interval([0.3] + [0.0] * 99, (-1, 1))
    assert few is not None and few[0] < 0 < 0.01 < few[1]
    many = mean_interval([0.3] * 30 + [0.0] * 2670, (-1, 1))
    assert many is not None and 0 < many[0] < 0.3 * 30 / 2700 < many[1] < 0.01
    assert mean_interval([], (-1, 1)) is None


@pytest.mark.parametrize(("questions", "size"), [(350, 0.9), (1000, 0.3)])
def test_an_interval_holds_the_mean_where_one_question_in_a_hundred_differs(questions, size):
    random, held, runs = np.random.default_rng(3), 0, 100
    for _ in range(runs):
        found = mean_interval(np.where(random.random(questions) < 0.01, -size, 0.0), (-1, 1))
        assert found is not None
        held += found[0] <= -0.01 * size <= found[1]
    assert held >= 0.92 * runs
