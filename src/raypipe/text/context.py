"""Contexts of prompts: passages packed to a budget, in order, each once, fences closed; quotes of a reply
that was written from one; and the places of quotes in documents. Pure functions.

A budget is counted by whatever splits a text into spans: a model's own tokenizer, or characters. The sentence
that states a reply is found by its words: that is where the answer stands, not a proof that a model read it
there. A place is a document's url with the page, page, title and section.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from raypipe.core.protocols import Tokenize
from raypipe.core.records import Block, Layout, Mark, Quote, Span, chunk_id
from raypipe.text.candidates import MAX_CHARS, Sentence, SourceText
from raypipe.text.evidence import ANALYZER, overlaps
from raypipe.text.words import analyse, sentences

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
        (shares,) = overlaps(said, [analyse(s.text, ANALYZER)[0] for s in found])
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


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a stretch of a document, as a citation has it."""

    url: str  # relative, with #page=N for a page
    title: str
    page: str  # "p. 7", "pp. 7-8"; "" where the document has no pages
    section: str  # heading of the section that it begins in; "" for none


def place(layout: Layout, span: Span) -> Place:
    """Returns where a span of a document's parsed text stands.

    >>> pages = (Mark(0, 90, "iv"), Mark(91, 200, "1"))
    >>> place(Layout("d", "s", "a/b.pdf", "B", pages, (Mark(91, 200, "Method"),)), (80, 95))
    Place(url='a/b.pdf#page=1', title='B', page='pp. iv-1', section='')
    """
    start, end = span[0], max(span[1], span[0] + 1)
    on = [n for n, page in enumerate(layout.pages) if page.start < end and span[0] < page.end]
    inside = [s.label for s in layout.sections if s.start <= start < s.end]
    url, page = layout.url, ""
    if on:
        first, last = layout.pages[on[0]].label, layout.pages[on[-1]].label
        url = f"{url}#page={on[0] + 1}"
        page = f"p. {first}" if len(on) == 1 else f"pp. {first}-{last}"
    return Place(url, layout.title, page, inside[-1] if inside else "")


def context(text: str, span: Span, chars: int) -> tuple[str, str]:
    """The whole words before and after a span of a text, at most `chars` characters of each, with their
    spaces.

    >>> context("The pump has a warranty of two years.", (15, 23), 10)
    ('has a ', ' of two')
    """
    first, last = max(0, span[0] - chars), min(len(text), span[1] + chars)
    before, after = text[first : span[0]], text[span[1] : last]
    if first and text[first - 1] != " ":
        before = before.partition(" ")[2]
    if last < len(text) and text[last] != " ":
        after = after.rpartition(" ")[0]
    return before, after


def lined(text: str, blocks: Sequence[Block], start: int = 0) -> str:
    """A stretch of a parsed text from `start` on, with a line break for the space before each block, but for
    the cells of a row. Every span stands where it stood.

    >>> lined("Opening hours From nine.", [Block(0, 13, "heading"), Block(14, 24, "paragraph")])
    'Opening hours\\nFrom nine.'
    """
    chars = list(text)
    for block in blocks:
        if start < block.start < start + len(text) and block.kind != "cell":
            chars[block.start - start - 1] = "\n"
    return "".join(chars)


def heading_sections(text: str, blocks: Sequence[Block]) -> tuple[Mark, ...]:
    """The sections that the headings of a parsed text begin; each ends at the next heading.

    A title right above the first heading is in its section: the quote of a first sentence may begin there.

    >>> text = "Opening hours From nine. Prices Four euros."
    >>> found = heading_sections(text, [Block(0, 13, "heading"), Block(25, 31, "heading")])
    >>> [(s.label, text[s.start : s.end]) for s in found]
    [('Opening hours', 'Opening hours From nine. '), ('Prices', 'Prices Four euros.')]
    """
    headings = [b for b in blocks if b.kind == "heading"]
    starts = [b.start for b in headings]
    if headings and all(b.kind in ("title", "menu") for b in blocks[: list(blocks).index(headings[0])]):
        starts[0] = 0
    ends = [*starts[1:], len(text)]
    named = zip(headings, starts, ends, strict=False)
    return tuple(Mark(start, end, text[b.start : b.end]) for b, start, end in named)


PassageLayout: TypeAlias = Literal["docs", "list"]
"""docs: each passage between <DOC> and </DOC> on lines of their own; list: one line each, after "- "."""

MARKS: Mapping[PassageLayout, tuple[str, str]] = {"docs": ("<DOC>\n", "\n</DOC>\n"), "list": ("- ", "\n")}
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
    passages: Sequence[str],
    layout: PassageLayout,
    budget: int | None,
    tokenize: Tokenize,
    most: int | None = None,
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


def _laid(parts: Sequence[tuple[int, str]], layout: PassageLayout) -> str:
    head, tail = MARKS[layout]
    return "".join(head + text + tail for _, text in parts)


def _cut(parts: Sequence[tuple[int, str]], layout: PassageLayout, end: int) -> list[tuple[int, str]]:
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
