"""Calibration of answers: fitted probabilities that they are right, their reliability, and rankers' weights.

Pure functions on arrays; only `stated_calibration` joins questions by id. Logistic regression has a ridge
penalty, whose strength is chosen by cross-validation. A ranking measure changes in jumps with the weights, so
it has no slope. `climb` therefore uses coordinate ascent (Metzler and Croft 2007); with two weights it
searches one line, as finely as its grid. Reliability diagram and expected calibration error follow Naeini,
Cooper and Hauskrecht 2015, with equally many answers in each bin (Nixon et al. 2019). Risk and coverage
follow El-Yaniv and Wiener 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from raypipe.metrics.paired_tests import Floats, Interval, rate_interval

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Strengths of the ridge, for features of variance 1. A weight w adds strength / 2 x w^2 to the loss; an
undecided question adds some .7."""
_ON_BIAS = 1e-9  # ridge on the bias: without it the cost has no minimum if all rows are right


@dataclass(frozen=True, slots=True)
class LogisticFit:
    bias: float  # log odds if all features have their means
    weights: Floats  # (features,) log odds for each unit of a feature
    means: Floats  # (features,)
    strength: float  # strength of the ridge
    held_out: Floats  # (rows,) probability of each row, by a fit to the other folds only


def sigmoid(z: Floats) -> Floats:
    """Computes 1 / (1 + exp(-z)) without overflow."""
    out: Floats = 0.5 * (1 + np.tanh(z / 2))
    return out


def fit(
    features: Floats,
    right: Floats,
    folds: Sequence[int] | npt.NDArray[np.int64],
    strengths: Sequence[float] = STRENGTHS,
) -> LogisticFit:
    """Fits a logistic regression of `right`, (rows,) of 0 and 1, on `features`, (rows, features). `folds`,
    (rows,), has each row's fold. The ridge has the strength with the least log loss on held-out folds; among
    equals, the strongest. Raises ValueError for fewer than two folds: no other fold is left to fit on."""
    if len(np.unique(folds)) < 2:
        raise ValueError("folds: expected at least two, found one")
    means, spread = features.mean(0), features.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    x, fold = (features - means) / scale, np.asarray(folds)

    def held_out(strength: float) -> Floats:
        """Returns the probability of each row, by a fit to all folds but its own."""
        held = np.empty(len(x))
        for part in np.unique(fold):
            own = fold == part
            bias, w = least(x[~own], right[~own], strength)
            held[own] = sigmoid(bias + x[own] @ w)
        return held

    tried = ((strength, held_out(strength)) for strength in sorted(strengths, reverse=True))
    strength, held = min(tried, key=lambda one: log_loss(one[1], right))
    bias, w = least(x, right, strength)
    return LogisticFit(bias, w / scale, means, strength, held)


def log_loss(p: Floats, right: Floats) -> float:
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.mean(right * np.log(safe) + (1 - right) * np.log(1 - safe)))


def least(x: Floats, right: Floats, strength: float) -> tuple[float, Floats]:
    """Finds the bias and weights that minimize log loss plus ridge penalty; the minimum is unique."""
    from scipy.optimize import minimize  # half a second of import, needed only here

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
"""Factors by which each weight is multiplied in turn; then all weights are scaled to sum to 1. After three
rounds, weights tried next to each other differ by some 5 %, which moves no measure by more than its noise."""
LEAST = 0.02  # least weight that a factor multiplies, so that a weight of 0 can rise again
ROUNDS = 10  # most rounds from one start
GAIN = 1e-6  # least gain that counts: less than one rank of one question in a million


def climb(value: Callable[[Floats], float], starts: Sequence[Floats]) -> tuple[Floats, float]:
    """Searches for weights of at least 0, with sum 1, that maximize `value`. Climbs from each start, and may
    end at a local maximum. Returns the best weights with their value. If results are equal within GAIN, the
    one of the earliest start wins, so put preferred weights first."""
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


BINS = 10  # bins of a reliability diagram
FEWEST = 50  # fewest answers of a report: five in each bin
CURVE_POINTS = 50  # most points of a risk-coverage curve
_RESAMPLES = 1_000  # draws of a bootstrap: at 200 answers its ends then vary by about .003


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Answers of similar probability."""

    mean: float  # mean probability, 0..1
    right: float  # share of right answers
    interval: Interval  # Wilson's 95 % interval of that share
    n: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Point of a risk-coverage curve, at which only the surest answers are given."""

    coverage: float  # share of answers that are given, 0..1
    risk: float  # share of wrong answers among them
    threshold: float  # least probability among them


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Calibration of the probabilities of some answers."""

    n: int  # answers
    ece: float  # expected calibration error: mean distance of a bin's `mean` from its `right`, over answers
    ece_interval: Interval  # 95 %, by bootstrap over answers; includes the noise of the bins
    ece_if_perfect: float  # mean `ece` if the probabilities were exact, by simulation: only noise
    brier: float  # mean squared distance of the probability from the outcome
    log_loss: float
    risk_area: float  # mean risk over all coverages (AURC): 0 at best; by chance, the share of wrong answers
    risk_area_interval: Interval
    bins: tuple[ReliabilityBin, ...]
    curve: tuple[CurvePoint, ...]  # from the surest answers to all of them


def calibration(p: Floats, right: Floats) -> CalibrationReport:
    """Compares the probabilities `p` of answers with their outcomes `right`. Both are (answers,): `p` in
    0..1, `right` of 0 and 1. Needs at least one answer."""
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
    """Measures the calibration of `stated` confidences by question id. `right` says whether answers are
    right; None: not scored. Returns None if a scored answer states none, or fewer than FEWEST are scored."""
    pairs = [(p, fine) for id, p in stated.items() if (fine := right.get(id)) is not None]
    known = [(p, fine) for p, fine in pairs if p is not None]
    if len(known) < max(FEWEST, len(pairs)):
        return None
    return calibration(np.array([p for p, _ in known]), np.array([fine for _, fine in known], float))


def _ends(values: list[float], found: float) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return min(float(low), found), max(float(high), found)


def _binned(p: Floats) -> list[npt.NDArray[np.int64]]:
    """Returns the indices of the answers in each bin: bins of nearly equal size, by rising probability."""
    return [b for b in np.array_split(np.argsort(p, kind="stable"), BINS) if len(b)]


def ece(p: Floats, right: Floats) -> float:
    """Computes the expected calibration error, 0..1. In small bins it is large by noise alone.

    >>> ece(np.array([0.5, 0.5]), np.array([1.0, 0.0]))  # one answer in each bin
    0.5
    """
    return float(sum(len(b) * abs(p[b].mean() - right[b].mean()) for b in _binned(p)) / len(p))


def risk_area(p: Floats, right: Floats) -> float:
    """Computes the share of wrong answers among the k surest, and averages it over all k."""
    wrong = 1 - right[np.argsort(-p, kind="stable")]
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(p) + 1)))


def best_threshold(p: Floats, answered: Floats, abstained: Floats) -> float:
    """Finds the threshold of probability with the largest sum of values. An answer is given if its
    probability is at least the threshold.

    Arrays are (answers,): probability, value of giving the answer, value of abstaining. Among equally good
    thresholds, the lowest wins. The threshold is 0 if all answers are given. Otherwise it is halfway between
    two neighbouring probabilities, or between the largest probability and 1.

    >>> best_threshold(np.array([0.2, 0.4, 0.9]), np.array([-1.0, 1.0, 1.0]), np.zeros(3))
    0.30000000000000004
    """
    order = np.argsort(p, kind="stable")
    sure, gain = p[order], (answered - abstained)[order]
    total = np.concatenate([np.cumsum(gain[::-1])[::-1], [0.0]])  # sum over the answers from index k on
    edges = np.concatenate([[0.0], sure, [1.0]])
    gaps = np.diff(edges)  # a threshold in gap k gives the answers from index k on
    possible = (gaps > 0) | (np.arange(len(gaps)) == 0)
    best = total[possible].max()
    k = next(k for k in np.flatnonzero(possible) if total[k] >= best - 1e-9)
    return 0.0 if k == 0 else float((edges[k] + edges[k + 1]) / 2)
