"""Fit of a `fuse` step's weights to a ranking measure, on one half of a run's questions.

The step weighs the scores that rankers such as `dense` gave to the hits. The scores are read from the run, so
no model is called. On the other half of the questions, the fitted weights are compared with the recipe's own
weights, equal weights, and the best single score. A question that only some weights can rank is open: it is
not used for the fit, but it can make a verdict `cannot tell`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Question
from raypipe.evaluation.compare import measure_of
from raypipe.evaluation.fit_run import FitRun, held_against, open_run, question_of, short
from raypipe.evaluation.golds import FINAL, documents_of, golds_of, ranked_documents
from raypipe.metrics.calibration import climb
from raypipe.metrics.kinds import DataKind, Measure, gold_form, recorded_kind
from raypipe.metrics.paired_tests import Conclusion, Floats, Interval, PairedDifference
from raypipe.metrics.ranking import ranked
from raypipe.metrics.verdict_rules import Prediction
from raypipe.recipes.step_contract import given_by_fit
from raypipe.steps.fuse import Fuse, FusionWeights
from raypipe.store import Store

FEWEST = 20  # judged questions needed for a fit; with fewer, one question moves a mean more than weights do


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A question with judged documents and its candidates, ready for a fit."""

    question: Question
    key: str  # text whose hash decides its half
    grades: Mapping[str, int]  # judged document -> relevance
    columns: Floats  # (passages, scores) contribution of each score to a passage's sum, at weight 1
    documents: tuple[tuple[str, ...], ...]  # ids of the documents with the text of each passage
    open: bool  # True: a candidate lacks a score, so weights that use the score cannot rank the question


@dataclass(frozen=True, slots=True)
class WeightScore:
    """Score of one set of weights on some questions."""

    weighing: str
    weights: Mapping[str, float]
    score: float  # mean of the measure over the step's rankings
    interval: Interval | None  # 95 % interval of the score
    gain: PairedDifference | None  # gain of the fitted weights over these; None: these are the fitted ones
    verdict: Conclusion | None  # conclusion about the gain, for any values of the open questions
    open: int  # open questions that could change the verdict; 0: it holds for any values


@dataclass(frozen=True, slots=True)
class FuseFitReport:
    """A fit of fusion weights, and their scores on the half that it has not seen."""

    run: str
    recipe: str
    step: str
    kind: str
    measure: str
    split: str  # description of the fitted rows
    fitted_questions: int
    unseen_questions: int
    left_out: int  # questions without judged documents or candidates, and open ones
    seen_before: int  # judged questions left out of the other half, since a fit of the recipe has seen them
    unseen: tuple[WeightScore, ...]  # the fitted weights first
    seen: tuple[WeightScore, ...]  # the same on the fitted half: do not quote these


def fit_fuse(
    folder: Path,
    store: Store,
    split: int,
    step: str | None = None,
    scores: Sequence[str] = (),
    group: str | None = None,
    measure: str | None = None,
) -> tuple[FusionWeights, FuseFitReport]:
    """Fits the weights of a fusion step in a finished run's recipe. `split` and `group` are those of
    `open_run`. `step` names the stage; None: the last `fuse`. `scores` names the scores to weigh; empty:
    those that the step weighs. `measure` names a measure; None: the leading one of the report. Raises
    ConfError as `_weighing`, and DataError if the run does not score rankings or a half has too few judged
    questions."""
    run = open_run(folder, split, group)
    kind, by = recorded_kind(run.record.kind), measure_of(measure or run.record.lead, run.record.kind)
    if gold_form(kind) != "grades":
        raise DataError(
            f"{folder}: expected judged documents to fit a ranking to, found kind {run.record.kind}. "
            "Run the eval with --kind ranking, on data that has some"
        )
    rows = run.rows()
    name, fuse, names = _weighing(run, step, rows, scores)
    step_of = WeighedFusion(fuse, kind, by)
    judged = _judged(run, store, rows, step_of.by(dict.fromkeys(names, 1.0)), names)
    scored = {j.question.id for j in judged if not j.open}
    what = f"mean {by.name} of the ranking of {name}, by coordinate ascent"
    on, ours, held_out, before = run.halves(rows, scored, name, what)
    seen, unseen = ([j for j in judged if j.question.id in half & scored] for half in (ours, held_out))
    if len(seen) < FEWEST:
        raise DataError(
            f"{folder}: expected at least {FEWEST} questions with judged documents in half {split}, found "
            f"{len(seen)}. Fit on a run of more questions"
        )
    if not unseen:
        raise DataError(
            f"{folder}: expected judged questions in the other half that no fit of the recipe has seen, "
            f"found none ({before} questions were seen). Fit on a run of more questions"
        )
    own = {n: w for n, w in fuse.weighed().items() if n in names}
    starts = [np.ones(len(names))]
    if sum(own.values()) > 0:
        starts.insert(0, np.array([own.get(n, 0.0) for n in names]))
    weights, _ = climb(lambda w: float(np.mean([step_of.near(j, w) for j in seen])), starts)
    fitted = {n: short(w) for n, w in zip(names, weights, strict=True)}
    alone = {n: float(np.mean([step_of.exact(j, {n: 1.0}) for j in seen])) for n in names}
    best = max(names, key=lambda n: alone[n])
    ways = {"fitted": fitted, "the recipe's": own, "equal": dict.fromkeys(names, 1.0)}
    ways[f"only {best}, the best of the fitted half"] = {best: 1.0}
    opens = [j for j in judged if j.open]
    worth = (
        step_of.scored(part, [j for j in opens if j.question.id in half], ways, run.group)
        for part, half in ((unseen, held_out), (seen, ours))
    )
    ends = len(seen), len(unseen), len(rows) - len(scored), before
    record = run.record
    report = FuseFitReport(record.run, run.recipe.title, name, record.kind, by.name, on.split, *ends, *worth)
    return FusionWeights(fitted, on), report


def _weighing(
    run: FitRun, step: str | None, rows: Sequence[Mapping[str, Any]], scores: Sequence[str]
) -> tuple[str, Fuse, tuple[str, ...]]:
    """Returns the stage's name, its step, and the names of the scores to weigh. Raises ConfError for an
    unknown step, fewer than two scores, and a score that no passage has or no earlier stage writes."""
    fusing = {s.name: s for s in run.recipe.question if {"weights", "fitted"} <= given_by_fit(s.step)}
    if not fusing:
        raise ConfError(f"fit fuse: recipe {run.recipe.title} has no step fuse, so there is nothing to weigh")
    name = step or list(fusing)[-1]
    if name not in fusing:
        raise ConfError(
            f"--step {name}: recipe {run.recipe.title} has no such fuse; {did_you_mean(name, fusing)}"
        )
    fuse = cast(Fuse, fusing[name].step)
    names = tuple(scores) or tuple(fuse.weighed())
    known = {s for r in rows for h in r["hits"] for s in h["scores"]}
    if strange := [n for n in names if n not in known]:
        hint = did_you_mean(strange[0], known)
        raise ConfError(f"fit fuse: no passage of {run.folder} has a score {strange[0]!r}; {hint}")
    stages = [s.name for s in run.recipe.question]
    before = {w for s in run.recipe.question[: stages.index(name)] for w in s.step.writes()}
    if late := [n for n in names if f"hits.{n}" not in before]:
        early = ", ".join(sorted(n for n in known if f"hits.{n}" in before))
        raise ConfError(f"fit fuse: score {late[0]!r} is written by {name} or after it; known: {early}")
    if len(names) < 2:
        raise ConfError(f"fit fuse: expected two scores or more to weigh, found {', '.join(names)}")
    return name, fuse, names


def _judged(
    run: FitRun, store: Store, rows: Sequence[Mapping[str, Any]], bare: Fuse, names: Sequence[str]
) -> list[JudgedRanking]:
    """Returns the questions that have judged documents and candidates to rank. A question is open if a
    candidate lacks a score and the step does not allow that."""
    golds = golds_of(store, [r["id"] for r in rows], "grades")
    questions = [(run.key(r), question_of(r)) for r in rows]
    listed = documents_of(store, sorted({h.source for _, q in questions for h in q.hits}))
    out = []
    for key, q in questions:
        grades = golds[q.id].grades if q.id in golds else {}
        hits = [h for h in q.hits if any(n in h.scores for n in names)]
        if grades and hits:
            lacking = bare.missing == "fault" and any(n not in h.scores for n in names for h in hits)
            columns = np.array([bare.column(n, hits) for n in names]).T
            documents = tuple(tuple(listed.get(h.source, ())) for h in hits)
            out.append(JudgedRanking(replace(q, hits=tuple(hits)), key, grades, columns, documents, lacking))
    return out


@dataclass(frozen=True, slots=True)
class WeighedFusion:
    """A fusion step whose weights can be replaced, with the measure that scores its rankings."""

    fuse: Fuse
    kind: DataKind
    by_measure: Measure

    def by(self, weights: Mapping[str, float]) -> Fuse:
        norms = {n: norm for n, norm in self.fuse.norms.items() if n in weights}
        return replace(self.fuse, fitted=None, weights=weights, norms=norms)

    def near(self, j: JudgedRanking, w: Floats) -> float:
        """Returns the measure of the ranking by weights `w`, computed from the columns of `j` to save time.
        Passages with equal sums may be ordered differently than by the step itself (`exact`)."""
        totals = j.columns @ w
        order = sorted(range(len(totals)), key=lambda i: (-totals[i], j.question.hits[i].chunk))
        documents = dict.fromkeys(d for i in order[: self.fuse.top] for d in sorted(j.documents[i]))
        return self._value(j, list(documents))

    def exact(self, j: JudgedRanking, weights: Mapping[str, float]) -> float | None:
        """Returns the measure of the ranking that the step makes with these weights, or None without one."""
        done = self.by({n: w for n, w in weights.items() if w}).fused(j.question)
        if done.faults:
            return None
        listed = {h.source: d for h, d in zip(j.question.hits, j.documents, strict=True)}
        return self._value(j, ranked(ranked_documents(done, FINAL, listed, len(j.question.hits))))

    def _value(self, j: JudgedRanking, documents: Sequence[str]) -> float:
        row = Prediction(j.question.id, None, (), None, {}, j.grades, tuple(documents))
        return self.kind.values(row)[self.by_measure.name]

    def scored(
        self,
        scored: Sequence[JudgedRanking],
        open_: Sequence[JudgedRanking],
        ways: Mapping[str, Mapping[str, float]],
        group: str | None,
    ) -> tuple[WeightScore, ...]:
        """Scores each set of weights on `scored`, except a set of zeros, and compares it with the first set.
        `open_` are the open questions, which bound the difference."""
        every, n = [*scored, *open_], len(scored)
        groups = None if group is None else [j.key for j in every]
        used = {what: w for what, w in ways.items() if any(w.values())}
        values = {what: [self.exact(j, w) for j in every] for what, w in used.items()}
        first = next(iter(values.values()))
        return tuple(
            WeightScore(what, used[what], **held_against(v, first, n, self.by_measure, groups))
            for what, v in values.items()
        )
