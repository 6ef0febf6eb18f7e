"""The most that steps ask and keep, before anything is known of the texts but their sizes.

Pure functions of what steps say of themselves (`core.protocols.Bound`) and of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np

from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Reach, Step
from raypipe.core.records import Question
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import bound_of, corpus_bound_of, table_of

Range = tuple[float, float]

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
