"""The same eval several times: how far a score, and the verdict on a question, move by themselves.

Knows scored runs; runs nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from raypipe.core.errors import DataError
from raypipe.evaluation.compare import compare, measures_of
from raypipe.evaluation.scored_run import ScoredRun
from raypipe.metrics.paired import Conclusion


@dataclass(frozen=True, slots=True)
class RepeatedQuestion:
    """One question over all repeats that scored it."""

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
