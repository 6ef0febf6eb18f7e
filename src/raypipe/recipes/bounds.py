"""Upper bounds on the calls and rows of a step. They come from the step's method `bound`, or from a default.
The records `Bound` and `CorpusBound` are in `core.protocols`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Reach, Step
from raypipe.core.records import Question
from raypipe.recipes.step_contract import asked_models


def bound_of(step: Step, question: Question, reach: Reach) -> Bound:
    """Returns upper bounds on the step's calls and passages for a question. `reach` bounds the question's
    passages before the step. If the step has no method `bound`, its calls are unbounded. Hits and ranking are
    then unbounded, too, if the step writes either of them."""
    bound: Callable[[Question, Reach], Bound] | None = getattr(step, "bound", None)
    if bound is not None:
        return bound(question, reach)
    if not step.writes().isdisjoint({"hits", "order"}):
        reach = replace(reach, hits=math.inf, order=math.inf)
    asked = asked_models(step)
    tokens = math.inf if any(m.kind == "generator" for m in asked) else 0
    dim = max((m.dim for m in asked), default=0)
    return Bound(math.inf, reach, tokens=tokens, reply_tokens=tokens, dim=dim)


def corpus_bound_of(step: CorpusStep, chars: float) -> CorpusBound:
    """Returns upper bounds on the step's calls and rows for a source of `chars` characters. The bounds are
    infinite if the step has no method `bound`, or if the length is unknown (math.inf)."""
    bound: Callable[[float], CorpusBound] | None = getattr(step, "bound", None)
    if bound is None or math.isinf(chars):
        return CorpusBound(math.inf, math.inf, math.inf)
    return bound(chars)


def is_bounded(step: Step | CorpusStep) -> bool:
    return hasattr(step, "bound")
