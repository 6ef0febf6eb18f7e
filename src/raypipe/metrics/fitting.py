"""Numbers fitted to data: logistic regression with a ridge, and weights that make a measure largest.

The strength of the ridge is chosen by cross-validation. Ranking measures are steps in the weights: they have
no slope. Coordinate ascent needs none (Metzler and Croft 2007) and is exact for two weights but for the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Of the ridge, on features of variance 1: a weight of w costs strength / 2 x w^2, a question some .7."""
_ON_BIAS = 1e-9  # ridge on the bias: without it there is no least where all rows are right


@dataclass(frozen=True, slots=True)
class LogisticFit:
    bias: float  # log odds where all features are at their means
    weights: Floats  # (features,) log odds for each unit of a feature
    means: Floats  # (features,)
    strength: float  # of the ridge
    held_out: Floats  # (rows,) probability of each row, from a fit to the other folds: unbiased


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(-z)) without overflow."""
    out: Floats = 0.5 * (1 + np.tanh(z / 2))
    return out


def fit(
    features: Floats, right: Floats, folds: Sequence[int] | npt.NDArray[np.int64],
    strengths: Sequence[float] = STRENGTHS,
) -> LogisticFit:  # fmt: skip
    """Fits (rows, features) to (rows,) of 0 and 1. `folds` says which fold each row is in; the strength is
    the one whose fits to the other folds have the least log loss, of equals the largest. Raises ValueError
    for fewer than two folds: a row has no other fold then."""
    if len(np.unique(folds)) < 2:
        raise ValueError("folds: expected at least two, found one")
    means, spread = features.mean(0), features.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    x, fold = (features - means) / scale, np.asarray(folds)
    best: tuple[float, float, Floats] | None = None
    for strength in sorted(strengths, reverse=True):
        held = np.empty(len(x))
        for part in np.unique(fold):
            own = fold == part
            bias, w = least(x[~own], right[~own], strength)
            held[own] = sigmoid(bias + x[own] @ w)
        loss = log_loss(held, right)
        if best is None or loss < best[0]:
            best = (loss, strength, held)
    assert best is not None
    bias, w = least(x, right, best[1])
    return LogisticFit(bias, w / scale, means, best[1], best[2])


def log_loss(p: Floats, right: Floats) -> float:
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.mean(right * np.log(safe) + (1 - right) * np.log(1 - safe)))


def least(x: Floats, right: Floats, strength: float) -> tuple[float, Floats]:
    """Bias and weights with the least log loss and ridge; the bias costs nothing. The cost is convex."""
    from scipy.optimize import minimize  # half a second of import, for this alone

    rows = np.hstack([np.ones((len(x), 1)), x])
    ridge = np.concatenate([[_ON_BIAS], np.full(x.shape[1], strength)])

    def cost(w: Floats) -> tuple[float, Floats]:
        z = rows @ w
        loss = np.sum(np.logaddexp(0, z) - right * z) + 0.5 * ridge @ (w * w)
        return float(loss), rows.T @ (sigmoid(z) - right) + ridge * w

    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-8}
    w = minimize(cost, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B", options=options).x
    return float(w[0]), w[1:]


# ---------------------------------------------------------------- coordinate ascent

FACTORS = (0.0, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.18, 1.4, 2.0, 4.0)
"""What a weight is multiplied by in turn; the others share what is left. After three rounds two neighbours
differ by some 5 %, which moves no measure by more than its noise."""
LEAST = 0.02  # of a weight that is tried again after it was 0, as a share of all weights
ROUNDS = 10
GAIN = 1e-6  # less than one rank of one question in a million


def climb(value: Callable[[Floats], float], starts: Sequence[Floats]) -> tuple[Floats, float]:
    """Weights of at least 0 that sum to 1 with the largest value found, and that value. Of equally good ones
    the first: `starts` begin with what is preferred."""
    best: tuple[Floats, float] | None = None
    for start in starts:
        w = _shares(start)
        found = _from(value, w, value(w))
        if best is None or found[1] > best[1] + GAIN:
            best = found
    assert best is not None, "expected a start"
    return best


def _shares(w: Floats) -> Floats:
    out: Floats = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
    return out


def _from(value: Callable[[Floats], float], w: Floats, now: float) -> tuple[Floats, float]:
    for _ in range(ROUNDS):
        before = now
        for i in range(len(w)):
            for factor in FACTORS:
                tried = w.copy()
                tried[i] = factor * max(w[i], LEAST)
                if not tried.sum():
                    continue
                tried = _shares(tried)
                if (found := value(tried)) > now + GAIN:
                    w, now = tried, found
        if now <= before + GAIN:
            break
    return w, now
