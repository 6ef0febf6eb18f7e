"""Logistic regression, calibration and coordinate ascent, next to a reference or to what can be counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.metrics.calibration import (
    best_threshold,
    calibration,
    climb,
    ece,
    fit,
    least,
    risk_area,
    sigmoid,
)

DRAWS = np.random.default_rng(5)
X = DRAWS.normal(size=(400, 3)) * [1.0, 10.0, 0.1]
TRUE = np.array([1.0, -0.05, 0.0])
RIGHT = (DRAWS.random(400) < sigmoid(0.3 + X @ TRUE)).astype(float)
FOLDS = np.arange(400) % 5


@pytest.mark.slow
def test_without_a_ridge_the_weights_are_those_of_statsmodels():
    import statsmodels.api as sm

    bias, weights = least(X, RIGHT, 0.0)
    reference = sm.Logit(RIGHT, sm.add_constant(X)).fit(disp=0).params
    assert np.allclose([bias, *weights], reference, atol=1e-4)


def test_a_ridge_pulls_weights_to_0_and_leaves_the_bias_at_the_share_of_right_rows():
    bias, weights = least((X - X.mean(0)) / X.std(0), RIGHT, 1e9)
    assert np.allclose(weights, 0, atol=1e-6)
    assert sigmoid(np.array([bias]))[0] == pytest.approx(RIGHT.mean(), abs=1e-4)


def test_units_of_features_change_no_probability():
    one, other = fit(X, RIGHT, FOLDS), fit(X * [1, 100, 1e-3] + 7, RIGHT, FOLDS)
    assert one.strength == other.strength
    fits = ((one, X), (other, X * [1, 100, 1e-3] + 7))
    p, same = (sigmoid(f.bias + (x - f.means) @ f.weights) for f, x in fits)
    assert np.allclose(p, same, atol=1e-5)


def test_noise_gets_a_strong_ridge_and_a_rows_own_outcome_is_not_in_its_held_out_probability():
    noise = np.random.default_rng(6).normal(size=(60, 20))
    found = fit(noise, RIGHT[:60], FOLDS[:60])
    assert found.strength >= 100
    flipped = RIGHT[:60].copy()
    flipped[0] = 1 - flipped[0]
    again = fit(noise, flipped, FOLDS[:60], [found.strength])
    assert again.held_out[0] == pytest.approx(found.held_out[0], abs=1e-6)


def test_a_single_fold_is_refused():
    with pytest.raises(ValueError, match="expected at least two, found one"):
        fit(X, RIGHT, np.zeros(400, int))


@pytest.mark.slow
def test_exact_probabilities_have_the_calibration_error_of_noise_alone():
    draws = np.random.default_rng(7)
    p = draws.random(2000)
    right = (draws.random(2000) < p).astype(float)
    found = calibration(p, right)
    assert abs(found.ece - found.ece_if_perfect) < 0.02 and found.ece_interval[0] <= found.ece
    sure = calibration(np.sqrt(p), right)  # too sure of itself, in the same order
    assert sure.ece > 2 * found.ece and sure.risk_area == found.risk_area
    assert sum(b.n for b in found.bins) == 2000 and found.curve[-1].coverage == 1
    assert found.curve[-1].risk == pytest.approx(1 - right.mean())


def test_a_perfect_order_has_less_area_under_risk_than_any_other_and_ece_counts_by_hand():
    right = np.array([1.0, 1.0, 0.0, 0.0])
    assert risk_area(np.array([0.9, 0.8, 0.2, 0.1]), right) == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert risk_area(np.array([0.1, 0.2, 0.8, 0.9]), right) == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4)
    assert ece(np.full(10, 0.7), np.array([1.0] * 7 + [0.0] * 3)) == pytest.approx(
        0.42
    )  # one answer a bin: mean of |0.7 - 1| and |0.7 - 0|


VALUES = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.5001, 0.9, 1.0]), st.sampled_from([-1.0, 0.0, 1.0])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_no_threshold_is_better_than_the_best(pairs):
    p, value = np.array(pairs).T
    found = best_threshold(p, value, np.zeros(len(p)))

    def total(t):
        return value[p >= t].sum()

    assert 0 <= found <= 1
    assert total(found) == pytest.approx(max(total(t) for t in [0.0, *p, *(p + 1e-9)] if t <= 1))


def test_where_a_wrong_answer_costs_nothing_every_answer_is_given():
    assert best_threshold(np.array([0.1, 0.9]), np.array([0.0, 1.0]), np.zeros(2)) == 0.0


def test_coordinate_ascent_finds_the_ratio_that_a_step_function_wants():
    def value(w):
        return -round(10 * abs(w[0] - 0.8 * w.sum()), 1)

    weights, found = climb(value, [np.ones(3)])
    assert weights.sum() == pytest.approx(1) and weights[0] == pytest.approx(0.8, abs=0.02) and found > -0.2


def test_coordinate_ascent_keeps_the_first_start_where_nothing_is_better_and_drops_what_harms():
    weights, _ = climb(lambda w: 0.0, [np.array([1.0, 3.0]), np.ones(2)])
    assert weights.tolist() == [0.25, 0.75]
    weights, found = climb(lambda w: -float(w[1] > 0), [np.ones(2)])
    assert weights.tolist() == [1.0, 0.0] and found == 0
