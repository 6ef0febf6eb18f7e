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
        page, piece = pages[s.source], Piece(s.source, s.span, s.text, s.rank, score)
        if pieces and pieces[-1].source == s.source:
            last, (start, stop) = pieces[-1], s.span
            end = last.span[1]
            bordered = any(end <= b.start <= start for b in page.blocks)
            if not bordered and not page.text[end:start].strip():
                span = (pieces.pop().span[0], max(end, stop))
                said, rank = page.text[slice(*span)], min(last.rank, s.rank)
                piece = Piece(s.source, span, said, rank, max(last.score, score))
        pieces.append(piece)
    return sorted(pieces, key=lambda p: (p.rank, p.source, p.span))
