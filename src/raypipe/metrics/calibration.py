"""Numbers fitted to answers: how likely they are right and how well that holds; weights of rankers.

Pure functions on arrays; knows no question. Logistic regression has a ridge whose strength cross-validation
chooses. Ranking measures are steps in the weights: they have no slope, and coordinate ascent needs none
(Metzler and Croft 2007) and is exact for two weights but for the grid. Reliability diagram and expected
calibration error: Naeini, Cooper and Hauskrecht 2015, in bins of equally many answers (Nixon et al. 2019).
Risk and coverage: El-Yaniv and Wiener 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from raypipe.metrics.certainty import Interval, rate_interval

Floats = npt.NDArray[np.float64]

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Strengths of the ridge, on features of variance 1: a weight of w costs strength / 2 x w^2, a question some
.7."""
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
    features: Floats,
    right: Floats,
    folds: Sequence[int] | npt.NDArray[np.int64],
    strengths: Sequence[float] = STRENGTHS,
) -> LogisticFit:
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
"""Factors that a weight is multiplied by in turn; the others share what is left. After three rounds two
neighbours differ by some 5 %, which moves no measure by more than its noise."""
LEAST = 0.02  # of a weight that is tried again after it was 0, as a share of all weights
ROUNDS = 10
GAIN = 1e-6  # less than one rank of one question in a million


def climb(value: Callable[[Floats], float], starts: Sequence[Floats]) -> tuple[Floats, float]:
    """Weights of at least 0 that sum to 1 with the largest value found, and that value. Of equally good ones
    the first: `starts` begin with what is preferred."""
    best: tuple[Floats, float] | None = None
    for start in starts:
        w = _shares(start)
        now, before = value(w), -math.inf
        for _ in range(ROUNDS):
            if now <= before + GAIN:
                break
            before = now
            for i, factor in product(range(len(w)), FACTORS):
                tried = w.copy()
                tried[i] = factor * max(w[i], LEAST)
                if tried.sum() and (found := value(_shares(tried))) > now + GAIN:
                    w, now = _shares(tried), found
        if best is None or now > best[1] + GAIN:
            best = w, now
    assert best is not None, "expected a start"
    return best


def _shares(w: Floats) -> Floats:
    out: Floats = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
    return out


BINS = 10  # of a reliability diagram
FEWEST = 50  # answers of a report: five a bin
CURVE_POINTS = 50  # of a risk-coverage curve at most
_RESAMPLES = 1_000  # of a bootstrap: its ends then repeat to about .003 at 200 answers


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Answers of about the same probability."""

    mean: float  # probability, 0..1
    right: float  # share of them that is right
    interval: Interval  # of that share, Wilson's 95 %
    n: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The surest answers alone."""

    coverage: float  # share of the answers that is given, 0..1
    risk: float  # share of these that is wrong
    threshold: float  # the probability of the last one given


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Calibration of the probabilities of some answers."""

    n: int  # answers
    ece: float  # expected calibration error: mean distance of a bin's probability from its share right
    ece_interval: Interval  # percentile bootstrap over answers; it holds the noise of the bins, too
    ece_if_perfect: float  # what as many answers would show if the probabilities were exact: noise alone
    brier: float  # mean squared distance of the probability from what came
    log_loss: float
    risk_area: float  # mean risk over all coverages (AURC): 0 at best, the share of wrong ones by chance
    risk_area_interval: Interval
    bins: tuple[ReliabilityBin, ...]
    curve: tuple[CurvePoint, ...]  # from the surest answers to all of them


def calibration(p: Floats, right: Floats) -> CalibrationReport:
    """Holds probabilities against what came: (answers,) 0..1 and (answers,) of 0 and 1, at least one each."""
    rng, order = np.random.default_rng(0), np.argsort(-p, kind="stable")
    risks = np.cumsum(1 - right[order]) / np.arange(1, len(p) + 1)
    at = np.unique(np.linspace(1, len(p), min(CURVE_POINTS, len(p))).round().astype(int))
    drawn = [rng.integers(0, len(p), len(p)) for _ in range(_RESAMPLES)]
    errors = [ece(p[i], right[i]) for i in drawn]
    areas = [risk_area(p[i], right[i]) for i in drawn]
    perfect = [ece(p, (rng.random(len(p)) < p).astype(float)) for _ in range(_RESAMPLES // 5)]
    return CalibrationReport(
        n=len(p),
        ece=ece(p, right),
        ece_interval=_ends(errors, ece(p, right)),
        ece_if_perfect=float(np.mean(perfect)),
        brier=float(np.mean((p - right) ** 2)),
        log_loss=log_loss(p, right),
        risk_area=risk_area(p, right),
        risk_area_interval=_ends(areas, risk_area(p, right)),
        bins=tuple(
            ReliabilityBin(
                float(p[b].mean()), float(right[b].mean()), rate_interval(int(right[b].sum()), len(b)), len(b)
            )
            for b in _binned(p)
        ),
        curve=tuple(CurvePoint(float(k / len(p)), float(risks[k - 1]), float(p[order[k - 1]])) for k in at),
    )


def stated_calibration(
    stated: Mapping[str, float | None], right: Mapping[str, bool | None]
) -> CalibrationReport | None:
    """Returns how well the confidence of answers holds; None: some answers have none, or fewer are scored
    than say something. `stated`: question id -> confidence of its answer."""
    pairs = [(p, fine) for id, p in stated.items() if (fine := right.get(id)) is not None]
    known = [(p, fine) for p, fine in pairs if p is not None]
    if len(known) < max(FEWEST, len(pairs)):
        return None
    return calibration(np.array([p for p, _ in known]), np.array([fine for _, fine in known], float))


def _ends(values: list[float], found: float) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return min(float(low), found), max(float(high), found)


def _binned(p: Floats) -> list[npt.NDArray[np.int64]]:
    """Places of the answers of each bin: equally many, by rising probability."""
    return [b for b in np.array_split(np.argsort(p, kind="stable"), BINS) if len(b)]


def ece(p: Floats, right: Floats) -> float:
    """Expected calibration error, 0..1.

    >>> ece(np.array([0.5, 0.5]), np.array([1.0, 0.0]))  # one answer a bin: noise alone
    0.5
    """
    return float(sum(len(b) * abs(p[b].mean() - right[b].mean()) for b in _binned(p)) / len(p))


def risk_area(p: Floats, right: Floats) -> float:
    """Mean over k of the share of wrong ones among the k surest answers."""
    wrong = 1 - right[np.argsort(-p, kind="stable")]
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(p) + 1)))


def best_threshold(p: Floats, answered: Floats, abstained: Floats) -> float:
    """The probability from which on answers are given so that the sum of values is largest.

    (answers,) each: probability, value if it is given, value if it is not. Of equally good thresholds the
    one that gives most answers, in the middle between two probabilities; 0 where it gives all.

    >>> best_threshold(np.array([0.2, 0.4, 0.9]), np.array([-1.0, 1.0, 1.0]), np.zeros(3))
    0.30000000000000004
    """
    order = np.argsort(p, kind="stable")
    sure, gain = p[order], (answered - abstained)[order]
    total = np.concatenate([np.cumsum(gain[::-1])[::-1], [0.0]])  # of answers from place k on
    edges = np.concatenate([[0.0], sure, [1.0]])
    gaps = np.diff(edges)  # a threshold in gap k gives the answers from place k on
    possible = (gaps > 0) | (np.arange(len(gaps)) == 0)
    best = total[possible].max()
    k = next(k for k in np.flatnonzero(possible) if total[k] >= best - 1e-9)
    return 0.0 if k == 0 else float((edges[k] + edges[k + 1]) / 2)
