"""Scores sentences as answers to a question, and the probability that the best one is right.

Pure functions over texts, word hashes and scores that others computed. The numbers of `Fitted` come from a
file; `bench/extract.py --fit` makes them. Knows no model and no index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.core.records import Span
from raypipe.text.sentences import sentences
from raypipe.text.spans import KINDS, Kind, TypedSpan

COSINE, MAXSIM, OVERLAP, TYPED = 0.4, 0.3, 0.3, 0.1
"""What each score weighs, and what a sentence gains by having a span of the kind that is asked for. With
them the best sentence holds an answer for .641 of NQ's passages and .841 of SQuAD's (bench/extract.py);
without the last, .617 and .835. TYPED was chosen on these same questions; the others were not."""

MAX_CHARS = 1000
"""A longer sentence is cut there: a table or menu that came out as one (the cap of CRAG's baseline)."""

FEATURES = (
    "cosine", "maxsim", "overlap", "margin", "length", "typed", "choices", "named",
    *(k for k in KINDS if k != "other"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Where fitted numbers come from. A score on the same split is marked."""

    data: str  # name and digest of the data
    split: str  # which rows of it
    metric: str  # what was fitted, and how well it does there


@dataclass(frozen=True, slots=True)
class Fitted:
    """A logistic regression: the probability that the best sentence, or its span, is a right answer."""

    bias: float
    weights: Mapping[str, float]  # feature -> weight; a feature that is not named weighs nothing
    fitted_on: FittedOn

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(FEATURES))
        if unknown:
            raise ValueError(f"weights: unknown feature {unknown[0]!r}; known: {', '.join(FEATURES)}")

    def probability(self, features: Mapping[str, float]) -> float:
        """0..1, for the features of one question (`features`)."""
        z = self.bias + math.fsum(w * features[f] for f, w in self.weights.items())
        return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A candidate sentence."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # the text of that span


def candidates(passages: Iterable[tuple[str, Span, str]], most: int | None = None) -> list[Sentence]:
    """The sentences of some passages (source, span, text), each once, by source as met and by place; of each
    passage the first `most`.

    Passages of one source that overlap are put together first, so that the end of one does not cut a sentence
    that the next has whole; of two, the first 2 * `most` are taken. Equal sentences of several sources count
    once, where they are met first.
    """
    by_source: dict[str, list[tuple[Span, str]]] = {}
    for source, span, text in passages:
        by_source.setdefault(source, []).append((span, text))
    found: dict[str, Sentence] = {}
    for source, parts in by_source.items():
        for start, text, count in _joined(parts):
            for a, b in sentences(text)[: None if most is None else most * count]:
                b = min(b, a + MAX_CHARS)
                found.setdefault(text[a:b], Sentence(source, (start + a, start + b), text[a:b]))
    return list(found.values())


def _joined(parts: Iterable[tuple[Span, str]]) -> list[tuple[int, str, int]]:
    """Start, text and number of passages of each run of passages that overlap or touch."""
    joined: list[tuple[int, str, int]] = []
    for (start, end), text in sorted(parts):
        last = joined[-1] if joined else None
        if last is None or start > last[0] + len(last[1]):
            joined.append((start, text, 1))
            continue
        first, so_far, count = last
        more = text[first + len(so_far) - start :] if end > first + len(so_far) else ""
        joined[-1] = (first, so_far + more, count + 1)
    return joined


def overlaps(question: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """The weighted share of the question's words in each sentence: (sentences,) float64, 0..1.

    A word weighs the more the fewer of these sentences have it. `question` and each of `words` are word
    hashes, uint64."""
    terms = np.unique(question)
    has = np.array([np.isin(terms, w) for w in words], bool).reshape(len(words), len(terms))
    found = has.sum(0)
    idf = np.log1p((len(words) - found + 0.5) / (found + 0.5))
    total = float(idf.sum())
    return has @ idf / total if total else np.zeros(len(words))


def combined(cosine: np.ndarray, maxsim: np.ndarray, overlap: np.ndarray, typed: np.ndarray) -> np.ndarray:
    """How well each sentence answers: (sentences,) float64.

    From three scores and whether it has a span of the kind that the question asks for, all of that shape."""
    return COSINE * cosine.astype(float) + MAXSIM * maxsim.astype(float) + OVERLAP * overlap + TYPED * typed


def features(
    scores: np.ndarray, best: int, parts: Mapping[str, float], words: int, kind: Kind, typed: TypedSpan | None
) -> dict[str, float]:
    """The features of the probability that the best sentence answers.

    The lead of the best of all scores (candidates,), the parts of its score (cosine, maxsim, overlap), its
    number of words, and the kind asked for and found in it."""
    others = np.delete(scores, best)
    values = {
        **parts,
        "margin": float(scores[best] - others.max()) if len(others) else float(scores[best]),
        "length": math.log1p(words),
        "typed": float(typed is not None),
        "choices": math.log(typed.choices) if typed else 0.0,
        "named": float(typed is not None and typed.named),
    }
    return values | {k: float(k == kind) for k in KINDS if k != "other"}
