"""A judge against people: how often they agree, and the score with the judge's errors taken out.

Pure functions on counts; knows no file. The correction is prediction-powered inference (Angelopoulos et al.
2023), done for the answers that the judge called right and for those that it called wrong by themselves: the
labelled ones of each tell how often the judge errs there, and the interval grows by what they leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.metrics.intervals import Interval, rate_interval

_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge and people over the same answers."""

    n: int  # answers that both decided
    both_right: int
    both_wrong: int
    judge_too_kind: int  # right for the judge, wrong for people
    judge_too_strict: int  # wrong for the judge, right for people
    agreement: float  # share of equal verdicts, 0..1
    interval: Interval  # 95 %, Wilson
    kappa: float | None  # Cohen's: 0 is chance, 1 is always; None: both said the same of every answer


def agreement(pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    """Compares what a judge and people say, each pair (judge, people) whether an answer is right.

    Raises ValueError for none.

    >>> both, odd = [(True, True)] * 20 + [(False, False)] * 15, [(True, False)] * 5 + [(False, True)] * 10
    >>> found = agreement(both + odd)
    >>> found.agreement, found.kappa  # Cohen 1960
    (0.7, 0.4)
    """
    n = len(pairs)
    if not n:
        raise ValueError("no labelled answer, no agreement")
    both_right, both_wrong = pairs.count((True, True)), pairs.count((False, False))
    kind, strict = pairs.count((True, False)), pairs.count((False, True))
    same = (both_right + both_wrong) / n
    judge, people = (both_right + kind) / n, (both_right + strict) / n
    chance = judge * people + (1 - judge) * (1 - people)
    kappa = None if chance == 1 else round((same - chance) / (1 - chance), 12)
    return Agreement(
        n, both_right, both_wrong, kind, strict, same, rate_interval(both_right + both_wrong, n), kappa
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """The answers that a judge gave one verdict, and those of them that people looked at."""

    answers: int
    labelled: int  # drawn at random from them
    errors: int  # of the labelled: people say the opposite


@dataclass(frozen=True, slots=True)
class CorrectedScore:
    """CRAG's score, by the judge alone and with its errors taken out."""

    judged: float  # as the judge says, -1..1
    corrected: float  # -1..1
    interval: Interval  # 95 % of the corrected score: questions and labels are both samples
    labelled: int  # answers that it rests on


def corrected_score(
    right: int, missing: int, wrong: int, called_right: Checked, called_wrong: Checked
) -> CorrectedScore:
    """The score of a run whose judge was checked by people.

    `right`, `missing` and `wrong` count the questions that no judge decided. The interval is the middle 95 %
    of a posterior under Jeffreys' prior, of shares and of both rates of error; simulated judges are in the
    tests. Raises ValueError where one of the judge's verdicts has answers and no label: its error is unknown.
    """
    for verdict, found in (("right", called_right), ("wrong", called_wrong)):
        if found.answers and not found.labelled:
            raise ValueError(
                f"none of the {found.answers} answers that the judge called {verdict} has a label"
            )
    counts = np.array([right, missing, wrong, called_right.answers, called_wrong.answers])
    n = int(counts.sum())
    if not n:
        raise ValueError("no scored question, no score")
    kind, strict = (c.errors / c.labelled if c.labelled else 0.0 for c in (called_right, called_wrong))
    judged = (right - wrong + called_right.answers - called_wrong.answers) / n
    corrected = judged + 2 * (strict * called_wrong.answers - kind * called_right.answers) / n
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(counts + 0.3, _DRAWS)  # of five kinds; in all the prior weight of `score_interval`
    e1, e0 = (
        rng.beta(c.errors + 0.5, c.labelled - c.errors + 0.5, _DRAWS) for c in (called_right, called_wrong)
    )
    drawn = shares[:, 0] - shares[:, 2] + shares[:, 3] * (1 - 2 * e1) - shares[:, 4] * (1 - 2 * e0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval = min(float(low), corrected), max(float(high), corrected)
    return CorrectedScore(judged, corrected, interval, called_right.labelled + called_wrong.labelled)
