"""Sentences that stay of their passages, joined where they stand next to one another.

Pure functions over texts: a piece is a span of its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raypipe.core.records import Span, chunk_id
from raypipe.text.candidates import Sentence, SourceText


@dataclass(frozen=True, slots=True)
class Piece:
    """Sentences next to one another in a source."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # of that span
    rank: int  # of the best passage that it is of
    score: float  # of its best sentence: 0 for the first that was taken, -1 for the next, ...

    @property
    def chunk(self) -> str:
        return chunk_id(self.source, self.span)


def joined(taken: Sequence[tuple[Sentence, float]], pages: Mapping[str, SourceText]) -> list[Piece]:
    """Sentences with their scores as pieces: those with white space alone between them in one block are one.
    Best passage first, then by place."""
    pieces: list[Piece] = []
    for s, score in sorted(taken, key=lambda row: (row[0].source, row[0].span)):
        text, last = pages[s.source].text, pieces[-1] if pieces else None
        if last is None or last.source != s.source or not _touch(last.span, s.span, pages[s.source]):
            pieces.append(Piece(s.source, s.span, s.text, s.rank, score))
            continue
        span = (last.span[0], max(last.span[1], s.span[1]))
        pieces[-1] = Piece(s.source, span, text[slice(*span)], min(last.rank, s.rank), max(last.score, score))
    return sorted(pieces, key=lambda p: (p.rank, p.source, p.span))


def _touch(before: Span, after: Span, page: SourceText) -> bool:
    """Whether white space alone is between two spans, and no border of a block."""
    if page.text[before[1] : after[0]].strip():
        return False
    return not any(before[1] <= b.start <= after[0] for b in page.blocks)
