"""Fit of `decide`: the probability that an answer is right, and the threshold below which it is not given.

One half of a run's questions is used for the fit. On the other half, the fit is compared with giving every
answer, and with thresholds on the confidence that replies state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raypipe.core.digests import FittedOn
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import IDK, digest
from raypipe.evaluation.fits import (
    DecidedAnswer,
    FitRun,
    PolicyScore,
    measure_of,
    open_run,
    policies_of,
    policy_scores,
    question_of,
    short,
)
from raypipe.metrics.calibration import CalibrationReport, best_threshold, calibration, fit
from raypipe.metrics.crag_rules import Prediction
from raypipe.metrics.kinds import DataKind, Measure, gold_form, open_kind, rule_of
from raypipe.recipes.step_contract import decides, given_by_fit
from raypipe.steps.decide import AnswerProbability, Decide, absent, features_of
from raypipe.text.template import ByLabel

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 5  # folds of the fitted half; cross-validation over them chooses the ridge and the threshold
FEWEST = 5  # right answers, and wrong answers, needed for a fit: one for each fold


@dataclass(frozen=True, slots=True)
class FittedWeight:
    """Weight of one feature."""

    feature: str
    weight: float  # log odds per unit
    effect: float  # log odds per standard deviation over the fitted rows


@dataclass(frozen=True, slots=True)
class DecideFitReport:
    """A fit of `decide`, and its scores on the half that it has not seen."""

    run: str
    recipe: str
    kind: str
    measure: str
    split: str  # description of the fitted rows
    fitted_questions: int
    fitted_answers: int  # fitted questions that were answered
    unseen_questions: int  # questions of the other half
    unseen_answers: int
    not_scored: int  # questions without a value of the measure: in neither half
    seen_before: int  # scored questions left out of the other half, since a fit of the recipe has seen them
    threshold: float
    strength: float  # strength of the ridge penalty
    weights: tuple[FittedWeight, ...]  # largest effect first
    unseen: tuple[PolicyScore, ...]  # the fitted policy first
    seen: tuple[PolicyScore, ...]  # the same on the fitted half: do not quote these
    calibration: CalibrationReport  # calibration of the probability on the unseen answers
    stated: CalibrationReport | None  # calibration of stated confidences; None: some reply states none


def fit_decide(
    folder: Path, split: int, group: str | None = None, measure: str | None = None
) -> tuple[AnswerProbability, DecideFitReport]:
    """Fits P(right) to one half of a finished run. `split`: that half, 0 or 1. `group`, `measure`: as in
    `open_run` and `measure_of`. Raises ConfError if the recipe has no `decide` that can be fitted, and
    DataError if there are too few answers."""
    run = open_run(folder, split, group)
    stage, step, kind = _fittable(run)
    by, rows = measure_of(run, measure), run.rows()
    answers = [a for r in rows if (a := _answer(run, r, step, kind, by)) is not None]
    if not answers:
        raise DataError(
            f"{folder}: no question has a value of {by.name}. A judge may have to decide: --judge MODEL"
        )
    what = f"log loss of: the answer is right; threshold for the mean {by.name}"
    on, ours, held_out, before = run.halves(rows, {a.id for a in answers}, stage, what)
    seen = [a for a in answers if a.id in ours]
    unseen = [a for a in answers if a.id in held_out]
    probability, strength, effects = _fitted(folder, seen, on)
    answered = [a for a in unseen if a.features is not None]
    if not answered:
        raise DataError(
            f"{folder}: expected answers in the other half that no fit of the recipe has seen, found none "
            f"({before} questions were seen). Fit on a run of more questions"
        )
    right = np.array([a.right for a in answered], float)
    p = np.array([probability.probability(a.features or {}) for a in answered])
    stated = [a.stated for a in answered if a.stated is not None]
    order = sorted(effects, key=lambda n: (-abs(effects[n]), n))
    policies = policies_of(seen, probability)
    report = DecideFitReport(
        run=run.record.run,
        recipe=run.recipe.title,
        kind=run.record.kind,
        measure=by.name,
        split=on.split,
        fitted_questions=len(seen),
        fitted_answers=sum(a.features is not None for a in seen),
        unseen_questions=len(unseen),
        unseen_answers=len(answered),
        not_scored=len(rows) - len(answers),
        seen_before=before,
        threshold=probability.threshold,
        strength=strength,
        weights=tuple(FittedWeight(n, probability.weights[n], effects[n]) for n in order),
        unseen=policy_scores(unseen, policies, by, run.group),
        seen=policy_scores(seen, policies, by, run.group),
        calibration=calibration(p, right),
        stated=calibration(np.array(stated), right) if len(stated) == len(answered) else None,
    )
    return probability, report


def _fittable(run: FitRun) -> tuple[str, Decide, DataKind]:
    """Returns the deciding stage's name, its step, and the kind of data with the run's rule. Raises ConfError
    if the step cannot be fitted, and if the kind's golds are not answers: a run's table holds no other golds,
    so the score of "i don't know" would be unknown."""
    last = run.recipe.question[-1]
    if not decides(last.step) or "fitted" not in given_by_fit(last.step):
        raise ConfError(f"fit decide: recipe {run.recipe.title} ends with {last.name}; expected decide")
    step, kind = cast(Decide, last.step), open_kind(run.kind)
    if step.fitted is not None:
        raise ConfError(
            f"fit decide: {run.folder} was decided by fitted numbers already, so the answers that it "
            "abstained from are unknown. Fit on a run without them: raypipe eval ... --set "
            "decide.fitted=null"
        )
    if (form := gold_form(kind)) != "answers":
        raise ConfError(
            f"fit decide: {run.folder} has kind {run.record.kind}, which scores by {form}. The table of a "
            'run has only gold answers, so the score of "i don\'t know" is unknown. Fit on a run of '
            "a kind that scores by answers, such as eval --kind qa"
        )
    if rule_of(kind) is not None:
        kind = open_kind(run.kind, run.record.rule.partition("@")[0] or None)
    return last.name, step, kind


def _answer(
    run: FitRun, row: Mapping[str, Any], step: Decide, kind: DataKind, by: Measure
) -> DecidedAnswer | None:
    """Converts a row of the run; returns None if it has no value of the measure."""
    value = (row["measures"] or {}).get(by.name)
    idk = Prediction(row["id"], IDK, tuple(row["golds"]), None, row["labels"])
    if value is None or not row["golds"] or (abstained := kind.values(idk).get(by.name)) is None:
        return None
    features, stated = None, None
    if row["outcome"] == "answered":
        question = question_of(row)
        prefer = step.prefer.of(question) if isinstance(step.prefer, ByLabel) else step.prefer
        features = features_of(question, row["origin"], prefer)
        stated = row["confidence"]
    right = value > (by.low + by.high) / 2
    return DecidedAnswer(row["id"], run.key(row), row["labels"], value, abstained, right, stated, features)


def _fitted(
    folder: Path, seen: Sequence[DecidedAnswer], on: FittedOn
) -> tuple[AnswerProbability, float, dict[str, float]]:
    """Returns the fit, the strength of its ridge, and the effect of each feature."""
    answered = [a for a in seen if a.features is not None]
    right = np.array([a.right for a in answered], float)
    fine, wrong = int(right.sum()), int(len(right) - right.sum())
    if min(fine, wrong) < FEWEST:
        raise DataError(
            f"{folder}: expected at least {FEWEST} right and {FEWEST} wrong answers in the half to fit on, "
            f"found {fine} and {wrong}. Fit on a run of more questions, "
            "or one whose steps abstain less (such as --set extract.threshold=0)"
        )
    every, columns = [a.features or {} for a in answered], dict[str, Floats]()
    for name in sorted({n for f in every for n in f}):
        has = np.array([f.get(name, np.nan) for f in every])
        column = np.where(np.isnan(has), absent(name, float(np.nanmean(has))), has)
        if column.std() > 0:  # a constant feature has no weight
            columns[name] = column
    if not columns:
        raise DataError(
            "fit decide: all answers look alike: no reply states a confidence, and nothing was ranked"
        )
    x = np.stack(list(columns.values()), axis=1)  # (answers, features)
    found = fit(x, right, folds_of(folder, answered, right))
    values, idle = (np.array([getattr(a, n) for a in answered]) for n in ("value", "abstained"))
    threshold = best_threshold(found.held_out, values, idle)
    pairs = zip(columns, found.weights, found.means, x.std(0), strict=True)
    kept = [(n, short(w), short(m), float(w * s)) for n, w, m, s in pairs]
    weights, means = {n: w for n, w, _, _ in kept}, {n: m for n, _, m, _ in kept}
    effects = {n: effect for n, _, _, effect in kept}
    probability = AnswerProbability(short(threshold), short(found.bias), weights, means, on)
    return probability, found.strength, effects


def folds_of(folder: Path, answered: Sequence[DecidedAnswer], right: Floats) -> Integers:
    """Assigns each answer to a fold. Groups of answers are dealt to the folds in turn, ordered by a hash of
    their keys; a group is never split. Raises DataError if the answers outside a fold are only right, or only
    wrong."""
    keys = sorted({a.key for a in answered}, key=lambda k: digest("fold", k))
    fold = {k: i % FOLDS for i, k in enumerate(keys)}
    folds = np.array([fold[a.key] for a in answered])
    for part in np.unique(folds):
        rest = right[folds != part]
        if not 0 < rest.sum() < len(rest):
            raise DataError(
                f"{folder}: expected right and wrong answers in at least two groups of the half to fit on, "
                f"so that each fold can be held out; found {len(keys)} groups, and without one fold "
                f"{int(rest.sum())} right and {int(len(rest) - rest.sum())} wrong answers. Fit without "
                "--group, or on a run of more groups"
            )
    return folds
