"""Citations of a reply that was written from a context: the sentence that states it, and the context.

Pure functions over texts; a model is not asked. The sentence is found by its words, so it is where the answer
stands, not a proof that the model read it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypipe.core.records import Quote, Span
from raypipe.text.evidence import Sentence, candidates, overlaps
from raypipe.text.words import analyse

ANALYZER = "stems"
LEAST = 0.5
"""Share of the answer's words, the rarer the heavier, that a sentence must have: with less of them, most of
what is said stands elsewhere."""


def cite(answer: str, shown: Sequence[tuple[str, Span, str]]) -> tuple[Quote, ...]:
    """The sentence with most of the answer's words, if it has at least `LEAST` of them, then all of `shown`.

    `shown`: parts of sources as (source id, span, text), in the context's order.

    >>> page = "Velora is a film. Anna Lind directed it."
    >>> [page[slice(*quote.span)] for quote in cite("anna lind", [("s", (0, 40), page)])]
    ['Anna Lind directed it.', 'Velora is a film. Anna Lind directed it.']
    """
    best = _best(answer, candidates(shown))
    first = () if best is None else (Quote(best.source, best.span),)
    rest = (Quote(source, span) for source, span, _ in shown)
    return tuple(dict.fromkeys((*first, *rest)))


def _best(answer: str, found: Sequence[Sentence]) -> Sentence | None:
    said, _ = analyse(answer, ANALYZER)
    if not found or not len(said):
        return None
    shares = overlaps(said, [analyse(s.text, ANALYZER)[0] for s in found])
    best = int(np.argmax(shares))
    return found[best] if shares[best] >= LEAST else None
