"""Ways to decide which answers of a run are given, and what each is worth on some of its questions.

Pure functions over scored answers; fits nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.metrics.calibration import best_threshold
from raypipe.metrics.intervals import Interval, mean_interval
from raypipe.metrics.kinds import Measure
from raypipe.metrics.paired import Conclusion, PairedDifference, conclude, paired
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


def policies_of(
    seen: Sequence[DecidedAnswer], probability: AnswerProbability
) -> list[tuple[str, Surety, float | None]]:
    """The fitted policy and those that it is held against: name, what they go by, threshold."""

    def fitted(a: DecidedAnswer) -> float:
        return probability.probability(a.features or {})

    found: list[tuple[str, Surety, float | None]] = [
        ("fitted", fitted, probability.threshold), ("every answer", lambda a: 1.0, None),
    ]  # fmt: skip
    answered = [a for a in seen if a.features is not None]
    if all(a.stated is not None for a in answered):
        stated = np.array([a.stated for a in answered], float)
        best = best_threshold(
            stated, np.array([a.value for a in answered]), np.array([a.abstained for a in answered])
        )
        found.append(("stated confidence, fixed", lambda a: a.stated, FIXED))
        found.append(
            ("stated confidence, best threshold of the fitted half", lambda a: a.stated, short(best))
        )
    return found


def given(a: DecidedAnswer, surety: Surety, threshold: float | None) -> bool:
    """Whether a policy gives the answer."""
    sure = surety(a) if a.features is not None else None
    return sure is not None and (threshold is None or sure >= threshold)


def policy_scores(
    answers: Sequence[DecidedAnswer], policies: Sequence[tuple[str, Surety, float | None]], by: Measure,
    group: str | None,
) -> tuple[PolicyScore, ...]:  # fmt: skip
    groups = None if group is None else [a.key for a in answers]
    out: list[PolicyScore] = []
    fitted: list[float] = []
    for name, surety, threshold in policies:
        gives = [given(a, surety, threshold) for a in answers]
        values = [
            a.value if g or a.features is None else a.abstained for a, g in zip(answers, gives, strict=True)
        ]
        fitted = fitted or values
        gain = None if not out else paired(values, fitted, by.high - by.low, groups)
        count = sum(gives)
        right = sum(a.right for a, g in zip(answers, gives, strict=True) if g)
        out.append(
            PolicyScore(
                policy=name,
                threshold=threshold,
                score=float(np.mean(values)),
                interval=mean_interval(values, (by.low, by.high), groups),
                answered=count / len(answers),
                right=right / count if count else None,
                gain=gain,
                verdict=None if gain is None else conclude(gain),
            )
        )
    return tuple(out)


def answered_slices(
    unseen: Sequence[DecidedAnswer], probability: AnswerProbability
) -> tuple[AnsweredSlice, ...]:
    members: dict[tuple[str, str], list[DecidedAnswer]] = {}
    for a in unseen:
        for label, value in a.labels.items():
            members.setdefault((label, value), []).append(a)
    out = []
    for (label, value), some in sorted(members.items()):
        said = [a for a in some if a.features is not None]
        kept = [a for a in said if probability.probability(a.features or {}) >= probability.threshold]
        wrong, still = (sum(not a.right for a in x) for x in (said, kept))
        out.append(AnsweredSlice(label, value, len(some), len(said), wrong, len(kept), still))
    return tuple(out)


def short(x: float) -> float:
    """As a file has it, with six digits: what is measured is what is written."""
    return float(f"{x:.6g}")
