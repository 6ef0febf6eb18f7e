"""Fit of `decide`: the probability that an answer is right, and the threshold below which it is not given.

Both are fitted on one half of a run's questions. On the other half, the fit is compared with giving every
answer. If all replies state a confidence, it is also compared with thresholds on the confidence. An answer
that the scoring rule leaves open is not used for the fit, but it can make a verdict `cannot tell`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raypipe.core.digests import FittedOn
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import IDK, digest
from raypipe.evaluation.bounded_difference import Values
from raypipe.evaluation.compare import measure_of
from raypipe.evaluation.fit_run import FitRun, held_against, open_run, question_of, short
from raypipe.metrics.calibration import CalibrationReport, best_threshold, calibration, fit
from raypipe.metrics.kinds import DataKind, Measure, gold_form, recorded_kind, rule_of
from raypipe.metrics.paired_tests import Conclusion, Floats, Interval, PairedDifference
from raypipe.metrics.verdict_rules import Prediction
from raypipe.recipes.step_contract import decides, given_by_fit
from raypipe.steps.decide import AnswerProbability, Decide, absent, features_of
from raypipe.text.template import ByLabel

FOLDS = 5  # folds of the fitted half; cross-validation over them chooses the ridge and the threshold
FEWEST = 5  # right answers, and wrong answers, needed for a fit: one for each fold


FIXED = 0.5  # default threshold of `extract`


@dataclass(frozen=True, slots=True)
class DecidedAnswer:
    """A question of a run, with the features of its answer."""

    id: str
    key: str  # text whose hash decides its half and its fold
    value: float | None  # measure of the run's answer; None: the rule leaves it open
    abstained: float  # measure of "i don't know" in its place
    right: bool  # True: the value is above the middle of the measure's range; False if it is open
    stated: float | None  # confidence of the reply; None: it states none
    features: Mapping[str, float] | None  # None: the run gave no answer, so there is nothing to decide


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """Score of a policy, which decides for each answer whether to give it, on some questions."""

    policy: str
    threshold: float | None  # least confidence at which it gives an answer; None: it gives every answer
    score: float  # mean of the measure if the policy decides
    interval: Interval | None  # 95 % interval of the score
    answered: float  # share of the questions with an answer
    right: float | None  # share of the given answers that are right; None: no answer is given
    gain: PairedDifference | None  # gain of the fitted policy over this one; None: this is the fitted one
    verdict: Conclusion | None  # conclusion about the gain, for any values of the open questions
    open: int  # open questions that could change the verdict; 0: it holds however a judge decides


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
    """Fits the probability of a right answer to one half of a finished run. `split` and `group` are those of
    `open_run`. `measure` is the name of a measure; None: the leading one of the report. Raises what
    `open_run` raises, ConfError if the recipe does not end with a `decide` that can be fitted, and DataError
    if there are too few answers."""
    run = open_run(folder, split, group)
    stage, step, kind = _fittable(run)
    by, rows = measure_of(measure or run.record.lead, run.record.kind), run.rows()
    answers = [a for r in rows if (a := _answer(run, r, step, kind, by)) is not None]
    scored = {a.id for a in answers if a.value is not None}
    if not scored:
        raise DataError(f"{folder}: no question has a value of {by.name}. Eval it with --judge MODEL")
    what = f"log loss of: the answer is right; threshold for the mean {by.name}"
    on, ours, held_out, before = run.halves(rows, scored, stage, what)
    seen, unseen = ([a for a in answers if a.id in half & scored] for half in (ours, held_out))
    open_seen, open_unseen = ([a for a in answers if a.id in half - scored] for half in (ours, held_out))
    probability, strength, effects = _fitted(run, seen, on)
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
        not_scored=len(rows) - len(scored),
        seen_before=before,
        threshold=probability.threshold,
        strength=strength,
        weights=tuple(FittedWeight(n, probability.weights[n], effects[n]) for n in order),
        unseen=policy_scores(unseen, open_unseen, policies, by, run.group),
        seen=policy_scores(seen, open_seen, policies, by, run.group),
        calibration=calibration(p, right),
        stated=calibration(np.array(stated), right) if len(stated) == len(answered) else None,
    )
    return probability, report


def _fittable(run: FitRun) -> tuple[str, Decide, DataKind]:
    """Returns the deciding stage's name, its step, and the kind with the run's rule. Raises ConfError if the
    step cannot be fitted or already has fitted numbers. Also raises ConfError if golds are not answers,
    because the score of "i don't know" is then unknown."""
    last = run.recipe.question[-1]
    if not decides(last.step) or "fitted" not in given_by_fit(last.step):
        raise ConfError(f"fit decide: recipe {run.recipe.title} ends with {last.name}; expected decide")
    step, kind = cast(Decide, last.step), recorded_kind(run.record.kind)
    if step.fitted is not None:
        raise ConfError(
            f"fit decide: {run.folder} was decided by fitted numbers already, so the answers withheld "
            "are unknown. Fit on a run without them: raypipe eval ... --set decide.fitted=null"
        )
    if (form := gold_form(kind)) != "answers":
        raise ConfError(
            f"fit decide: {run.folder} has kind {run.record.kind}, which scores by {form}, so the score of "
            '"i don\'t know" is unknown. Fit on a run of a kind that scores by answers: eval --kind qa'
        )
    if rule_of(kind) is not None:
        kind = recorded_kind(run.record.kind, run.record.rule.partition("@")[0] or None)
    return last.name, step, kind


def _answer(
    run: FitRun, row: Mapping[str, Any], step: Decide, kind: DataKind, by: Measure
) -> DecidedAnswer | None:
    """Makes the fit's data point of a question from its row. Returns None if the row has no golds, or has
    neither an answer nor a score. Returns None also if the measure gives "i don't know" no value, because the
    fit compares with abstaining."""
    value = (row["measures"] or {}).get(by.name)
    idk = Prediction(row["id"], IDK, tuple(row["golds"]), None, row["labels"])
    if not row["golds"] or (abstained := kind.values(idk).get(by.name)) is None:
        return None
    if value is None and row["outcome"] != "answered":
        return None
    features, stated = None, None
    if row["outcome"] == "answered":
        question = question_of(row)
        prefer = step.prefer.of(question) if isinstance(step.prefer, ByLabel) else step.prefer
        features = features_of(question, row["origin"], prefer)
        stated = row["confidence"]
    right = value is not None and value > (by.low + by.high) / 2
    return DecidedAnswer(row["id"], run.key(row), value, abstained, right, stated, features)


Surety = Callable[[DecidedAnswer], "float | None"]
Policy = tuple[str, Surety, "float | None"]
"""Name, confidence of an answer, threshold."""


def policies_of(seen: Sequence[DecidedAnswer], probability: AnswerProbability) -> list[Policy]:
    """Returns the fitted policy and policies to compare it with. One gives every answer. If all answers in
    `seen` state a confidence, two more use it: with a fixed threshold, and the best one for `seen`."""
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
    scored: Sequence[DecidedAnswer],
    open_: Sequence[DecidedAnswer],
    policies: Sequence[Policy],
    by: Measure,
    group: str | None,
) -> tuple[PolicyScore, ...]:
    """Scores each policy on `scored`, with the gain of the first policy over it. `open_` are answers without
    a value, which bound the gain."""
    answers, n = [*scored, *open_], len(scored)
    groups = None if group is None else [a.key for a in answers]
    out: list[PolicyScore] = []
    fitted: Values = ()
    for policy, surety, threshold in policies:
        sure = [surety(a) if a.features is not None else None for a in answers]
        gives = [s is not None and (threshold is None or s >= threshold) for s in sure]
        pairs = list(zip(answers, gives, strict=True))
        values = [a.value if g or a.features is None else a.abstained for a, g in pairs]
        fitted = fitted or values
        count, right = sum(gives[:n]), sum(a.right for a, g in pairs[:n] if g)
        held = held_against(values, fitted, n, by, groups)
        out.append(
            PolicyScore(policy, threshold, answered=count / n, right=right / count if count else None, **held)
        )
    return tuple(out)


def _fitted(
    run: FitRun, seen: Sequence[DecidedAnswer], on: FittedOn
) -> tuple[AnswerProbability, float, dict[str, float]]:
    """Fits the answers `seen`. Returns the fit, the strength of its ridge, and the effect of each feature.
    Raises DataError for too few right or wrong answers, and if all answers have the same features."""
    answered = [a for a in seen if a.features is not None]
    right = np.array([a.right for a in answered], float)
    fine, wrong = int(right.sum()), int(len(right) - right.sum())
    if min(fine, wrong) < FEWEST:
        raise DataError(
            f"{run.folder}: expected at least {FEWEST} right and {FEWEST} wrong answers in the half to fit "
            f"on, found {fine} and {wrong}. Fit on a run of more questions{_abstains(run)}"
        )
    every, columns = [a.features or {} for a in answered], dict[str, Floats]()
    for name in sorted({n for f in every for n in f}):
        has = np.array([f.get(name, np.nan) for f in every])
        column = np.where(np.isnan(has), absent(name, float(np.nanmean(has))), has)
        if column.std() > 0:  # a constant feature has no weight
            columns[name] = column
    if not columns:
        raise DataError(
            "fit decide: all answers look alike: no reply states a confidence, nothing was ranked"
        )
    x = np.stack(list(columns.values()), axis=1)  # (answers, features)
    found = fit(x, right, folds_of(run.folder, answered, right))
    values, idle = (np.array([getattr(a, n) for a in answered]) for n in ("value", "abstained"))
    threshold = best_threshold(found.held_out, values, idle)
    pairs = zip(columns, found.weights, found.means, x.std(0), strict=True)
    kept = [(n, short(w), short(m), float(w * s)) for n, w, m, s in pairs]
    weights, means = {n: w for n, w, _, _ in kept}, {n: m for n, _, m, _ in kept}
    effects = {n: effect for n, _, _, effect in kept}
    probability = AnswerProbability(short(threshold), short(found.bias), weights, means, on)
    return probability, found.strength, effects


def _abstains(run: FitRun) -> str:
    """Names the thresholds below which steps of a run abstain, and how to eval without. Returns "" if there
    are none."""
    stages = {s.name: getattr(s.step, "threshold", None) or 0.0 for s in run.recipe.question}
    held = [(f"{name}.threshold", at) for name, at in stages.items() if at > 0]
    if not held:
        return ""
    has, sets = (
        " ".join(f"{mark}{name}={value:g}" for name, value in pairs)
        for mark, pairs in (("", held), ("--set ", [(name, 0) for name, _ in held]))
    )
    return f", or one that abstains less: this one has {has}, raypipe eval ... {sets} has none"


def folds_of(folder: Path, answered: Sequence[DecidedAnswer], right: Floats) -> npt.NDArray[np.int64]:
    """Assigns each answer to a fold for cross-validation. Answers with the same key share a fold; keys are
    dealt to the folds in turn, in the order of a hash. Raises DataError if the answers outside a fold are all
    right, or all wrong."""
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
