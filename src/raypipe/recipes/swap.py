"""One step of another recipe in a recipe's place: what of a difference does this step make?

Knows recipes; the result is checked as one that was read from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError
from raypipe.recipes.read_recipe import checked
from raypipe.recipes.recipe import Recipe, S, Stage


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
