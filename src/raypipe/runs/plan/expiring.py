"""Stages that ask a knowledge graph whose replies expire, stages that search, and those that depend on them.

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


def behind_graph(recipe: Recipe) -> frozenset[str]:
    """The stages that may ask something else once a reply of a graph does not hold any more: those that ask
    it, and those that read what they wrote."""
    return _behind(recipe, {s.name for s, _ in asking(recipe)})


def behind_index(recipe: Recipe) -> frozenset[str]:
    """The stages that may ask something else once a source is there that was not: those that search or read
    passages, and those that read what they wrote."""
    searching = (s.name for s in recipe.question if any(r.startswith("index.") for r in s.step.reads()))
    return _behind(recipe, set(searching))


def _behind(recipe: Recipe, found: set[str]) -> frozenset[str]:
    """These stages, and those that read what they wrote."""
    written = set[str]()
    for stage in recipe.question:
        reads = stage.step.reads() | stage.gate_reads()
        if stage.name in found or not written.isdisjoint(reads):
            found.add(stage.name)
            written |= stage.step.writes()
    return frozenset(found)
