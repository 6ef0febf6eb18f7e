"""Stages that ask a knowledge graph whose replies expire.

Knows recipes; sends no request. Which stored answers rest on replies that no longer hold is
`evaluation.expiry`'s.
"""

from __future__ import annotations

from raypipe.core.protocols import GraphRef, Step
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import graphs_of


def asking(recipe: Recipe) -> list[tuple[Stage[Step], GraphRef]]:
    """The stages that ask such a graph."""
    return [(s, graph) for s in recipe.question for graph in graphs_of(s.step) if graph.refresh]
