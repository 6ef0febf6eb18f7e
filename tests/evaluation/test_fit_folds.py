"""Folds of a fit: groups stay together, and each fold can be held out."""

from pathlib import Path

import numpy as np
import pytest

from raypipe.core.errors import DataError
from raypipe.evaluation.fit_decide import FOLDS, DecidedAnswer, folds_of

RUN = Path("run")


def answers(*keys: str) -> list[DecidedAnswer]:
    return [DecidedAnswer(f"q{i}", k, 1.0, 0.0, True, None, {}) for i, k in enumerate(keys)]


def test_two_groups_are_in_two_folds_whatever_they_are_called() -> None:
    for other in "bcdefghijkl":
        folds = folds_of(RUN, answers("a", "a", other, other), np.array([1.0, 0.0, 1.0, 0.0]))
        assert folds[0] == folds[1] != folds[2] == folds[3]


def test_groups_are_dealt_evenly_over_the_folds() -> None:
    folds = folds_of(RUN, answers(*map(str, range(52))), np.arange(52) % 2.0)
    assert sorted(np.bincount(folds)) == [10, 10, 10, 11, 11] and len(set(folds)) == FOLDS


@pytest.mark.parametrize("keys", ["aaaa", "aabb"])
def test_what_cannot_be_held_out_is_refused(keys: str) -> None:
    with pytest.raises(DataError, match="at least two groups of the half to fit on"):
        folds_of(RUN, answers(*keys), np.array([1.0, 1.0, 0.0, 0.0]))
