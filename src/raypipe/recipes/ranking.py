"""The half of a recipe that ranks passages: what `rank` and `/v1/retrieve` run."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from raypipe.core.errors import ConfError
from raypipe.core.protocols import Step
from raypipe.recipes.recipe import Recipe, Stage

RANKING = ("order", "hits", "citations")
"""What a step that ranks writes, or the begin of it."""


def ranking_of(recipe: Recipe) -> Recipe:
    """The steps that rank, and those whose replies they read, without the steps that only answer.

    Every question is ranked, also one that another reply would keep from the steps that rank.
    Raises ConfError for a recipe that ranks nothing."""
    needed: set[str] = set()
    kept: list[Stage[Step]] = []
    for stage in reversed(recipe.question):
        writes = stage.step.writes()
        ranks = any(w.startswith(RANKING) for w in writes)
        if not ranks and needed.isdisjoint(writes):
            continue
        needed |= stage.step.reads()
        if not ranks:
            needed |= stage.gate_reads()
        kept.insert(0, stage)
    if not any(w.startswith(RANKING) for s in kept for w in s.step.writes()):
        raise ConfError(f"recipe {recipe.name!r} has no step that ranks passages")
    said = {w for s in kept for w in s.step.writes()}
    ungated = []
    for stage in kept:  # with the gates alone whose replies are still made
        when = {r: x for r, x in stage.when.items() if replace(stage, when={r: x}).gate_reads() <= said}
        ungated.append(replace(stage, when=MappingProxyType(when)))
    return replace(recipe, question=tuple(ungated))
