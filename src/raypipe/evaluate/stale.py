"""Answers that rest on a knowledge graph whose replies may have grown old: they are to do again.

Replies of a domain with a refresh period hold for that period (`GraphRef.refresh`). What holds still is
remembered, so working such an answer out again asks the graph for what is too old, and a model only where
that changed its prompt. Knows recipes and stored answers; asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from raypipe.pipeline import Pipeline
from raypipe.recipe import Recipe
from raypipe.records import Question
from raypipe.steps.lookup import Lookup
from raypipe.work import answer_key


def forget_old(pipeline: Pipeline, questions: Iterable[Question]) -> list[str]:
    """Makes the answers to do that rest on a graph's replies which do not hold for ever; their question ids.

    A row counts by the domain that the recipe's `lookup` is told; without one, every row of the recipe does.
    """
    asked = [q for q in questions if changing(pipeline.recipe)]
    snapshot, recipe = pipeline.snapshot(), pipeline.recipe.digest()
    keys = {
        answer_key(recipe, before, snapshot): before.id
        for before, answered in zip(asked, pipeline.answers(asked), strict=True)
        if answered.outcome and _may_be_old(pipeline.recipe, answered)
    }
    pipeline.store.forget("answers", "key", list(keys))
    return list(keys.values())


def changing(recipe: Recipe) -> list[Lookup]:
    """Its lookups in a graph some of whose replies do not hold for ever."""
    return [s.step for s in recipe.question if isinstance(s.step, Lookup) and s.step.graph.refresh]


def _may_be_old(recipe: Recipe, question: Question) -> bool:
    return any(
        step.domain is None or question.replies[step.domain].label in step.graph.refresh
        for step in changing(recipe)
    )
