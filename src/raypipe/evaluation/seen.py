"""Which scored questions of a run a fit of its recipe has seen. Scores of these say too much."""

from __future__ import annotations

from collections.abc import Mapping

from raypipe.metrics.kinds import DataKind, RunScores
from raypipe.metrics.kinds.contract import MeasureSummary, summary_of
from raypipe.recipes.fits import fits_of, has_seen
from raypipe.recipes.recipe import Recipe
from raypipe.report.report import FitLine


def fit_lines(recipe: Recipe, texts: Mapping[str, str]) -> tuple[FitLine, ...]:
    """A line for each fit of a recipe. `texts`: question id -> question, of those that have a gold."""
    return tuple(
        FitLine(
            step, on.data, on.split, on.metric, on.recipe, on.n or None,
            sum(on.has_seen(t) for t in texts.values()) if on.seen else None, len(texts),
        )
        for step, on in fits_of(recipe).items()
    )  # fmt: skip


def unseen_summary(
    recipe: Recipe, kind: DataKind, scores: RunScores, texts: Mapping[str, str]
) -> MeasureSummary | None:
    """The leading measure over what no fit of the recipe has seen; None: they have seen nothing of it."""
    fits = fits_of(recipe).values()
    unseen = [q for q, t in texts.items() if not has_seen(fits, t)]
    if len(unseen) == len(texts):
        return None
    return summary_of(kind, scores.lead, scores.values, unseen)
