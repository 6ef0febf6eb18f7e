"""Shared parts of `fit_decide` and `fit_fuse`: opens a finished run, splits its rows, and scores policies.

A policy decides for each answer whether to give it. Half of the questions is used for the fit, and the other,
unseen half measures it. Reads the run's folder and its recipe; fits nothing and calls no model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.core.digests import HALVES, FittedOn, half_of, seen_rows
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Hit, Question, Reply, digest, parse_chunk_id
from raypipe.evaluation import compare
from raypipe.evaluation.result_table import each
from raypipe.metrics.calibration import best_threshold
from raypipe.metrics.kinds import Measure
from raypipe.metrics.paired_tests import (
    Conclusion,
    Interval,
    PairedDifference,
    conclude,
    mean_interval,
    paired,
)
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import from_plain
from raypipe.recipes.wiring import basis, fits_of, has_seen
from raypipe.runs.record import Run, read
from raypipe.runs.run_parts import RunFolder
from raypipe.steps.decide import AnswerProbability


@dataclass(frozen=True, slots=True)
class FitRun:
    """A finished run, opened for a fit."""

    folder: Path
    record: Run
    recipe: Recipe
    split: int  # half of the questions to fit on, 0 or 1
    group: str | None  # label whose values group questions; a group is in one half. None: no groups
    own_group: bool = False  # True: `group` comes from the kind of data, and a question may lack it

    @property
    def kind(self) -> str:
        """Name of the run's kind of data, as `open_kind` takes it: without a digest, which the record adds
        to a kind from outside raypipe."""
        return self.record.kind.partition("@")[0]

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the run's table, in order. Raises DataError if a question lacks the label
        `group` and the user named it."""
        found = list(each(RunFolder(self.folder).results))
        for row in found if self.group is not None and not self.own_group else ():
            if self.group not in row["labels"]:
                raise DataError(
                    f"{self.folder}: expected a label {self.group!r} at every question, {row['id']} has "
                    f"{', '.join(row['labels']) or 'none'}"
                )
        return found

    def key(self, row: Mapping[str, Any]) -> str:
        """Returns the text whose hash assigns a row to a half: its group, or else its id."""
        return str(row["labels"].get(self.group, row["id"]))

    def halves(
        self, rows: Sequence[Mapping[str, Any]], scored: Collection[str], stage: str, metric: str
    ) -> tuple[FittedOn, set[str], set[str], int]:
        """Splits the scored rows into the fitted half and the unseen half. Returns (origin of the fitted
        numbers of `stage`, ids of the fitted rows, ids of the unseen rows, number of rows left out). A row of
        the unseen half is left out if an earlier fit in the run's recipe has seen its question. A row whose
        question is also in the fitted half belongs to neither."""
        known = [r for r in rows if r["id"] in scored]
        ours = [r for r in known if half_of(self.key(r)) == self.split]
        others = [r for r in known if half_of(self.key(r)) != self.split]
        named = digest(*(part for r in ours for part in (r["id"], r["query"], *r["golds"])))
        on = FittedOn(
            data=f"run {self.record.run} of {self.record.questions} questions, rows {named}",
            split=f"half {self.split} of {HALVES} by a hash of its {self.group or 'id'}",
            metric=metric,
            n=len(ours),
            recipe=self.recipe.title,
            basis=basis(self.recipe, stage),
            seen=seen_rows(r["query"] for r in ours),
        )
        fits = fits_of(self.recipe).values()
        left = [r for r in others if not has_seen(fits, r["query"])]
        unseen = {r["id"] for r in left if not on.has_seen(r["query"])}
        return on, {r["id"] for r in ours}, unseen, len(others) - len(left)


def open_run(folder: Path, split: int, group: str | None) -> FitRun:
    """Opens the folder of a finished run. `split`: half of the questions to fit on, 0 or 1. `group`: label
    whose values group questions; None: the group label of the kind of data, if it has one. Raises ConfError
    if `split` is invalid, if golds replaced a stage of the run or answers were kept from an earlier run, and
    if this raypipe would compute the recipe differently. Raises DataError if the run did not finish."""
    if not 0 <= split < HALVES:
        raise ConfError(f"--split {split}: expected 0 or 1, the half of the questions to fit on")
    record = read(folder)
    if record.oracle:
        raise ConfError(f"{folder}: expected only answers of the recipe, found golds in place of a stage")
    if record.kept:
        raise ConfError(f"{folder}: expected answers of one recipe, found some that --only-new kept")
    own = compare.group_label(record.kind) if group is None else None
    return FitRun(folder, record, from_plain(record.recipe), split, group or own, own is not None)


def measure_of(run: FitRun, name: str | None) -> Measure:
    """Returns the named measure of the run's kind of data; None: the leading measure of its report."""
    chosen = name or run.record.lead
    return compare.measure_of(f"measure {chosen!r}", chosen, run.record.kind)


def question_of(row: Mapping[str, Any]) -> Question:
    """Rebuilds a row's question with its replies and scores, as the steps left it."""
    hits = [Hit(h["chunk"], *parse_chunk_id(h["chunk"]), h["scores"]) for h in row["hits"]]
    replies = {r["step"]: Reply(r["text"], r["label"], r["confidence"], r["logprob"]) for r in row["replies"]}
    order = tuple(h["chunk"] for h in row["hits"] if h["ranked"])
    said: dict[str, Any] = {name: row[name] or "" for name in ("asked_at", "origin", "outcome", "answer")}
    return Question(row["id"], row["query"], replies=replies, hits=tuple(hits), order=order, **said)


FIXED = 0.5  # default threshold of `extract`


@dataclass(frozen=True, slots=True)
class DecidedAnswer:
    """A scored question of a run, with the features of its answer."""

    id: str
    key: str  # text whose hash decides its half and its fold
    labels: Mapping[str, str]
    value: float  # measure of the run's answer
    abstained: float  # measure of "i don't know" in its place
    right: bool  # True: the value is above the middle of the measure's range
    stated: float | None  # confidence of the reply
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
    verdict: Conclusion | None  # conclusion about the gain


Surety = Callable[[DecidedAnswer], "float | None"]
Policy = tuple[str, Surety, "float | None"]
"""Name, confidence of an answer, threshold."""


def policies_of(seen: Sequence[DecidedAnswer], probability: AnswerProbability) -> list[Policy]:
    """Returns the fitted policy, and policies to compare it with: every answer is given; and, if all answers
    in `seen` state a confidence, a fixed threshold on it and the best threshold for `seen`."""
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
    """Returns the mean and interval of `values`, and the gain of `first` over them with its verdict. The gain
    and verdict are None if `values` is `first` itself."""
    gain = None if values is first else paired(values, first, by.high - by.low, groups)
    within = mean_interval(values, (by.low, by.high), groups)
    verdict = None if gain is None else conclude(gain)
    return {"score": float(np.mean(values)), "interval": within, "gain": gain, "verdict": verdict}


def short(x: float) -> float:
    """Rounds to six digits, as the fit's file has them, so the measured numbers are the written ones."""
    return float(f"{x:.6g}")
