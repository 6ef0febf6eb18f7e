"""The bound of a step: what the step says of itself, or the default, which is not known."""

from __future__ import annotations

import math
from dataclasses import replace

from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Reach, Step
from raypipe.core.records import Question
from raypipe.recipes.step_contract import RANKING, asked_models


def bound_of(step: Step, question: Question, reach: Reach) -> Bound:
    """What the step's method bound says. By default the calls are not known, nor is the ranking behind a step
    that writes it."""
    bound = getattr(step, "bound", None)
    if bound is not None:
        found: Bound = bound(question, reach)
        return found
    if not step.writes().isdisjoint(RANKING):
        reach = replace(reach, hits=math.inf, order=math.inf)
    asked = asked_models(step)
    tokens = math.inf if any(m.kind == "generator" for m in asked) else 0
    return Bound(
        math.inf, reach, tokens=tokens, reply_tokens=tokens, dim=max((m.dim for m in asked), default=0)
    )


def corpus_bound_of(step: CorpusStep, chars: float) -> CorpusBound:
    """What the step's method bound says. By default, and for a text of unknown length, nothing is known."""
    bound = getattr(step, "bound", None)
    if bound is None or math.isinf(chars):
        return CorpusBound(math.inf, math.inf, math.inf)
    found: CorpusBound = bound(chars)
    return found


def is_bounded(step: Step | CorpusStep) -> bool:
    """Whether the step says what it costs at most."""
    return hasattr(step, "bound")
