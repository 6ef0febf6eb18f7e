"""Comparing two runs over the same questions."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from types import ModuleType

import numpy as np
import pytest
from checkout import BENCH
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from raypipe.metrics.paired_tests import conclude, holm, not_worse, paired, sign_flip


def by_hand(differences: list[float]) -> float:
    """The share of all sign vectors whose sum is at least as far from 0."""
    found = abs(sum(differences))
    sums = [0.0]
    for d in differences:
        sums = [s + d for s in sums] + [s - d for s in sums]
    return sum(abs(s) >= found - 1e-12 for s in sums) / len(sums)


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12))
@example([1] * 10 + [-1] * 4 + [2] * 4)  # more units than are tried sign by sign
@settings(max_examples=60, deadline=None)
def test_the_exact_p_counts_all_signs(differences: list[int]) -> None:
    p, exact = sign_flip(np.array(differences, dtype=float))
    assert exact and p == pytest.approx(by_hand([float(d) for d in differences]), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("part", [1.0, 1 / 3])  # a few units have an exact p, whole numbers or not
def test_scipy_agrees(seed: int, part: float) -> None:
    d = np.random.default_rng(seed).integers(-2, 3, 14) * part
    expected = stats.permutation_test(
        (d,), np.sum, permutation_type="samples", n_resamples=math.inf, alternative="two-sided"
    ).pvalue
    assert sign_flip(d) == (pytest.approx(expected, abs=1e-12), True)


@pytest.mark.parametrize(("gained", "lost"), [(4, 0), (8, 4), (20, 16), (130, 90), (5, 5)])
def test_for_a_rate_it_is_the_exact_test_of_mcnemar(gained: int, lost: int) -> None:
    d = np.array([1.0] * gained + [-1.0] * lost + [0.0] * 60)
    expected = mcnemar([[30, gained], [lost, 30]], exact=True).pvalue
    assert sign_flip(d)[0] == pytest.approx(expected, abs=1e-12)


def test_drawn_signs_come_near_the_exact_p_and_are_never_0() -> None:
    d = np.random.default_rng(3).integers(-2, 3, 60).astype(float)
    drawn, exact = sign_flip(d / 3 + np.pi * 0 + 1e-9)
    assert not exact and drawn == pytest.approx(sign_flip(d)[0], abs=0.01)
    assert 0 < sign_flip(np.full(200, 0.3))[0] < 1.1e-5


def test_large_whole_numbers_and_many_units_take_no_longer_than_they_may() -> None:
    characters = np.random.default_rng(0).integers(1, 4_000, 200).astype(float)
    assert sign_flip(characters) == (pytest.approx(1 / 100_001), False)  # exact: minutes
    started, (p, exact) = time.perf_counter(), sign_flip(np.full(1_000_000, 0.25))
    assert not exact and p == pytest.approx(1e-3, rel=0.01) and time.perf_counter() - started < 60


def test_four_gained_of_115_cannot_tell_although_other_tests_say_so() -> None:
    gained = [1.0] * 4 + [0.0] * 111
    found = paired([0.0] * 115, gained, 2)
    assert found.p == 0.125 and found.exact and conclude(found) == "cannot tell"
    assert stats.ttest_1samp(gained, 0).pvalue < 0.05
    assert found.minimum_detectable == pytest.approx(2.8 * 0.1841 / math.sqrt(115), rel=0.02)
    assert found.questions_needed == pytest.approx(7.85 * (0.1841 / (4 / 115)) ** 2, rel=0.02)


def test_better_worse_same_and_cannot_tell() -> None:
    base = [0.0] * 200
    gained = [1.0] * 30 + [0.0] * 170
    assert conclude(paired(base, gained, 2)) == "better"
    assert conclude(paired(gained, base, 2)) == "worse"
    assert conclude(paired(base, base, 2), margin=0.05) == "same"
    assert conclude(paired(base, base, 2), margin=0.005) == "cannot tell"
    assert conclude(paired(base, gained, 2), p=0.2) == "cannot tell"  # after a correction


def test_a_run_against_itself_is_never_better_nor_worse() -> None:
    values = np.random.default_rng(1).integers(-1, 2, 500).astype(float)
    found = paired(values, values, 2)
    assert found.p == 1.0 and found.difference == 0 and found.questions_needed is None
    assert conclude(found) == "same" and not_worse(found)


def test_not_worse_needs_more_questions_for_a_smaller_margin() -> None:
    mixed = [1.0] * 10 + [-1.0] * 10 + [0.0] * 480
    found = paired([0.0] * 500, mixed, 2)
    assert not_worse(found, 0.03) and not not_worse(found, 0.005)


def test_groups_move_as_one() -> None:
    gained = [1.0] * 10 + [0.0] * 90
    alone, grouped = (
        paired([0.0] * 100, gained, 2),
        paired([0.0] * 100, gained, 2, [str(i // 10) for i in range(100)]),
    )
    assert conclude(alone) == "better" and conclude(grouped) == "cannot tell"
    assert grouped.groups == 10 and grouped.p == 1.0
    tied = paired([1.0] * 30, [1.0] * 30, 1.0, [str(i // 5) for i in range(30)])
    assert conclude(tied) == "cannot tell" and not not_worse(tied)
    five = paired([0.0] * 100, [1.0] * 100, 2, [str(i // 20) for i in range(100)])
    assert five.interval is None and conclude(five) == "cannot tell"


def test_holm_never_lowers_a_p_and_keeps_their_order() -> None:
    ps = [0.2, 0.001, 0.04, 0.001]
    corrected = holm(ps)
    assert corrected == pytest.approx([0.2, 0.004, 0.08, 0.004])
    assert holm([]) == []


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="2 and 1 values"):
        paired([0.0, 1.0], [1.0], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [pytest.param(i, marks=[] if i in (0, 3, 7) else [pytest.mark.drill]) for i in range(8)]
)
def test_verdicts_are_wrong_no_more_often_than_they_may_be(setting: int) -> None:
    bench = _bench()
    outcome = bench.simulate(bench.SETTINGS[setting], 200, seed=7)
    assert outcome.holds(), outcome


def _bench() -> ModuleType:
    path = BENCH / "figures/certainty.py"
    spec = importlib.util.spec_from_file_location("certainty", path)
    assert spec and spec.loader
    module = sys.modules["certainty"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
