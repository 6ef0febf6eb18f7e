"""What stages are likely to ask where no earlier run says: their own bounds, at what the sources look like.

A bound of a step follows from how far the ranking may have grown. Here it gets how far it is likely to grow:
no further than a question's sources have passages, and with passages of as many sentences as the sample has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from raypipe.core.protocols import Bound, Reach, Step
from raypipe.core.records import Question
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import bound_of
from raypipe.runs.plan.costs import ExpectedCalls


class LikelyCalls:
    """What the stages of the question half are likely to ask; worked out when it is first asked."""

    def __init__(self, recipe: Recipe, scope: Callable[[Question], Reach | None]) -> None:
        """`scope`: how far the ranking of a question can grow, about; None where nothing says."""
        self._recipe, self._scope = recipe, scope
        self._todo: Sequence[Question] = ()
        self._bounds: dict[str, dict[str, Bound]] | None = None  # stage -> question id

    def about(self, questions: Sequence[Question]) -> None:
        """Sets the questions that it is asked about."""
        self._todo, self._bounds = questions, None

    def of(self, stage: Stage[Step], most: Mapping[str, float]) -> ExpectedCalls | None:
        """Calls about some questions, each at `most` (by id): a range, from 0 where a gate decides. None
        where nothing says."""
        if self._bounds is None:
            self._bounds = self._expected()
        bounds = self._bounds.get(stage.name, {})
        if not most or not most.keys() <= bounds.keys():
            return None
        some = [(bounds[i], n) for i, n in most.items()]
        calls = sum(min(_likely(b), n) for b, n in some) + max(b.shared for b, _ in some)
        if math.isinf(calls):
            return None
        return ExpectedCalls((0 if stage.when else round(calls), round(calls)), 0)

    def _expected(self) -> dict[str, dict[str, Bound]]:
        found: dict[str, dict[str, Bound]] = {s.name: {} for s in self._recipe.question}
        for question in self._todo:
            if (scope := self._scope(question)) is None:
                continue
            reach = replace(scope, hits=0, order=0)
            for stage in self._recipe.question:
                bound = bound_of(stage.step, question, reach)
                found[stage.name][question.id] = bound
                hits, order = (min(a, scope.hits) for a in (bound.reach.hits, bound.reach.order))
                reach = replace(bound.reach, hits=hits, order=order)
        return found


def _likely(bound: Bound) -> float:
    return bound.calls if bound.likely is None else bound.likely
