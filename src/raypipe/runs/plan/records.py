"""The records of a plan: what each step may have to do, and what is to be ingested first; and the most that
steps ask and keep, before anything is known of the texts but their sizes.

Bounds are pure functions of what steps say of themselves (`core.protocols.Bound`) and of sizes. Expected
calls and costs are ranges: estimates, not bounds. What is not known stays so: math.inf in a bound, None
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import numpy as np

from raypipe.core.llm import TokenPrice
from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Reach, Step
from raypipe.core.records import Gold, Question, Source
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import bound_of, corpus_bound_of, table_of
from raypipe.runs.pipeline.recipe_tables import AnnState
from raypipe.runs.run_parts import Estimate
from raypipe.runs.stage_records import Difference

Range = tuple[float, float]

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


KEY_BYTES = 40  # of a cached value: its digest and its place; spans and source of a chunk take as much
CHAR_BYTES = 4  # of a token of a reply, about


def stage_bounds(
    recipe: Recipe, questions: Sequence[Question], reach: Reach, scope: Mapping[str, Reach] | None = None
) -> Iterator[tuple[Stage[Step], dict[str, Bound]]]:
    """Each question stage, and question id -> what it does with it. `reach` is that of a ranking before the
    first. With `scope`, question id -> how far its ranking can grow, rankings are as long as that lets them,
    and gates let all in."""
    asked = {q.id: q for q in questions}
    before = dict.fromkeys(asked, reach)
    if scope is not None:
        before = {id: replace(scope[id], hits=reach.hits, order=reach.order) for id in asked}
    for stage in recipe.question:
        bounds = {id: bound_of(stage.step, q, before[id]) for id, q in asked.items()}
        yield stage, bounds
        for id, bound in bounds.items():
            after = bound.reach
            if scope is not None:
                most = scope[id]
                after = replace(after, hits=min(after.hits, most.hits), order=min(after.order, most.order))
            elif stage.when:
                after = Reach(*map(max, astuple(before[id]), astuple(after)))
            before[id] = after


def calls_each(step: CorpusStep) -> int:
    """Calls that a chunk takes to be embedded: those of a language model that writes for it, too."""
    bound = corpus_bound_of(step, 0.0)
    return int(bound.calls) if bound.replies else 1


class SourceBounds:
    """The most that the corpus half does with many sources: one bound for each number of characters."""

    def __init__(self, recipe: Recipe, chars: np.ndarray) -> None:
        """`chars`: (sources,) int32."""
        lengths = np.unique(chars)
        self._length = np.searchsorted(lengths, chars).astype(np.int32)  # with the inverse of `unique` thrice
        self._calls: dict[str, list[float]] = {s.name: [] for s in recipe.corpus}  # of models
        self._chunks: list[float] = []
        self.longest = 0.0  # characters of the longest passage
        for n in lengths:
            row, rows, of_source = CorpusBound(1, int(n)), 1.0, 0.0
            for stage in recipe.corpus:
                made = corpus_bound_of(stage.step, row.chars)
                self._calls[stage.name].append(times(rows, made.calls))
                if table_of(stage.step) == "vectors":
                    continue
                row, rows = made, times(rows, made.rows)
                if table_of(stage.step) == "passages":
                    of_source, self.longest = rows, max(self.longest, row.chars)
            self._chunks.append(of_source)

    def calls(self, stage: str, mask: np.ndarray) -> float:
        """Calls of a stage, of the sources where `mask` ((sources,) bool) is true."""
        return self._total(mask, self._calls[stage])

    def chunks(self, mask: np.ndarray) -> float:
        return self._total(mask, self._chunks)

    def _total(self, mask: np.ndarray, each: list[float]) -> float:
        counts = np.bincount(self._length[mask], minlength=len(each)).tolist()
        return sum(times(n, one) for n, one in zip(counts, each, strict=True))


def times(count: float, each: float) -> float:
    """The product, where nothing of what is not known (math.inf) is nothing.

    >>> times(0, math.inf), times(2, math.inf), times(2, 3)
    (0, inf, 6)
    """
    return count * each if count and each else 0


def reply_calls(bound: Bound, calls: float, questions: float) -> float:
    """Of `calls` calls of a step about that many questions, those of a language model at most."""
    return min(calls, times(questions, bound.replies)) if bound.tokens else 0


def tokens_of(bound: Bound, calls: float, questions: float) -> float:
    """Tokens of `calls` calls of a step about that many questions, at most."""
    each = times(reply_calls(bound, calls, questions), bound.tokens)
    return min(each, times(questions, bound.all_tokens)) if each else 0


def likely_tokens(bound: Bound, low: float, high: float, questions: float) -> Range:
    """Tokens of `low` to `high` calls of a step about that many questions: of their prompts alone, to those
    of prompts and whole replies. From 0, where nothing says how long its prompts are."""
    most = tokens_of(bound, high, questions)
    if math.isinf(bound.prompt_tokens):
        return 0.0, most
    least, whole = times(low, bound.prompt_tokens), times(high, bound.prompt_tokens + bound.reply_tokens)
    return min(least, most), min(whole, most)


def stored_bytes(bound: Bound, calls: float, questions: float) -> float:
    """Bytes that `calls` calls of a step about that many questions add to the memo, about, before
    compression."""
    replies = reply_calls(bound, calls, questions)
    others = calls - replies if calls > replies else 0
    told = times(replies, KEY_BYTES + CHAR_BYTES * bound.reply_tokens)
    return told + times(others, KEY_BYTES + 4 * (bound.dim or 1))


def embedded_bytes(dim: int, texts: float) -> float:
    """Bytes that `texts` embedded texts add to a store: in the memo, and in the searched copy."""
    return times(texts, 2 * (KEY_BYTES + 4 * dim))
