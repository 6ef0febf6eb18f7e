"""Ways to decide which answers of a run are given, and what each is worth on some of its questions.

Pure functions over scored answers; fits nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypipe.metrics.calibration import best_threshold
from raypipe.metrics.intervals import Interval, mean_interval
from raypipe.metrics.kinds import Measure
from raypipe.metrics.paired import Conclusion, PairedDifference, conclude, paired
from raypipe.metrics.routing import by_label
from raypipe.steps.answer_probability import AnswerProbability

FIXED = 0.5  # the threshold that `extract` has by itself


@dataclass(frozen=True, slots=True)
class DecidedAnswer:
    """One scored question of a run."""

    id: str
    key: str  # what its half and fold follow from
    labels: Mapping[str, str]
    value: float  # of the measure, as the run answered
    abstained: float  # of the measure, were it "i don't know"
    right: bool  # the value is more than half of what it can be
    stated: float | None  # confidence of the reply
    features: Mapping[str, float] | None  # None: the run gave no answer, so there is nothing to decide


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """One way to decide which answers are given, on some questions."""

    policy: str
    threshold: float | None  # of what it goes by; None: it gives every answer
    score: float  # mean of the measure
    interval: Interval | None  # 95 %
    answered: float  # share of the questions that get an answer
    right: float | None  # share of these answers that is right; None: none is given
    gain: PairedDifference | None  # of the fitted policy over this one; None: it is this one
    verdict: Conclusion | None  # on that


@dataclass(frozen=True, slots=True)
class AnsweredSlice:
    """Questions that share one label: given answers, before and after."""

    label: str
    value: str
    n: int
    answered: int  # where every answer is given
    wrong: int  # of these
    answered_fitted: int
    wrong_fitted: int


Surety = Callable[[DecidedAnswer], "float | None"]
Policy = tuple[str, Surety, "float | None"]
"""Name, what it goes by, threshold."""


def policies_of(seen: Sequence[DecidedAnswer], probability: AnswerProbability) -> list[Policy]:
    """The fitted policy and those that it is held against."""
    found: list[Policy] = [
        ("fitted", lambda a: probability.probability(a.features or {}), probability.threshold),
        ("every answer", lambda a: 1.0, None),
    ]
    answered = [a for a in seen if a.features is not None]
    if all(a.stated is not None for a in answered):
        numbers = np.array([(a.stated, a.value, a.abstained) for a in answered], float).reshape(-1, 3)
        best = short(best_threshold(*numbers.T))
        found.append(("stated confidence, fixed", lambda a: a.stated, FIXED))
        found.append(("stated confidence, best threshold of the fitted half", lambda a: a.stated, best))
    return found


def policy_scores(
    answers: Sequence[DecidedAnswer], policies: Sequence[Policy], by: Measure, group: str | None
) -> tuple[PolicyScore, ...]:
    groups = None if group is None else [a.key for a in answers]
    out: list[PolicyScore] = []
    fitted: list[float] = []
    for policy, surety, threshold in policies:
        sure = [surety(a) if a.features is not None else None for a in answers]
        gives = [s is not None and (threshold is None or s >= threshold) for s in sure]
        pairs = list(zip(answers, gives, strict=True))
        values = [a.value if g or a.features is None else a.abstained for a, g in pairs]
        fitted = fitted or values
        count, right = sum(gives), sum(a.right for a, g in pairs if g)
        share, scored = count / len(answers), held_against(values, fitted, by, groups)
        fine = right / count if count else None
        out.append(PolicyScore(policy=policy, threshold=threshold, answered=share, right=fine, **scored))
    return tuple(out)


def held_against(
    values: Sequence[float], first: Sequence[float], by: Measure, groups: Sequence[str] | None
) -> dict[str, Any]:
    """Mean and interval of one way's values, and what the first way gains over it; None: it is the first."""
    gain = None if values is first else paired(values, first, by.high - by.low, groups)
    within = mean_interval(values, (by.low, by.high), groups)
    verdict = None if gain is None else conclude(gain)
    return {"score": float(np.mean(values)), "interval": within, "gain": gain, "verdict": verdict}


def answered_slices(
    unseen: Sequence[DecidedAnswer], probability: AnswerProbability
) -> tuple[AnsweredSlice, ...]:
    out = []
    for (label, value), some in sorted(by_label((a.labels, a) for a in unseen).items()):
        said = [a for a in some if a.features is not None]
        kept = [a for a in said if probability.probability(a.features or {}) >= probability.threshold]
        wrong, still = (sum(not a.right for a in x) for x in (said, kept))
        out.append(AnsweredSlice(label, value, len(some), len(said), wrong, len(kept), still))
    return tuple(out)


def short(x: float) -> float:
    """As a file has it, with six digits: what is measured is what is written."""
    return float(f"{x:.6g}")
