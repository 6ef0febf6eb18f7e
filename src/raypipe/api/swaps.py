"""A recipe with steps of other recipes in the place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raypipe.api.session import Named, Session
from raypipe.core.errors import ConfError
from raypipe.recipes.recipe import Recipe


def swap_steps(
    recipe: Named, swaps: Sequence[str], data: Sequence[str | Path] = (), session: Session | None = None
) -> Recipe:
    """The recipe with some steps of others: each of `swaps` is STEP=RECIPE, such as `rerank=tuned`.

    `data`: where its graphs may lie. Raises ConfError for what is no swap, for a step that one of the recipes
    does not have, and for steps that do not fit together.
    """
    from raypipe.recipes.swap import swapped

    session = session or Session()
    found = session.recipe(recipe, data)
    theirs = replace(session, sets=())  # fields are set in the recipe itself, not in what it borrows from
    for text in swaps:
        step, sign, other = text.partition("=")
        if not (step and sign and other):
            raise ConfError(f"--swap {text!r}: expected STEP=RECIPE, such as rerank=tuned")
        found = swapped(found, step.strip(), theirs.recipe(other.strip(), data))
    return found
