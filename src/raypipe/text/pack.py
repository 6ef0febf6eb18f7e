"""Packs passages into the context of a prompt: in order, each once, cut to a budget, fences closed.

Pure functions; a budget is counted by whatever splits a text into spans: a model's own tokenizer, or
characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from raypipe.core.protocols import Tokenize
from raypipe.core.records import Span, chunk_id
from raypipe.text.evidence import Sentence, SourceText

Layout: TypeAlias = Literal["docs", "list"]
"""docs: each passage between <DOC> and </DOC> on lines of their own; list: one line each, after "- "."""

MARKS: Mapping[Layout, tuple[str, str]] = {"docs": ("<DOC>\n", "\n</DOC>\n"), "list": ("- ", "\n")}
"""The text before and after each passage."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Passages laid out as one text."""

    text: str
    shown: tuple[tuple[int, str], ...]  # place of each passage that is in it; what of it: all, or a beginning


def characters(text: str) -> Sequence[Span]:
    """The span of each character: a tokenizer that makes a budget one of characters."""
    return [(i, i + 1) for i in range(len(text))]


def pack(
    passages: Sequence[str], layout: Layout, budget: int | None, tokenize: Tokenize, most: int | None = None
) -> Packed:
    """The passages as one text of at most `budget` tokens, as `tokenize` counts that text alone.

    Passages without text, and those equal to an earlier one, are omitted. What does not fit is cut: the last
    document may be a part of its passage, and is closed after the cut. `budget` None: no budget. `most`: at
    most this many distinct passages, the first ones.

    >>> import re
    >>> pack(["one two three", "four"], "docs", 4, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    Packed(text='<DOC>\\none two\\n</DOC>\\n', shown=((0, 'one two'),))
    """
    first: dict[str, int] = {}  # text as it is laid out -> place of the first passage that has it
    for i, passage in enumerate(passages):
        if text := " ".join(passage.split()) if layout == "list" else passage.strip():
            first.setdefault(text, i)
    parts = [(i, text) for text, i in first.items()][:most]
    whole = _laid(parts, layout)
    if budget is None or len(spans := tokenize(whole)) <= budget:
        return Packed(whole, tuple(parts))
    keep = budget
    while keep > 0:
        kept = _cut(parts, layout, spans[keep - 1][1])
        text = _laid(kept, layout)
        if (over := len(tokenize(text)) - budget) <= 0:
            return Packed(text, tuple(kept))
        keep -= over  # what closes the cut counts too, and pieces may count otherwise than in the whole
    return Packed("", ())


def cut(text: str, budget: int, tokenize: Tokenize) -> str:
    """The text's beginning of at most `budget` tokens, as `tokenize` counts it alone.

    >>> import re
    >>> cut("one two three", 2, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    'one two'
    """
    spans = tokenize(text)
    keep = budget
    whole = text
    while len(tokenize(text)) > budget:
        text = whole[: spans[keep - 1][1]].rstrip() if keep > 0 else ""
        keep -= 1  # a beginning may count otherwise than in the whole
    return text


def _laid(parts: Sequence[tuple[int, str]], layout: Layout) -> str:
    head, tail = MARKS[layout]
    return "".join(head + text + tail for _, text in parts)


def _cut(parts: Sequence[tuple[int, str]], layout: Layout, end: int) -> list[tuple[int, str]]:
    """The passages before a character of the layout; none that would be empty."""
    head, tail = MARKS[layout]
    out: list[tuple[int, str]] = []
    at = 0
    for place, text in parts:
        if (left := end - at - len(head)) < len(text) + len(tail):
            if part := text[: max(0, left)].rstrip():
                out.append((place, part))
            break
        out.append((place, text))
        at += len(head) + len(text) + len(tail)
    return out


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
        page = pages[s.source]
        piece = Piece(s.source, s.span, page.text[slice(*s.span)], s.rank, score)
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
