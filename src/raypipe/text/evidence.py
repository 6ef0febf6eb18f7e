"""Scores sentences as answers to a question, and the probability that what would be said is right; and finds
the sentence that states a reply which was written from a context. It is found by its words, so it is where
the answer stands, not a proof that a model read it there.

Pure functions over texts, word hashes and scores that others computed. The numbers of `Fitted` come from a
file; `bench/figures/extract.py --fit` makes them. Knows no model and no index.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.core.records import Quote, Span
from raypipe.text.bm25 import lucene_idf
from raypipe.text.candidates import MAX_CHARS, Sentence
from raypipe.text.fitted_on import FittedOn
from raypipe.text.spans import KINDS, STRICT, AskedQuestion, TypedSpan
from raypipe.text.windows import sentences
from raypipe.text.words import analyse

ANALYZER = "stems"

RANKING = (
    "cosine", "maxsim", "overlap", "around", "before", "typed", "rank", "length", "short", "item", "cell",
    "asks",
)  # fmt: skip
"""Features of one sentence: see `ranking_features`."""

ANSWER = (*RANKING, "score", "margin", "timely", *(k for k in KINDS if k != "other"))
"""Features of the best sentence, for the probability that it holds an answer."""

SPAN = (
    "sentence", "overlap", "around", "length", "rest", "choices", "named", "first", "distance",
    *(k for k in KINDS if k != "other"),
)  # fmt: skip
"""Features of its span, for the probability that the span is one."""


@dataclass(frozen=True, slots=True)
class Logistic:
    bias: float
    weights: Mapping[str, float]  # feature -> weight; a feature that is not named weighs nothing

    def probability(self, features: Mapping[str, float]) -> float:
        """0..1"""
        z = self.bias + math.fsum(w * features[f] for f, w in self.weights.items())
        return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


@dataclass(frozen=True, slots=True)
class Fitted:
    """Which sentence is best, and how likely it, its span or a comparison is right."""

    embedder: str  # identity of the embedder's weights (`Model.weights`); "": numbers for any embedder
    rank: Mapping[str, float]  # weights of RANKING
    sentence: Logistic  # over ANSWER
    span: Logistic  # over SPAN
    compared: float  # probability that a comparison which was decided is right, 0..1
    fitted_on: FittedOn

    def __post_init__(self) -> None:
        for name, weights, known in (
            ("rank", self.rank, RANKING),
            ("sentence", self.sentence.weights, ANSWER),
            ("span", self.span.weights, SPAN),
        ):
            if unknown := sorted(set(weights) - set(known)):
                raise ValueError(f"{name}: unknown feature {unknown[0]!r}; known: {', '.join(known)}")
        if not 0 <= self.compared <= 1:
            raise ValueError(f"compared: expected a probability from 0 to 1, found {self.compared}")


UNFITTED: Mapping[str, float] = {"cosine": 0.4, "maxsim": 0.3, "around": 0.3, "typed": 0.1, "asks": -1.0}
"""Weights of `RANKING` where none are fitted. With cosine, MaxSim, overlap and typed alone the best sentence
holds an answer for .64 of NQ's gold passages and .84 of SQuAD's."""


_ASKING = re.compile(
    r"\b(?:who|whom|whose|what|which|when|where|why|how|did|does|do|has|have|had|can|you|me)\b"
)
"""Words of a question that its answer does not repeat."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of the sentences of one question, as far as it needs them."""

    overlap: np.ndarray  # (sentences,) float64: weighted share of the question's words in each, 0..1
    around: np.ndarray  # the same of each with its title, heading and label
    before: np.ndarray  # the same of each with the sentence before it
    marks: tuple[tuple[int, ...], ...]  # per sentence: where words of the question start
    counts: tuple[int, ...]  # words per sentence
    rest: tuple[int, ...]  # of them, those that the question does not have


def words_of(question: str, found: Sequence[Sentence]) -> Words:
    asked, _ = analyse(_ASKING.sub(" ", question.lower()), ANALYZER)
    own = [analyse(s.text, ANALYZER) for s in found]
    hashes = [h for h, _ in own]
    weights = _weights(asked, hashes)

    def with_(others: Iterable[str]) -> np.ndarray:
        more = (analyse(text, ANALYZER)[0] for text in others)
        return overlaps(asked, [np.concatenate(both) for both in zip(hashes, more, strict=True)], weights)

    return Words(
        overlaps(asked, hashes, weights),
        with_(s.around for s in found),
        with_(s.before for s in found),
        tuple(tuple(starts[np.isin(h, asked)].tolist()) for h, starts in own),
        tuple(len(h) for h in hashes),
        tuple(int((~np.isin(h, asked)).sum()) for h in hashes),
    )


def likely(question: str, found: Sequence[Sentence], most: int) -> list[Sentence]:
    """The `most` sentences that share most words with a question, title and heading counted in, in order."""
    if len(found) <= most:
        return list(found)
    words = words_of(question, found)
    best = np.argsort(-(words.overlap + words.around), kind="stable")[:most]
    return [found[i] for i in sorted(best.tolist())]


def _weights(question: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """(distinct words of the question,) float64: the rarer among these sentences, the more."""
    return lucene_idf(len(words), _held(question, words).sum(0))


def _held(question: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """(sentences, distinct words of the question) bool: which sentence has which."""
    terms = np.unique(question)
    return np.array([np.isin(terms, w) for w in words], bool).reshape(len(words), len(terms))


def overlaps(
    question: np.ndarray, words: Sequence[np.ndarray], weights: np.ndarray | None = None
) -> np.ndarray:
    """The weighted share of the question's words in each sentence: (sentences,) float64, 0..1.

    `question` and each of `words` are word hashes, uint64; `weights` those of the question's distinct words,
    by default the more the fewer of these sentences have one."""
    idf = _weights(question, words) if weights is None else weights
    total = float(idf.sum())
    shares: np.ndarray = _held(question, words) @ idf / total if total else np.zeros(len(words))
    return shares


def ranking_features(
    asked: AskedQuestion,
    found: Sequence[Sentence],
    words: Words,
    spans: Sequence[TypedSpan | None],
    cosine: np.ndarray,
    maxsim: np.ndarray,
) -> np.ndarray:
    """(sentences, len(RANKING)) float64: what decides which sentence is best."""
    columns = {
        "cosine": cosine.astype(float),
        "maxsim": maxsim.astype(float),
        "overlap": words.overlap,
        "around": words.around,
        "before": words.before,
        "typed": np.array([s is not None and asked.kind in STRICT for s in spans], float),
        "rank": np.array([1 / (1 + s.rank) for s in found]),
        "length": np.log1p(np.array(words.counts, float)),
        "short": np.array([n < 3 for n in words.counts], float),
        "item": np.array([s.kind == "item" for s in found], float),
        "cell": np.array([s.kind == "cell" for s in found], float),
        "asks": np.array([s.text.endswith("?") for s in found], float),
    }
    return np.stack([columns[name] for name in RANKING], axis=1)


def scores(features: np.ndarray, weights: Mapping[str, float]) -> np.ndarray:
    """Returns how well each sentence answers: (sentences,) float64, from `ranking_features`."""
    result: np.ndarray = features @ np.array([weights.get(name, 0.0) for name in RANKING])
    return result


def answer_features(
    asked: AskedQuestion, features: np.ndarray, ranked: np.ndarray, best: int
) -> dict[str, float]:
    """The features of the probability that the best sentence holds an answer."""
    others = np.delete(ranked, best)
    return {
        **dict(zip(RANKING, features[best].tolist(), strict=True)),
        "score": float(ranked[best]),
        "margin": float(ranked[best] - others.max()) if len(others) else 1.0,
        "timely": float(asked.timely),
        **_kind(asked),
    }


def span_features(
    asked: AskedQuestion, words: Words, best: int, span: TypedSpan, p_sentence: float
) -> dict[str, float]:
    """The features of the probability that a span of the best sentence is an answer."""
    marks = words.marks[best]
    start, end = span.span
    nearest = min((max(start - m, m - end, 0) for m in marks), default=200)
    return {
        "sentence": math.log(max(p_sentence, 1e-6) / max(1 - p_sentence, 1e-6)),
        "overlap": float(words.overlap[best]),
        "around": float(words.around[best]),
        "length": math.log1p(words.counts[best]),
        "rest": math.log1p(words.rest[best]),
        "choices": math.log(span.choices),
        "named": float(span.named),
        "first": float(start < 3),
        "distance": math.log1p(nearest),
        **_kind(asked),
    }


def _kind(asked: AskedQuestion) -> dict[str, float]:
    return {k: float(k == asked.kind) for k in KINDS if k != "other"}


LEAST = 0.5
"""Share of the answer's words, the rarer the heavier, that a sentence must have to state it."""


def cite(answer: str, shown: Sequence[tuple[str, Span, str]]) -> tuple[Quote, ...]:
    """The sentence with most of the answer's words, if it has at least `LEAST` of them, then all of `shown`.

    `shown`: parts of sources as (source id, span, text), in the context's order.

    >>> page = "Velora is a film. Anna Lind directed it."
    >>> [page[slice(*quote.span)] for quote in cite("anna lind", [("s", (0, 40), page)])]
    ['Anna Lind directed it.', 'Velora is a film. Anna Lind directed it.']
    """
    quotes = [Quote(source, span) for source, span, _ in shown]
    found, (said, _) = _sentences(shown), analyse(answer, ANALYZER)
    if found and len(said):
        shares = overlaps(said, [analyse(s.text, ANALYZER)[0] for s in found])
        best = int(np.argmax(shares))
        if shares[best] >= LEAST:
            quotes.insert(0, Quote(found[best].source, found[best].span))
    return tuple(dict.fromkeys(quotes))


def _sentences(shown: Iterable[tuple[str, Span, str]]) -> list[Sentence]:
    """The sentences of what was shown, each once, by source as met and by place.

    Parts of one source that overlap are put together first, so that the end of one does not cut a sentence
    that the next has whole. Equal sentences of several sources count once, where they are met first."""
    by_source: dict[str, list[tuple[Span, str]]] = {}
    for source, span, text in shown:
        by_source.setdefault(source, []).append((span, text))
    found: dict[str, Sentence] = {}
    for source, parts in by_source.items():
        for start, text in _joined(parts):
            for a, b in sentences(text):
                b = min(b, a + MAX_CHARS)
                found.setdefault(text[a:b], Sentence(source, (start + a, start + b), text[a:b]))
    return list(found.values())


def _joined(parts: Iterable[tuple[Span, str]]) -> list[tuple[int, str]]:
    """Start and text of each run of parts that overlap or touch."""
    joined: list[tuple[int, str]] = []
    for (start, end), text in sorted(parts):
        last = joined[-1] if joined else None
        if last is None or start > last[0] + len(last[1]):
            joined.append((start, text))
            continue
        first, so_far = last
        more = text[first + len(so_far) - start :] if end > first + len(so_far) else ""
        joined[-1] = (first, so_far + more)
    return joined
