"""The records of a plan: what each step may have to do, and what is to be ingested first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raypipe.core.llm import TokenPrice
from raypipe.core.records import Gold, Source
from raypipe.runs.pipeline.recipe_tables import AnnState
from raypipe.runs.plan.stage_bounds import times
from raypipe.runs.run_parts import Estimate
from raypipe.runs.stage_records import Difference

Range = tuple[float, float]
TokenSplit = tuple[float, float, float]
"""Tokens of a call: of its prompt, of that found in the prefix cache, of its reply."""


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """How many calls a step is likely to make, where its plan has no more than an upper bound."""

    calls: tuple[int, int]
    runs: int  # finished runs that say so; 0: a sample of the sources does


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step may take."""

    seconds: Range | None  # of all processes together, without loading models; None: no earlier run says
    tokens: tuple[float, float]  # of prompts and replies of language models; math.inf: not known
    nbytes: tuple[float, float]  # that the store grows by, about, before compression; texts not counted
    calls: Range = (0.0, 0.0)  # that this is the cost of
    splits: tuple[TokenSplit, ...] = ()  # tokens of a call, of each earlier run; none: no run says

    def usd(self, price: TokenPrice) -> Range:
        """US dollars of the tokens; math.inf: not known."""
        if not self.splits:
            return 0.0, times(self.tokens[1], price.dearest())
        each = [price.usd(*split) for split in self.splits]
        return times(self.calls[0], min(each)), times(self.calls[1], max(each))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step may have to do."""

    step: str  # its name in the recipe
    half: Literal["corpus", "question"]  # of the recipe: whether its rows come from pages or are questions
    rows: float  # in all: sources; chunks, for embed; questions; math.inf: not known
    cached: int  # rows for which nothing is asked
    max_calls: float  # calls; for parse and split: sources to work on; math.inf: not known
    exact: bool  # False: max_calls is an upper bound
    reasons: Mapping[str, float]
    """row, evidence, model, prompt, parameter, version, upstream, expired, lost -> calls; they add up"""
    expected_calls: ExpectedCalls | None  # None: `exact`, or nothing says
    cost: Cost

    @property
    def likely(self) -> tuple[int, int] | None:
        """The fewest and the most calls that it is likely to make; None: nothing says."""
        if self.expected_calls:
            return self.expected_calls.calls
        sure = (self.exact or self.max_calls == 0) and not math.isinf(self.max_calls)
        return (int(self.max_calls),) * 2 if sure else None


def _known(number: float) -> int | None:
    """A whole number; None: it is not known."""
    return None if math.isinf(number) else int(number)


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """What a model that judges may be asked. Bounds: how many answers a rule leaves open is not known before
    there are answers."""

    model: str  # its name in models.yaml
    max_calls: int  # one for each truth of a question, or one for each question, as the rule has it
    max_tokens: int  # of these, prompts and replies


@dataclass(frozen=True, slots=True)
class Plan:
    """What an eval may have to do."""

    steps: tuple[StepPlan, ...]  # corpus steps, then question steps, in recipe order
    judge: JudgePlan | None = None  # None: no model judges
    cost: Estimate | None = None  # of all steps together (`money.priced`); None: it was not worked out
    unpriced: tuple[str, ...] = ()  # what has no price, so is not in `cost.usd`
    changed: tuple[Difference, ...] = ()  # what differs in the recipe since the last run of the store
    ann: tuple[AnnState, ...] = ()  # approximate indexes that the recipe searches, which `ann` builds
    twice: int = (
        0  # chats that engines are asked again, alone, at most (`runs.flips`); the steps have them not
    )

    def planned(self) -> dict[str, int | None]:
        """Step -> calls that may be made; None where that is not known."""
        return {s.step: _known(s.max_calls) for s in self.steps}

    def bytes_at_least(self) -> int:
        """That the store will grow by, whatever the texts are: nothing that is only likely."""
        return int(sum(s.cost.nbytes[0] for s in self.steps if s.exact))


@dataclass(frozen=True, slots=True)
class NewSources:
    """Sources that are to be ingested: what is known of them before they are in the store."""

    kinds: Mapping[str, str] = field(default_factory=dict)  # source id -> kind
    chars: Mapping[str, int] = field(default_factory=dict)  # source id -> characters
    some: Mapping[str, Source] = field(default_factory=dict)  # a few of them whole: `sample.Sampler`
    golds: tuple[Gold, ...] | None = None  # of the files' questions; None: the store has them
