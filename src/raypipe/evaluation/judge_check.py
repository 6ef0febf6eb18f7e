"""Checks of a judge against people's labels: agreement, corrected score, and answers to label next.

Reads judged runs and labels; calls no model. The score is corrected by prediction-powered inference
(Angelopoulos et al. 2023). Answers form two groups: those that the judge called right, and those that it
called wrong. In each group, labels of randomly drawn answers estimate how often the judge errs. The fewer
labels a group has, the wider is the interval.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.judged_run import NEEDS_JUDGE, JudgedRun, PersonLabels, prediction_lines
from raypipe.metrics.losses import by_label
from raypipe.metrics.paired_tests import Interval, rate_interval
from raypipe.metrics.verdict_rules import RIGHT, Prediction, Verdict

_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a judge and people on the same answers."""

    n: int  # answers that both the judge and people decided
    both_right: int
    both_wrong: int
    judge_too_kind: int  # the judge says right, people say wrong
    judge_too_strict: int  # the judge says wrong, people say right
    agreement: float  # share of equal verdicts, 0..1
    interval: Interval  # 95 % interval of the agreement (Wilson)
    kappa: float | None  # Cohen's: 0 is chance, 1 is perfect; None: all verdicts are the same


def agreement(pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    """Compares the verdicts of a judge and of people. A pair is (judge, people) on one answer; True is right.
    Raises ValueError without pairs.

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
    within = rate_interval(both_right + both_wrong, n)
    return Agreement(n, both_right, both_wrong, kind, strict, same, within, kappa)


@dataclass(frozen=True, slots=True)
class VerdictSample:
    """Answers that a judge gave the same verdict, and people's labels of them."""

    answers: int
    labelled: int  # labelled answers, drawn at random from these
    errors: int  # labelled answers for which people say the opposite


@dataclass(frozen=True, slots=True)
class CorrectedScore:
    """CRAG's score by the judge, and after correction of the judge's errors."""

    judged: float  # score by the judge's verdicts, -1..1
    corrected: float  # score after the correction, -1..1
    interval: Interval  # 95 % interval of `corrected`: questions and labels are both samples
    labelled: int  # labelled answers that the correction uses


def corrected_score(
    right: int, missing: int, wrong: int, called_right: VerdictSample, called_wrong: VerdictSample
) -> CorrectedScore:
    """Corrects the score of a run for the errors of its judge, as estimated from people's labels.

    `right`, `missing` and `wrong` count the questions whose verdict does not come from the judge.
    `called_right` and `called_wrong` describe the answers that the judge called right and wrong. The interval
    is the middle 95 % of a posterior over the shares of verdicts and both error rates, under Jeffreys' prior
    for the rates. Raises ValueError without answers, and if a verdict of the judge has answers but no labels.
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
    # Shares of the five counts. The prior weights sum to that of `score_interval`.
    shares = rng.dirichlet(counts + 0.3, _DRAWS)
    e1, e0 = (
        rng.beta(c.errors + 0.5, c.labelled - c.errors + 0.5, _DRAWS) for c in (called_right, called_wrong)
    )
    drawn = shares[:, 0] - shares[:, 2] + shares[:, 3] * (1 - 2 * e1) - shares[:, 4] * (1 - 2 * e0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval = min(float(low), corrected), max(float(high), corrected)
    return CorrectedScore(judged, corrected, interval, called_right.labelled + called_wrong.labelled)


@dataclass(frozen=True, slots=True)
class SliceAgreement:
    """Agreement on the questions that share one label of the dataset."""

    label: str  # name of the label: domain, question_type, ...
    value: str
    found: Agreement


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """Result of checking a run's judge against people's labels."""

    run: str  # name as given on the command line
    rule: str
    judge: str  # name of the judge's model; "": unknown
    judged: int  # answers that the judge decided
    labelled: int  # judged answers that people called right or wrong
    unclear: int  # labels `unclear`
    without_judge: int  # labels of answers that a rule decided, or that the judge gave no reply to
    elsewhere: int  # labels of answers that this run does not have
    unlabelled: int  # lines whose label is null
    found: Agreement | None  # None: judge and people decided no common answer
    slices: tuple[SliceAgreement, ...]
    corrected: CorrectedScore | None
    why_not: str  # reason why `corrected` is None; "": it is not


def check(run: JudgedRun, labels: PersonLabels) -> JudgeCheck:
    """Checks a run's judge against people's labels. Raises DataError if all are of other answers."""
    verdicts = run.marks().verdicts
    judged = _judged(run, verdicts)
    pairs = [
        (row, right, said.label == "right")
        for row, right in judged
        if (said := labels.of(row)) is not None and said.label != "unclear"
    ]
    answers = {(r.question, (r.prediction or "").strip()) for r in run.rows}
    unclear = sum(x.label == "unclear" for x in labels.by_answer.values())
    elsewhere = sum(a not in answers for a in labels.by_answer)
    if labels.by_answer and elsewhere == len(labels.by_answer):
        (id, answer), *_ = labels.by_answer
        raise DataError(
            f"{labels.file}: expected labels of answers of {run.name}, found {elsewhere} of others, such as "
            f"question {id!r}, answer {answer[:60]!r}. Name the run that they belong to with --run"
        )
    corrected, why_not = _corrected(run, verdicts, labels)
    here = {a: x for a, x in labels.by_answer.items() if a in answers}
    return JudgeCheck(
        run=run.name,
        rule=run.rule,
        judge=run.judge,
        judged=len(judged),
        labelled=len(pairs),
        unclear=unclear,
        without_judge=sum(x.label != "unclear" for x in here.values()) - len(pairs),
        elsewhere=elsewhere,
        unlabelled=len(labels.open),
        found=agreement([(judge, people) for _, judge, people in pairs]) if pairs else None,
        slices=tuple(
            SliceAgreement(*key, agreement(some))
            for key, some in sorted(by_label((r.labels, (j, p)) for r, j, p in pairs).items())
        ),
        corrected=corrected,
        why_not=why_not,
    )


def _judged(run: JudgedRun, verdicts: Sequence[Verdict]) -> list[tuple[Prediction, bool]]:
    """Returns the predictions that the judge decided, each with whether it called the answer right."""
    pairs = zip(run.rows, verdicts, strict=True)
    return [(row, v.outcome == "correct") for row, v in pairs if v.reason in NEEDS_JUDGE]


def _corrected(
    run: JudgedRun, verdicts: Sequence[Verdict], labels: PersonLabels
) -> tuple[CorrectedScore | None, str]:
    """Returns the corrected score and "", or None and the reason. Only labels of answers drawn at random
    estimate the judge's error rate. A label of any other answer replaces the verdict of that answer only."""
    counts, answers, labelled, errors = Counter[str](), Counter[bool](), Counter[bool](), Counter[bool]()
    for row, verdict in zip(run.rows, verdicts, strict=True):
        said = labels.of(row)
        if said is not None and (said.label == "unclear" or verdict.outcome == "missing"):
            said = None
        if verdict.reason in NEEDS_JUDGE and (said is None or said.picked == "random"):
            called = verdict.outcome == "correct"
            answers[called] += 1
            labelled[called] += said is not None
            errors[called] += said is not None and called != (said.label == "right")
        elif said is not None:
            counts[said.label] += 1
        elif verdict.outcome in ("missing", "unscored"):
            counts[verdict.outcome] += 1
        else:
            counts["right" if verdict.outcome in RIGHT else "wrong"] += 1
    if not labelled.total():
        return (
            None,
            "no label of an answer that was drawn at random and judged (`raypipe judge pick --random`)",
        )
    kind, strict = (VerdictSample(answers[c], labelled[c], errors[c]) for c in (True, False))
    try:
        found = corrected_score(counts["right"], counts["missing"], counts["wrong"], kind, strict)
    except ValueError as e:
        return None, f"{e} that was drawn at random"
    return found, ""


def pick(
    run: JudgedRun, disagreements: int, at_random: int, seed: int, labels: PersonLabels | None = None
) -> list[dict[str, Any]]:
    """Picks judged answers without a label in `labels`, for people to label. Draws `at_random` of them. Adds
    up to `disagreements` answers for which the judge's verdict is furthest from the word overlap of answer
    and truth. Raises ConfError if both numbers are below 1, and DataError if the judge decided nothing."""
    if disagreements < 1 and at_random < 1:
        raise ConfError("judge pick: expected --disagreements N or --random N, found neither")
    marks = run.marks()
    judged = _judged(run, marks.verdicts)
    open_ = [(row, right) for row, right in judged if labels is None or labels.of(row) is None]
    if not judged:
        how = "`raypipe score crag RUN --judge MODEL --out FILE` has one judge them"
        raise DataError(f"{run.name}: expected answers that a judge decided, found none. {how}")
    drawn = random.Random(seed).sample(open_, min(at_random, len(open_)))
    taken = {row.question for row, _ in drawn}
    doubts = []  # (-distance of the judge's verdict from the word overlap, question); 0 < distance <= 1
    for row, right in open_:
        said, *truths = (set(re.findall(r"\w+", t.lower())) for t in (row.prediction or "", *row.truths))
        overlap = max((len(t & said) / len(t) for t in truths if t), default=0.0)  # share of a truth's words
        if row.question not in taken and (doubt := abs(right - overlap)):
            doubts.append((-doubt, row.question))
    chosen = [question for _, question in sorted(doubts)][:disagreements]
    lines = {line["id"]: line for line in prediction_lines(run, marks)}
    return [
        *({**lines[row.question], "picked": "random", "label": None} for row, _ in drawn),
        *({**lines[question], "picked": "chosen", "label": None} for question in chosen),
    ]
