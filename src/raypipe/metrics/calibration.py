"""How well probabilities of being right hold, and how good answers are at each share that is answered.

Pure functions on arrays; knows no question. Reliability diagram and expected calibration error: Naeini,
Cooper and Hauskrecht 2015, in bins of equally many answers (Nixon et al. 2019). Risk and coverage:
El-Yaniv and Wiener 2010.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raypipe.metrics.fitting import log_loss
from raypipe.metrics.intervals import Interval, rate_interval

Floats = npt.NDArray[np.float64]

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
    """How well the probabilities of some answers hold."""

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
    """How well the confidence of answers holds; None: some answers have none, or fewer are scored than say
    something. `stated`: question id -> confidence of its answer."""
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
