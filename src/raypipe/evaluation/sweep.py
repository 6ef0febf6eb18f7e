"""A sweep: the same questions through several recipes, one paired table, and the best one on other questions.
And one recipe several times: how far its score, and the verdict on a question, move by themselves.

Knows recipes, plans and the results of evals; a runner that is handed in makes each eval. The best of several
points looks better than it is, since it is chosen by these questions: of eight equal points, the best is
ahead by 1.4 standard errors. So p values are corrected for the number of points, and the winner is scored
again on questions that the sweep did not see.
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
from raypipe.evaluation.compare import RunComparison, compare, group_label, measures_of
from raypipe.evaluation.compare import measure_of as named_measure
from raypipe.evaluation.evaluate import Evaluation
from raypipe.evaluation.scored_run import ScoredRun, scored_run
from raypipe.metrics.certainty import Conclusion, PairedDifference, conclude, group_sums, max_t, paired
from raypipe.metrics.kinds import Measure, grouped
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
"""Settings of a point, one for each field."""


@dataclass(frozen=True, slots=True)
class Point:
    """A recipe of a sweep."""

    name: str  # what is set there: `split.parent_chars=500, rerank.top=5`; of several recipes, which it is
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """Estimate of a point."""

    point: str
    digest: str  # of the recipe
    shared: tuple[str, ...]  # steps whose work an earlier point does; they count there
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class PointResult:
    """A scored point."""

    point: str
    digest: str  # of the recipe
    folder: str  # of its report
    score: float  # mean over the questions that all points score
    against_first: PairedDifference | None  # None: it is the first
    p: float | None  # corrected for the number of points (maxT)
    verdict: Conclusion | None
    calls_per_question: float | None  # that its questions ask, computed or cached; None: not known
    cost: Costs  # of what was new; what earlier points computed is not in it


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep."""

    measure: str  # what `score` is the mean of
    questions: int  # that each point answered
    scored: int  # of these: scored at all points
    seed: int
    points: tuple[PointResult, ...]  # the first is what the others are held against
    winner: str  # the best point
    unseen: int  # questions that no point answered before, on which the winner was scored again
    again: RunComparison | None  # the winner against the first on those; None: none was left
    winner_again: float | None  # its score on those


R = TypeVar("R")


def points(load: Callable[[R, Settings], Recipe], recipes: Sequence[R], given: Sequence[str]) -> list[Point]:
    """The points of a sweep, in order: each recipe at every combination of the values. `load`: a recipe with
    fields set.

    Raises ConfError for a form, a field or a value that is wrong at any point, for fewer than two, and for
    two that are the same.
    """
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
        name = ", ".join((str(named),) * (len(recipes) > 1) + settings)
        named_by = recipe.digest() + recipe.turns_digest()
        if (other := by_digest.get(named_by)) is not None:
            raise ConfError(f"{other} and {name} are the same recipe; expected different ones")
        by_digest[named_by] = name
        found.append(Point(name, recipe))
    return found


def measure_of(kind: str, name: str | None) -> Measure:
    """The measure of a kind of data that points are held against each other by; None: its first. Raises
    ConfError for one that it does not have, and for one of which the best point would have the least."""
    first = measures_of(kind)[0]
    found = first if name is None else named_measure(f"--measure {name}", name, kind)
    if found.less_is_better:
        raise ConfError(
            f"--measure {name}: expected one of which more is better, such as {first.name}; of {name} "
            "an answer that is never given has least"
        )
    return found


def drawn(ids: Sequence[str], sample: int | None, seed: int) -> tuple[list[str], list[str]]:
    """The questions of a sweep, and as many others at most, on which the winner is scored again."""
    every = sorted(ids)
    if sample is None or sample >= len(every):
        return every, []
    mixed = random.Random(seed).sample(every, len(every))
    return sorted(mixed[:sample]), sorted(mixed[sample : 2 * sample])


def planned(
    found: Sequence[Point], plan: Callable[[Recipe], Plan], prices: Callable[[Recipe], Prices]
) -> list[PlannedPoint]:
    """The plan of each point, less what an earlier one does: a step with the same chain asks the same.
    `prices`: of what a recipe asks."""
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
"""Makes an eval of some stored questions: recipe, ids, folder of its report."""


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
    """Runs every point on these questions, then the winner and the first on those that none has seen.
    `measure`: of the kind of the data; its mean is the score.

    Raises DataError where no question is scored at all points.
    """
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
    values = [np.array([r.values[q][measure.name] for q in common]) for r in runs]  # (questions,) float64
    groups = grouped(group_label(runs[0].kind), {q: runs[0].labels[q] for q in common})
    gains = [v - values[0] for v in values[1:]]
    corrected = max_t(gains if groups is None else [group_sums(g, groups)[0] for g in gains], seed)
    results = list[PointResult]()
    for point, evaluation, value, p in zip(found, done, values, [None, *corrected], strict=True):
        span = measure.high - measure.low
        against = None if p is None else paired(values[0], value, span, groups)
        verdict = None if against is None or p is None else conclude(against, margin, p)
        assert evaluation.record.cost is not None
        where = point.name, point.recipe.digest(), str(evaluation.folder.path)
        calls, cost = _calls_per_question(evaluation), evaluation.record.cost.actual
        results.append(PointResult(*where, float(value.mean()), against, p, verdict, calls, cost))
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
    """Counts the calls of the question half, cached ones too: without a cache they are asked. Where all
    answers were there before, the last run that made some says; None: none does any more."""
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
    """Summarizes a question over all repeats that scored it."""

    question: str  # id
    verdicts: tuple[str, ...]  # one a repeat, in order; where no rule gives one: the value
    mean: float | None  # of its values; None: never scored
    spread: float  # standard deviation of them, 0..1


@dataclass(frozen=True, slots=True)
class Repeats:
    """Several runs of one recipe over the same questions."""

    runs: tuple[str, ...]  # as they were named
    scores: tuple[float | None, ...]  # one a run; None: nothing was scored
    mean: float | None  # of the scores
    spread: float  # standard deviation of the scores from run to run
    moved: int  # questions whose verdict is not the same in all runs
    verdicts: tuple[Conclusion, ...]  # of each later run against the first: same, or cannot tell
    questions: tuple[RepeatedQuestion, ...]  # by id


def repeats(runs: Sequence[ScoredRun]) -> Repeats:
    """Mean and spread of some runs, and of each question in all of them. Raises DataError for runs that do
    not have the same questions."""
    ids = sorted(runs[0].values)
    for run in runs[1:]:
        if sorted(run.values) != ids:
            raise DataError(
                f"{run.name}: expected the questions of {runs[0].name}: a repeat has the same ones"
            )
    leads = [measures_of(r.kind)[0].name for r in runs]  # what is repeated
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
