"""The records of a plan: what each step may have to do, and what is to be ingested first.

Expected calls and costs are ranges: estimates, not bounds. What is not known stays so: math.inf in a bound,
None elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raypipe.core.llm import TokenPrice
from raypipe.core.records import Gold, Source
from raypipe.runs.pipeline.recipe_tables import AnnState
from raypipe.runs.plan.bounds import Range, times
from raypipe.runs.run_parts import Estimate
from raypipe.runs.stage_records import Difference

TokenSplit = tuple[float, float, float]
"""Tokens of a call: of its prompt, of that found in the prefix cache, of its reply."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step, at most."""

    seconds: Range | None  # of all processes together, without loading models; None: no earlier run says
    tokens: Range  # of prompts and replies of language models; math.inf: not known
    nbytes: Range  # that the store grows by, about, before compression; texts not counted
    calls: Range = (0.0, 0.0)  # that this is the cost of
    split: TokenSplit | None = None  # tokens of a call, by the last run that made some; None: no run says

    def usd(self, price: TokenPrice) -> Range:
        """US dollars of the tokens; math.inf: not known."""
        if self.split is None:
            return 0.0, times(self.tokens[1], price.dearest())
        each = price.usd(*self.split)
        return times(self.calls[0], each), times(self.calls[1], each)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work that one step may have."""

    step: str  # its name in the recipe
    half: Literal["corpus", "question"]  # of the recipe: whether its rows come from pages or are questions
    rows: float  # in all: sources; chunks, for embed; questions; math.inf: not known
    cached: int  # rows for which nothing is asked
    max_calls: float  # calls; for parse and split: sources to work on; math.inf: not known
    exact: bool  # False: max_calls is an upper bound
    reasons: Mapping[str, float]
    """row, kept, evidence, model, prompt, parameter, version, upstream, expired, lost -> calls: a sum"""
    expected: tuple[int, int] | None  # calls, the fewest and the most that are likely; None: nothing says
    cost: Cost


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """The calls that a model that judges may get. Bounds: how many answers a rule leaves open is not known
    before there are answers."""

    model: str  # its name in models.yaml
    max_calls: int  # one for each truth of a question, or one for each question, as the rule has it
    max_tokens: int  # of these, prompts and replies


@dataclass(frozen=True, slots=True)
class Plan:
    """The work that an eval may have."""

    steps: tuple[StepPlan, ...]  # corpus steps, then question steps, in recipe order
    judge: JudgePlan | None = None  # None: no model judges
    cost: Estimate | None = None  # of all steps together (`costs.priced`); None: it was not worked out
    unpriced: tuple[str, ...] = ()  # what has no price, so is not in `cost.usd`
    changed: tuple[Difference, ...] = ()  # what differs in the recipe since the last run of the store
    adopted: tuple[str, ...] = ()  # a sentence for each model of the recipe that counts as another
    ann: tuple[AnnState, ...] = ()  # approximate indexes that the recipe searches, which `ann` builds
    twice: int = 0
    """Chats that engines are asked again, alone, at most (`runs.plan.planner`); the steps have them not."""

    def planned(self) -> dict[str, int | None]:
        """Step -> calls that may be made; None where that is not known."""
        return {s.step: None if math.isinf(s.max_calls) else int(s.max_calls) for s in self.steps}

    def bytes_at_least(self) -> int:
        """That the store will grow by, whatever the texts are: nothing that is only likely."""
        return int(sum(s.cost.nbytes[0] for s in self.steps if s.exact))


@dataclass(frozen=True, slots=True)
class NewSources:
    """Sources that are to be ingested: what is known of them before they are in the store."""

    kinds: Mapping[str, str] = field(default_factory=dict)  # source id -> kind
    chars: Mapping[str, int] = field(default_factory=dict)  # source id -> characters
    some: Mapping[str, Source] = field(default_factory=dict)  # some of them whole: `sample.Sampler`
    golds: tuple[Gold, ...] | None = None  # of the files' questions; None: the store has them
    gone: tuple[str, ...] = ()  # ids of stored sources that are to be taken out
