"""maxT keeps the chance of any false "better" in a sweep, and is sharper than Holm where points are alike."""

from itertools import product

import numpy as np
import pytest

from raypipe.metrics.paired_tests import holm, max_t, sign_flip


def runs(rng, n, k, alike):
    """Differences of k equal runs from a first, -1, 0 or 1; `alike`: the share that all have in common."""
    common = rng.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.8, 0.1])
    return [
        np.where(rng.random(n) < alike, common, rng.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.8, 0.1]))
        for _ in range(k)
    ]


def test_one_run_has_the_exact_p():
    d = np.array([1.0] * 4 + [0.0] * 111)
    assert max_t([d]) == [sign_flip(d)[0]] == [0.125]


def test_it_is_never_below_the_p_of_a_run_alone_and_keeps_their_order():
    found = runs(np.random.default_rng(3), 120, 5, 0.5)
    alone, corrected = [sign_flip(d)[0] for d in found], max_t(found)
    assert all(c >= a - 0.01 for a, c in zip(alone, corrected, strict=True))
    assert max_t(found) == corrected and max_t(list(reversed(found))) == pytest.approx(
        list(reversed(corrected)), abs=0.01
    )


def test_of_few_questions_it_is_the_step_down_p_over_all_signs():
    runs_of = [1] * 7 + [-1, 0, 0, 0], [0] * 4 + [2, 1, 1, 2, 1, 1, -1], [1, -1] * 5 + [1]
    found = [np.array(d, float) for d in runs_of]
    table = np.column_stack(found) / np.sqrt([(d**2).sum() for d in found])  # (n, runs)
    seen = np.abs(table.sum(axis=0))
    surest = np.argsort(-seen, kind="stable")
    under = np.abs(np.array(list(product((-1, 1), repeat=len(table)))) @ table)[:, surest]  # (signs, runs)
    least, expected = 0.0, np.empty(len(found))
    for rank, run in enumerate(surest):
        least = max(least, float((under[:, rank:].max(axis=1) >= seen[run] - 1e-9).mean()))
        expected[run] = least
    assert max_t(found) == pytest.approx(expected.tolist(), abs=0.006)
    assert expected[surest[0]] > sign_flip(found[surest[0]])[0] + 0.02, "several are compared"


def test_equal_runs_count_as_one_where_holm_counts_each():
    d = np.array([1.0] * 14 + [-1.0] * 4 + [0.0] * 100)
    alone = sign_flip(d)[0]
    assert max_t([d] * 6) == pytest.approx([alone] * 6, abs=0.005)
    assert holm([alone] * 6)[0] == pytest.approx(6 * alone)


def test_a_run_that_differs_nowhere_has_p_1_and_wrong_input_is_refused():
    assert max_t([np.zeros(5), np.array([1.0, 0, 0, 0, 0])])[0] == 1.0
    with pytest.raises(ValueError, match="of one length"):
        max_t([np.zeros(3), np.zeros(4)])
    with pytest.raises(ValueError, match="of one length"):
        max_t([])


@pytest.mark.drill
def test_of_equal_points_one_in_twenty_sweeps_at_most_finds_a_better_one():
    rng, wrong, tries = np.random.default_rng(7), 0, 200
    for _ in range(tries):
        wrong += min(max_t(runs(rng, 200, 8, rng.random()))) < 0.05
    assert wrong / tries <= 0.05 + 2 * (0.05 * 0.95 / tries) ** 0.5
