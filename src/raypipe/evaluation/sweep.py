"""Sweeps and repeats: one set of questions through several recipes, or several times through one recipe.

A sweep compares its points (recipes) in one paired table and picks the best. Repeats measure how much a score
and single verdicts vary by chance. The caller passes in the function that runs an eval.

The best of several points looks better than it is, because the same questions choose it and score it: the
best of eight equal points is ahead by 1.4 standard errors. So p values are corrected for the number of
points. If there are unseen questions, the winner is scored again on them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Prices
from raypipe.evaluation.bounded_difference import bounded, extremes
from raypipe.evaluation.compare import RunComparison, applicable, compare
from raypipe.evaluation.compare import measure_of as named_measure
from raypipe.evaluation.evaluate import Evaluation
from raypipe.evaluation.scored_run import ScoredRun, scored_run
from raypipe.metrics.kinds import Measure, group_of, grouped, recorded_kind
from raypipe.metrics.paired_tests import Conclusion, PairedDifference, group_sums, max_t
from raypipe.recipes.read_recipe import read_points
from raypipe.recipes.recipe import Recipe
from raypipe.runs.plan.costs import asking, estimated
from raypipe.runs.plan.planner import LOOKED_BACK
from raypipe.runs.plan.records import Plan
from raypipe.runs.record import recent
from raypipe.runs.run_parts import Costs, Estimate
from raypipe.runs.stage_records import chains
from raypipe.store import Store

Settings: TypeAlias = tuple[str, ...]
"""--set values of a point, one per field."""


@dataclass(frozen=True, slots=True)
class Point:
    """A recipe of a sweep."""

    name: str  # --set values, such as `rerank.top=5`; first the recipe, if the sweep has several
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """Estimated cost of a point."""

    point: str
    digest: str  # digest of the recipe
    shared: tuple[str, ...]  # steps whose work an earlier point does; only that point's estimate counts them
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class PointResult:
    """Score and cost of a point."""

    point: str
    digest: str  # digest of the recipe
    folder: str  # folder of its report
    score: float  # mean over the questions that all points score
    against_first: PairedDifference | None  # None: this is the first point
    p: float | None  # p value corrected for the number of points (maxT)
    verdict: Conclusion | None
    calls_per_question: float | None  # calls of its question half, computed or cached; None: not known
    cost: Costs  # cost of new work; work of earlier points is not in it


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of a sweep."""

    measure: str  # measure whose mean is the score
    questions: int  # questions that each point ran on
    scored: int  # questions that all points score
    seed: int
    points: tuple[PointResult, ...]  # the first is the baseline of the others
    winner: str  # name of the best point
    unseen: int  # questions that no point answered before; the winner is scored on them again
    again: RunComparison | None  # winner against the first point on the unseen questions; None: not compared
    winner_again: float | None  # winner's score on the unseen questions


R = TypeVar("R")


def points(load: Callable[[R, Settings], Recipe], recipes: Sequence[R], given: Sequence[str]) -> list[Point]:
    """Returns the points of a sweep: each recipe with every combination of the `given` values, which `load`
    sets. Raises ConfError for a wrong setting, fewer than two points, and equal recipes."""
    axes = [read_points(text) for text in given]
    every = [(recipe, settings) for recipe in recipes for settings in product(*axes)]
    if len(every) < 2:
        raise ConfError(
            f"expected two points or more, found {len(every)}. Name several recipes, --recipes local,rag, or "
            "give a field several values, --set rerank.top=5,10"
        )
    found: list[Point] = []
    by_digest: dict[str, str] = {}
    for named, settings in every:
        recipe = load(named, settings)
        name = ", ".join((str(named), *settings) if len(recipes) > 1 else settings)
        named_by = recipe.digest() + recipe.turns_digest()
        if (other := by_digest.get(named_by)) is not None:
            raise ConfError(f"{other} and {name} are the same recipe; expected different ones")
        by_digest[named_by] = name
        found.append(Point(name, recipe))
    return found


def measure_of(kind: str, name: str | None) -> Measure:
    """Returns the measure that ranks points, by default the first. Raises ConfError if less is better."""
    first = recorded_kind(kind).measures[0]
    found = first if name is None else named_measure(name, kind, f"--measure {name}")
    if found.less_is_better:
        why = f"never answering would win. Use a measure where more is better, such as {first.name}"
        raise ConfError(f"--measure {found.name}: it cannot rank a sweep: {why}")
    return found


def drawn(ids: Sequence[str], sample: int | None, seed: int) -> tuple[list[str], list[str]]:
    """Draws `sample` questions to compare the points, and up to as many others to score the winner again. If
    `sample` is None or at least the number of ids, returns all, and no others."""
    every = sorted(ids)
    if sample is None or sample >= len(every):
        return every, []
    mixed = random.Random(seed).sample(every, len(every))
    return sorted(mixed[:sample]), sorted(mixed[sample : 2 * sample])


def planned(
    found: Sequence[Point], plan: Callable[[Recipe], Plan], prices: Callable[[Recipe], Prices]
) -> list[PlannedPoint]:
    """Plans each point, without the steps whose work an earlier point does: equal chains of steps make equal
    calls. `prices` returns the prices of a recipe's calls."""
    out: list[PlannedPoint] = []
    seen: set[str] = set()
    for point in found:
        chained = chains(point.recipe)
        shared = tuple(step for step, chain in chained.items() if chain in seen)
        seen.update(chained.values())
        whole = plan(point.recipe)
        own = replace(whole, steps=tuple(s for s in whole.steps if s.step not in shared))
        estimate = estimated(own, prices(point.recipe), asking(point.recipe))
        out.append(PlannedPoint(point.name, point.recipe.digest(), shared, estimate))
    return out


Run: TypeAlias = Callable[[Recipe, Sequence[str], Path], Evaluation]
"""Function that runs an eval: (recipe, ids of stored questions, folder of the report) -> result."""


def sweep(
    found: Sequence[Point],
    run: Run,
    ids: Sequence[str],
    unseen: Sequence[str],
    seed: int,
    margin: float,
    out: Path,
    measure: Measure,
) -> Sweep:
    """Runs every point on `ids`; its score is the mean of `measure`. Then runs the winner on `unseen`, if
    any, and also the first point if another won. Raises DataError if no question is scored at all points."""
    done = [run(p.recipe, ids, out / f"point-{n}") for n, p in enumerate(found, 1)]
    runs = [scored_run(d.folder.path, "official") for d in done]
    scored = [{q for q, v in r.values.items() if measure.name in v} for r in runs]
    common = sorted(set.intersection(*scored))
    if not common:
        raise DataError(
            f"sweep: expected questions that are scored at all {len(runs)} points, found none; "
            f"{', '.join(f'{r.name}: {len(s)}' for r, s in zip(runs, scored, strict=True))}. "
            f"--judge MODEL scores what the rule of {measure.name} leaves open; --measure names another"
        )
    known = set(common)
    shared = sorted(set.intersection(*(set(r.values) for r in runs)))
    every = [*common, *(q for q in applicable(runs, shared, measure.name) if q not in known)]
    groups = grouped(group_of(recorded_kind(runs[0].kind)), {q: runs[0].labels[q] for q in every})
    values = [[r.values[q].get(measure.name) for q in every] for r in runs]
    n, results = len(common), list[PointResult]()

    def corrected(end: int, most: int) -> list[float]:
        """Returns the corrected p of each gain over the first `most` questions. For open questions, `end`
        chooses the least (0) or the largest (1) gain that is possible."""
        gains = [extremes(values[0][:most], v[:most], measure)[end] for v in values[1:]]
        return max_t(gains if groups is None else [group_sums(g, groups[:most])[0] for g in gains], seed)

    scored_ps = corrected(0, n)  # both ends are the gain itself
    at_ends = [corrected(end, len(every)) if len(every) > n else scored_ps for end in (0, 1)]
    ps = [(None,) * 3, *zip(scored_ps, *at_ends, strict=True)]
    for point, evaluation, of, own_ps in zip(found, done, values, ps, strict=True):
        against, verdict = None, None
        if results:  # the first point is not compared with itself
            gain = bounded(values[0], of, n, measure, groups)
            against = gain.score
            verdict, _ = gain.verdict(margin, own_ps)
        assert evaluation.record.cost is not None
        where = point.name, point.recipe.digest(), str(evaluation.folder.path)
        calls, cost = _calls_per_question(evaluation), evaluation.record.cost.actual
        mean = float(np.array(of[:n], float).mean())
        results.append(PointResult(*where, mean, against, own_ps[0], verdict, calls, cost))
    best = min(range(len(found)), key=lambda i: (-results[i].score, results[i].calls_per_question or 0, i))
    again, score = None, None
    if unseen:
        last = run(found[best].recipe, unseen, out / "winner-unseen")
        score = last.scored.scores.of(measure.name).mean
        if best:
            first = run(found[0].recipe, unseen, out / "first-unseen")
            pair = [scored_run(d.folder.path, "official") for d in (first, last)]
            (again,) = compare(pair, margin, measure=measure.name)
    counts, name = (len(ids), len(common)), found[best].name
    return Sweep(measure.name, *counts, seed, tuple(results), name, len(unseen), again, score)


def _calls_per_question(done: Evaluation) -> float | None:
    """Returns the calls per question that the steps for questions made, cached calls included. They come from
    this run, or else from the recipe's last run that answered questions; None if there is none."""
    store = Store.open(done.record.store)
    for run in (done.record, *recent(store, LOOKED_BACK)):
        if run.digest != done.record.digest:
            continue
        question = {s.name for s in run.stages if s.half == "question"}
        lines = [s for s in run.steps if s.step in question]
        if rows := max((s.rows for s in lines), default=0):
            return sum(s.computed + s.cached for s in lines) / rows
    return None


@dataclass(frozen=True, slots=True)
class RepeatedQuestion:
    """A question over all repeats that scored it."""

    question: str  # question id
    verdicts: tuple[str, ...]  # verdict of each repeat, in order; the value if no rule gives verdicts
    mean: float | None  # mean of its values; None: never scored
    spread: float  # standard deviation of its values, 0..1


@dataclass(frozen=True, slots=True)
class Repeats:
    """Several runs of one recipe over the same questions."""

    runs: tuple[str, ...]  # names as given
    scores: tuple[float | None, ...]  # mean score of each run; None: nothing was scored
    mean: float | None  # mean of the scores
    spread: float  # standard deviation of the scores
    moved: int  # questions whose verdict differs between runs
    verdicts: tuple[Conclusion, ...]  # each later run against the first; (): nothing was scored
    questions: tuple[RepeatedQuestion, ...]  # sorted by id


def repeats(runs: Sequence[ScoredRun]) -> Repeats:
    """Computes mean and spread of scores and of questions. Raises DataError if the questions differ."""
    ids = sorted(runs[0].values)
    for run in runs[1:]:
        if sorted(run.values) != ids:
            raise DataError(f"{run.name}: expected the questions of {runs[0].name}, as a repeat has")
    leads = [recorded_kind(r.kind).measures[0].name for r in runs]  # the measure whose spread is computed
    values = [{q: v.get(lead) for q, v in r.values.items()} for r, lead in zip(runs, leads, strict=True)]
    found = []
    for id in ids:
        of = [v[id] for v in values]
        known = [v for v in of if v is not None]
        plain = ["unscored" if v is None else f"{v:.3f}" for v in of]
        said = tuple(r.verdicts.get(id) or text for r, text in zip(runs, plain, strict=True))
        spread = statistics.pstdev(known) if known else 0.0
        found.append(RepeatedQuestion(id, said, statistics.fmean(known) if known else None, spread))
    scored = [[v for v in of_run.values() if v is not None] for of_run in values]
    scores = [statistics.fmean(some) if some else None for some in scored]
    known = [s for s in scores if s is not None]
    return Repeats(
        runs=tuple(r.name for r in runs),
        scores=tuple(scores),
        mean=statistics.fmean(known) if known else None,
        spread=statistics.stdev(known) if len(known) > 1 else 0.0,
        moved=sum(len(set(q.verdicts)) > 1 for q in found),
        verdicts=tuple(c.verdict for c in compare(runs)) if known else (),
        questions=tuple(found),
    )
