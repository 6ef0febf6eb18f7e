"""A judge measured by people's labels: how often they agree, the score with the judge's errors taken out, and
which answers people should look at next.

Knows judged runs and labels; asks no model. The correction is prediction-powered inference (Angelopoulos et
al. 2023), done for the answers that the judge called right and for those that it called wrong by themselves:
the labelled ones of each tell how often the judge errs there, and the interval grows by what they leave open.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.judged_run import (
    NEEDS_JUDGE,
    JudgedRun,
    PersonLabels,
    decided_by_judge,
    prediction_lines,
)
from raypipe.metrics.certainty import Interval, rate_interval
from raypipe.metrics.crag import RIGHT, Verdict
from raypipe.metrics.losses import by_label

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
    within = rate_interval(both_right + both_wrong, n)
    return Agreement(n, both_right, both_wrong, kind, strict, same, within, kappa)


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


@dataclass(frozen=True, slots=True)
class SliceAgreement:
    """The agreement over the questions that share one label of the dataset."""

    label: str  # domain, question_type, ...
    value: str
    found: Agreement


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """A judge against people."""

    run: str  # as it was given
    rule: str
    judge: str  # its model; "": not known
    judged: int  # answers that the judge decided
    labelled: int  # of these, how many people called right or wrong
    unclear: int  # labels that say neither
    without_judge: int  # labels of answers that a rule decided, or that no judge replied about
    elsewhere: int  # labels of answers that this run does not give
    unlabelled: int  # lines whose label is still null
    found: Agreement | None  # None: no answer that both decided
    slices: tuple[SliceAgreement, ...]
    corrected: CorrectedScore | None
    why_not: str  # why there is no corrected score; "": there is one


def check(run: JudgedRun, labels: PersonLabels) -> JudgeCheck:
    """Holds a run's judge against people. Raises DataError where none of the labels is of an answer of the
    run."""
    verdicts = run.marks()[0].verdicts
    judged = decided_by_judge(run, verdicts)
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


def _corrected(
    run: JudgedRun, verdicts: Sequence[Verdict], labels: PersonLabels
) -> tuple[CorrectedScore | None, str]:
    """The score with the judge's errors taken out, or why there is none. Labels drawn at random say how often
    the judge errs; an answer that was chosen to be labelled counts as people say, and for itself alone."""
    counts = {"right": 0, "missing": 0, "wrong": 0}
    answers, labelled, errors = ({True: 0, False: 0} for _ in range(3))
    for row, verdict in zip(run.rows, verdicts, strict=True):
        said = labels.of(row)
        known = said is not None and said.label != "unclear" and verdict.outcome != "missing"
        if verdict.reason in NEEDS_JUDGE and not (known and said and said.picked == "chosen"):
            called = verdict.outcome == "correct"
            answers[called] += 1
            if known and said:
                labelled[called] += 1
                errors[called] += called != (said.label == "right")
        elif known and said:
            counts["right" if said.label == "right" else "wrong"] += 1
        elif verdict.outcome != "unscored":
            right = verdict.outcome in RIGHT
            counts["missing" if verdict.outcome == "missing" else "right" if right else "wrong"] += 1
    if not sum(labelled.values()):
        drawn = "no label of an answer that was drawn at random and judged"
        return None, f"{drawn} (`raypipe judge pick --random`)"
    kind, strict = (Checked(answers[c], labelled[c], errors[c]) for c in (True, False))
    try:
        found = corrected_score(counts["right"], counts["missing"], counts["wrong"], kind, strict)
    except ValueError as e:
        return None, f"{e} that was drawn at random"
    return found, ""


def pick(
    run: JudgedRun, disagreements: int, at_random: int, seed: int, labels: PersonLabels | None = None
) -> list[dict[str, Any]]:
    """Answers for people to label, as lines of a file: some drawn at random, and those of which the judge and
    the words of the truth say the opposite, the most doubtful first.

    What has a label in `labels` is left out. Raises ConfError for nothing to pick, DataError for a run of
    which no answer was judged.
    """
    if disagreements < 1 and at_random < 1:
        raise ConfError("judge pick: expected --disagreements N or --random N, found neither")
    marks = run.marks()[0]
    judged = decided_by_judge(run, marks.verdicts)
    open_ = [(row, right) for row, right in judged if labels is None or labels.of(row) is None]
    if not judged:
        raise DataError(
            f"{run.name}: expected answers that a judge decided, found none. `raypipe score crag RUN --judge "
            "MODEL --out FILE` has one judge them"
        )
    drawn = random.Random(seed).sample(open_, min(at_random, len(open_)))
    taken = {row.question for row, _ in drawn}
    doubts = []  # how far the judge and the words of the truth are apart, 0..1; no equal ones
    for row, right in open_:
        said, *truths = (set(re.findall(r"\w+", t.lower())) for t in (row.prediction or "", *row.truths))
        overlap = max((len(t & said) / len(t) for t in truths if t), default=0.0)  # of a truth's words
        if row.question not in taken and (doubt := abs(right - overlap)):
            doubts.append((-doubt, row.question))
    chosen = [question for _, question in sorted(doubts)][:disagreements]
    lines = {line["id"]: line for line in prediction_lines(run, marks)}
    return [
        *({**lines[row.question], "picked": "random", "label": None} for row, _ in drawn),
        *({**lines[question], "picked": "chosen", "label": None} for question in chosen),
    ]
