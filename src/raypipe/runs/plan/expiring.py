"""Stages that ask a knowledge graph whose replies expire, and stages that depend on what can be searched.

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


def behind_index(recipe: Recipe) -> frozenset[str]:
    """The stages that may ask something else once a source is there that was not: those that search or read
    passages, and those that read what they wrote."""
    found, written = set[str](), set[str]()
    for stage in recipe.question:
        reads = stage.step.reads() | stage.gate_reads()
        if any(r.startswith("index.") for r in stage.step.reads()) or not written.isdisjoint(reads):
            found.add(stage.name)
            written |= stage.step.writes()
    return frozenset(found)
