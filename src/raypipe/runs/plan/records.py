"""The records of a plan: what each step may have to do, and what is to be ingested first; and bounds: what
steps may ask and keep at most.

Bounds are pure functions of what steps say of themselves (`core.protocols.Bound`) and of sizes, for what
cannot be known before a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Literal

import numpy as np

from raypipe.core.llm import TokenPrice
from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Reach, Step
from raypipe.core.records import Gold, Question, Source
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import bound_of, corpus_bound_of, models_of, requested_by, table_of
from raypipe.runs.pipeline.recipe_tables import AnnState
from raypipe.runs.run_parts import Estimate
from raypipe.runs.stage_records import Difference
from raypipe.store.memo.memo import ENTRY_BYTES, REPLY_BYTES

KEY_BYTES = 40  # of a cached value: its digest and its place; spans and source of a chunk take as much
CHAR_BYTES = 4  # of a token of a reply, about
TOKEN_CHARS = 128  # of a token of a reply, at most: vocabularies have runs of this many blanks


@dataclass(frozen=True, slots=True)
class StageBound:
    """A question stage, and the most that it does with each of some questions."""

    stage: Stage[Step]
    before: Reach  # of the ranking, before the stage
    each: Bound  # the largest of all questions
    calls: float  # of all questions together


def stage_bounds(recipe: Recipe, questions: Iterable[Question], reach: Reach) -> list[StageBound]:
    """The question stages in order. `reach`: before the first of them."""
    questions = list(questions)
    found: list[StageBound] = []
    for stage in recipe.question:
        bounds = [bound_of(stage.step, q, reach) for q in questions]
        each = _largest(bounds) if bounds else Bound(0, reach, "never")
        found.append(StageBound(stage, reach, each, sum(b.calls for b in bounds)))
        reach = _further(reach, each.reach) if stage.when else each.reach
    return found


def _largest(bounds: list[Bound]) -> Bound:
    reach = bounds[0].reach
    for b in bounds:
        if b.reach != reach:
            reach = _further(reach, b.reach)
    numbers = ("calls", "tokens", "reply_tokens", "prompt_tokens", "replies", "all_tokens", "dim")
    return Bound(
        reach=reach,
        faults=max((b.faults for b in bounds), key=("never", "asking", "any").index),
        from_question=all(b.from_question for b in bounds),
        **{name: max(getattr(b, name) for b in bounds) for name in numbers},
    )


def _further(a: Reach, b: Reach) -> Reach:
    return Reach(*map(max, astuple(a), astuple(b)))


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
            self._add(recipe, int(n))

    def _add(self, recipe: Recipe, chars: int) -> None:
        row, rows, chunks = CorpusBound(1, chars), 1.0, 0.0
        for stage in recipe.corpus:
            made = corpus_bound_of(stage.step, row.chars)
            self._calls[stage.name].append(times(rows, made.calls))
            if table_of(stage.step) == "vectors":
                continue
            row, rows = made, times(rows, made.rows)
            if table_of(stage.step) == "passages":
                chunks, self.longest = rows, max(self.longest, row.chars)
        self._chunks.append(chunks)

    def calls(self, stage: str, mask: np.ndarray) -> float:
        """Calls of a stage, of the sources where `mask` ((sources,) bool) is true."""
        return self._total(mask, self._calls[stage])

    @property
    def chunks(self) -> float:
        return self._total(np.ones(len(self._length), bool), self._chunks)

    def _total(self, mask: np.ndarray, each: list[float]) -> float:
        counts = np.bincount(self._length[mask], minlength=len(each)).tolist()
        return sum(times(n, one) for n, one in zip(counts, each, strict=True))


def times(count: float, each: float) -> float:
    """The product, where nothing of what is not known (math.inf) is nothing.

    >>> times(0, math.inf), times(2, math.inf), times(2, 3)
    (0, inf, 6)
    """
    return count * each if count and each else 0


def may_fault(bound: Bound, calls: float) -> bool:
    """Whether a stage can put a fault on a question if it makes `calls` calls."""
    return bound.faults == "any" or (bound.faults == "asking" and calls > 0)


def reply_calls(bound: Bound, calls: float, questions: float) -> float:
    """Of `calls` calls of a step about that many questions, those of a language model at most."""
    return min(calls, times(questions, bound.replies)) if bound.tokens else 0


def tokens_of(bound: Bound, calls: float, questions: float) -> float:
    """Tokens of `calls` calls of a step about that many questions, at most."""
    each = times(reply_calls(bound, calls, questions), bound.tokens)
    return min(each, times(questions, bound.all_tokens)) if each else 0


def likely_tokens(bound: Bound, low: float, high: float, questions: float) -> tuple[float, float]:
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


def kept_bytes(step: Step | CorpusStep, bound: Bound, calls: float) -> float:
    """Bytes that `calls` calls of a step take at most in the memory of the process that makes them."""
    if requested_by(step):  # replies are as long as a server likes
        return math.inf if calls else 0
    if bound.reply_tokens:
        return times(calls, ENTRY_BYTES + REPLY_BYTES + bound.reply_tokens * TOKEN_CHARS)
    return times(calls, ENTRY_BYTES + 4 * max((m.dim for m in models_of(step)), default=0) + 4)


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
    cost: Estimate | None = None  # of all steps together (`costs.priced`); None: it was not worked out
    unpriced: tuple[str, ...] = ()  # what has no price, so is not in `cost.usd`
    changed: tuple[Difference, ...] = ()  # what differs in the recipe since the last run of the store
    ann: tuple[AnnState, ...] = ()  # approximate indexes that the recipe searches, which `ann` builds
    twice: int = (
        0  # chats that engines are asked again, alone, at most (`runs.plan.planner`); the steps have them not
    )

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
    some: Mapping[str, Source] = field(default_factory=dict)  # a few of them whole: `expected_corpus.Sampler`
    golds: tuple[Gold, ...] | None = None  # of the files' questions; None: the store has them
