"""Which scored questions of a run a fit of its recipe has seen. Scores of these say too much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raypipe.metrics.kinds import DataKind
from raypipe.metrics.kinds.contract import summary_of
from raypipe.recipes.fits import fits_of, has_seen
from raypipe.recipes.recipe import Recipe
from raypipe.report.report import EvalReport, FitLine


def marked_by_fits(
    report: EvalReport, recipe: Recipe, kind: DataKind, texts: Mapping[str, str]
) -> EvalReport:
    """The report with a line for each fit, and the leading measure over what no fit has seen. `texts`:
    question id -> question, of those that have a gold."""
    fits = fits_of(recipe)
    lines = tuple(
        FitLine(
            step, on.data, on.split, on.metric, on.recipe, on.n or None,
            sum(on.has_seen(t) for t in texts.values()) if on.seen else None, len(texts),
        )
        for step, on in fits.items()
    )  # fmt: skip
    unseen = [q for q, t in texts.items() if not has_seen(fits.values(), t)]
    if len(unseen) == len(texts):
        return replace(report, fits=lines)
    rest = summary_of(kind, report.scores.lead, report.scores.values, unseen)
    return replace(report, fits=lines, unseen=rest)
