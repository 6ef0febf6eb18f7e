"""Recipes made of recipes: the half that ranks passages, and one with a step of another in place of its
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Step
from raypipe.recipes.read_recipe import checked
from raypipe.recipes.recipe import Recipe, S, Stage

RANKING = ("order", "hits", "citations")
"""What a step that ranks writes, or the begin of it."""


def ranking_of(recipe: Recipe) -> Recipe:
    """What `rank` and `/v1/retrieve` run: the steps that rank, and those whose replies they read, without the
    steps that only answer.

    Every question is ranked, also one that another reply would keep from the steps that rank. Raises
    ConfError for a recipe that ranks nothing.
    """
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


def swapped(recipe: Recipe, name: str, other: Recipe) -> Recipe:
    """The recipe with its stage `name` as `other` has it. Raises ConfError where one of them has no such
    stage, and for a recipe whose steps do not fit together then."""
    for r in (recipe, other):
        known = [s.name for s in (*r.corpus, *r.question)]
        if name not in known:
            raise ConfError(f"--swap {name}: recipe {r.name!r} has no such step; {did_you_mean(name, known)}")
    label = f"{name}@{other.name}"
    made = replace(
        recipe,
        name=f"{recipe.name}+{label}",
        corpus=_with(recipe.corpus, name, other.corpus),
        question=_with(recipe.question, name, other.question),
        file=f"{recipe.file}+{name}@{other.file}",
    )
    return checked(made, Where(f"{recipe.name} with {label}"))


def _with(stages: Sequence[Stage[S]], name: str, others: Sequence[Stage[S]]) -> tuple[Stage[S], ...]:
    found = {s.name: s for s in others}
    return tuple(found.get(name, s) if s.name == name else s for s in stages)
