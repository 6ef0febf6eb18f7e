"""The paragraphs of a paper that an answer rests on, for scoring. Knows answered questions and the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raypipe.core.protocols import Index
from raypipe.core.records import ABSTAINED, Block, Question, Quote
from raypipe.evaluation.result_table import quotes_of

HEADINGS = ("title", "heading")


async def evidence_paragraphs(index: Index, batch: Sequence[Question]) -> dict[str, tuple[str, ...]]:
    """Question id -> the paragraphs of the best quote of its answer, as the parsed text has them; where the
    answer quotes nothing, of the best passage of the ranking; () of a question without an answer."""
    best = {q.id: place for q in batch if (place := _best(q)) is not None}
    sources = list(dict.fromkeys(p.source for p in best.values()))
    texts = dict(zip(sources, await index.source_texts(sources), strict=True))
    blocks = dict(zip(sources, await index.blocks(sources), strict=True))
    return {
        id: tuple((texts[p.source] or "")[a:b] for a, b in _spans(p, blocks[p.source]))
        for id, p in best.items()
    }


def _best(question: Question) -> Quote | None:
    if question.outcome in ("", "fault", ABSTAINED):
        return None
    if quotes := quotes_of(question):
        return quotes[0]
    hits = {h.chunk: h for h in question.hits}
    first = next((hits[c] for c in question.order if c in hits), None)
    return None if first is None else Quote(first.source, first.span)


def _spans(place: Quote, blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """Of the blocks that a stretch touches, but for headings."""
    start, end = place.span
    for b in blocks:
        if b.start < end and start < b.end and b.kind not in HEADINGS:
            yield b.start, b.end
