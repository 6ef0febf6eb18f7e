"""Quotes of a reply that was written from a context.

The sentence that states it is found by its words: that is where the answer stands, not a proof that a model
read it there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from raypipe.core.records import Quote, Span
from raypipe.text.bm25 import lucene_idf
from raypipe.text.candidates import MAX_CHARS, Sentence
from raypipe.text.evidence import ANALYZER, held
from raypipe.text.windows import sentences
from raypipe.text.words import analyse

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


def overlaps(question: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """The weighted share of the question's words in each sentence: (sentences,) float64, 0..1.

    `question` and each of `words` are word hashes, uint64; a word weighs the more the fewer of these
    sentences have it."""
    has = held(question, words)
    weights = lucene_idf(len(words), has.sum(0))
    return np.array(has @ weights / max(float(weights.sum()), 1e-9))


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
