"""Records of a plan: the work that each step may do, and the sources to ingest first; and upper bounds.

Bounds are pure functions of sizes and of `core.protocols.Bound`, and hold before any text is read. Expected
calls and costs are ranges: estimates, not bounds. An unknown number is math.inf in a bound, else None.
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
"""Tokens of a call: of its prompt, of the prompt's part in the prefix cache, of its reply."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated cost of a step."""

    seconds: Range | None  # sum over all processes, without loading models; None: not measured
    tokens: Range  # tokens of prompts and replies of language models; math.inf: not known
    nbytes: Range  # growth of the store before compression, without texts; approximate
    calls: Range = (0.0, 0.0)  # expected calls, which the other numbers are computed from
    split: TokenSplit | None = None  # tokens of a call in the last run that made some; None: no run did

    def usd(self, price: TokenPrice) -> Range:
        """Returns the price of the tokens in US dollars; math.inf if not known."""
        if self.split is None:
            return times(self.tokens[0], min(price.each())), times(self.tokens[1], max(price.each()))
        each = price.usd(*self.split)
        return times(self.calls[0], each), times(self.calls[1], each)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Planned work of one step."""

    step: str  # its name in the recipe
    half: Literal["corpus", "question"]  # half of the recipe: rows are sources or chunks, or questions
    rows: float  # all rows: sources, chunks (for embed) or questions; math.inf: not known
    cached: int  # rows that need no call
    max_calls: float  # calls; for parse and split: sources to process; math.inf: not known
    exact: bool  # False: max_calls is an upper bound
    reasons: Mapping[str, float]
    """Reason -> calls, which add up to max_calls. row: the last run did not have the row. kept: it kept an
    earlier answer. evidence: other sources are missing. model, prompt, parameter, version, upstream: the
    recipe differs (`record.reason`). expired, lost: a cached value."""
    expected: tuple[int, int] | None  # likely calls, fewest and most; None: not known
    cost: Cost


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """Upper bounds of a judge model's calls. They assume that the scoring rule leaves every answer open."""

    model: str  # its name in models.yaml
    max_calls: int  # one per truth of a question, or one per question, depending on the rule
    max_tokens: int  # tokens of these calls, of prompts and replies


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned work of an eval."""

    steps: tuple[StepPlan, ...]  # corpus steps, then question steps, in recipe order
    judge: JudgePlan | None = None  # None: no model judges
    cost: Estimate | None = None  # cost of all steps and the judge (`costs.priced`); None: not computed
    unpriced: tuple[str, ...] = ()  # parts without a price, so not in `cost.usd`
    changed: tuple[Difference, ...] = ()  # differences of the recipe from the last run of the store
    adopted: tuple[str, ...] = ()  # a sentence for each model of the recipe that counts as another
    ann: tuple[AnnState, ...] = ()  # approximate indexes that the recipe searches, built by the command `ann`
    twice: int = 0
    """Most chats that engines get a second time, alone (`runs.plan.planner`); not counted in the steps."""

    def planned(self) -> dict[str, int | None]:
        """Maps each step to its call limit; None if not known."""
        return {s.step: None if math.isinf(s.max_calls) else int(s.max_calls) for s in self.steps}

    def bytes_at_least(self) -> int:
        """Returns the least bytes that the store grows by. Only steps with exact counts are included."""
        return int(sum(s.cost.nbytes[0] for s in self.steps if s.exact))


@dataclass(frozen=True, slots=True)
class NewSources:
    """Sources to be ingested: their kinds and sizes, a sample of them, and golds of the same files."""

    kinds: Mapping[str, str] = field(default_factory=dict)  # source id -> kind
    chars: Mapping[str, int] = field(default_factory=dict)  # source id -> characters
    some: Mapping[str, Source] = field(default_factory=dict)  # a sample of whole sources: `sample.Sampler`
    golds: tuple[Gold, ...] | None = None  # golds of the questions in the files; None: the store has them
    gone: tuple[str, ...] = ()  # ids of stored sources to be removed

    def joined(self, other: NewSources) -> NewSources:
        """Returns the sources of both, with the golds of `other`."""
        kinds, chars = {**self.kinds, **other.kinds}, {**self.chars, **other.chars}
        return NewSources(kinds, chars, {**self.some, **other.some}, other.golds, self.gone + other.gone)


KEY_BYTES = 40  # bytes of a cached value's digest and place; a chunk's spans and source take as many
CHAR_BYTES = 4  # approximate bytes per token of a reply


def stage_bounds(
    recipe: Recipe, questions: Sequence[Question], reach: Reach, scope: Mapping[str, Reach] | None = None
) -> Iterator[tuple[Stage[Step], dict[str, Bound]]]:
    """Yields each question stage with question id -> bound on its work. `reach`: most passages of a question
    before the first stage. `scope`: question id -> most passages that it can have at all; gates (conditions
    of stages) are then assumed to admit all rows. Without a scope, a gate may keep a row out, so the larger
    of the passages before and after the stage counts."""
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
    """Returns the calls to embed one chunk, with the call of a language model that writes for it."""
    bound = corpus_bound_of(step, 0.0)
    return int(bound.calls) if bound.replies else 1


class SourceBounds:
    """Upper bounds of the corpus half's work, computed once for each distinct length of a source."""

    def __init__(self, recipe: Recipe, chars: np.ndarray) -> None:
        """Computes the bounds. `chars`: (sources,) integers."""
        lengths = np.unique(chars)
        self._length = np.searchsorted(lengths, chars).astype(np.int32)  # `return_inverse` costs thrice
        self._calls: dict[str, list[float]] = {s.name: [] for s in recipe.corpus}  # calls of models
        self._chunks: list[float] = []
        self.longest = 0.0  # characters of the longest passage, at most
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
        """Returns the calls of a stage for the sources where `mask` ((sources,) bool) is true."""
        return self._total(mask, self._calls[stage])

    def chunks(self, mask: np.ndarray) -> float:
        return self._total(mask, self._chunks)

    def _total(self, mask: np.ndarray, each: list[float]) -> float:
        counts = np.bincount(self._length[mask], minlength=len(each)).tolist()
        return sum(map(times, counts, each))


def times(count: float, each: float) -> float:
    """Multiplies, but 0 times unknown (math.inf) is 0.

    >>> times(0, math.inf), times(2, math.inf), times(2, 3)
    (0, inf, 6)
    """
    return count * each if count and each else 0


def _reply_calls(bound: Bound, calls: float, questions: float) -> float:
    """Returns the most calls to a language model among `calls` calls of a step for `questions` questions."""
    return min(calls, times(questions, bound.replies)) if bound.tokens else 0


def tokens_of(bound: Bound, calls: float, questions: float) -> float:
    """Returns the most tokens of `calls` calls of a step about `questions` questions."""
    tokens = times(_reply_calls(bound, calls, questions), bound.tokens)
    return min(tokens, times(questions, bound.all_tokens)) if tokens else 0


def likely_tokens(bound: Bound, low: float, high: float, questions: float) -> Range:
    """Returns the range of tokens of `low` to `high` calls of a step about `questions` questions. The low end
    counts prompts only, and is 0 if their length is not known. The high end includes full replies."""
    most = tokens_of(bound, high, questions)
    if math.isinf(bound.prompt_tokens):
        return 0.0, most
    least, whole = times(low, bound.prompt_tokens), times(high, bound.prompt_tokens + bound.reply_tokens)
    return min(least, most), min(whole, most)


def stored_bytes(bound: Bound, calls: float, questions: float) -> float:
    """Estimates the bytes that `calls` calls for `questions` questions add to the memo (the cache)."""
    replies = _reply_calls(bound, calls, questions)
    others = calls - replies if calls > replies else 0  # inf - inf is no number
    of_replies = times(replies, KEY_BYTES + CHAR_BYTES * bound.reply_tokens)
    return of_replies + times(others, KEY_BYTES + 4 * (bound.dim or 1))


def embedded_bytes(dim: int, texts: float) -> float:
    """Returns the bytes of `texts` embedded texts, each stored twice: in the memo and in its table."""
    return times(texts, 2 * (KEY_BYTES + 4 * dim))
