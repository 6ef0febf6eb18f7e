"""Contexts of prompts (passages packed to a budget), quotes for a reply, places of quotes.

All functions are pure. A context holds passages in order, without repeats; a fence around a passage is always
closed. A budget is a number of tokens, as a model's tokenizer or `characters` counts them. The quote for a
reply is the sentence that shares most words with it. A quote shows where the answer occurs; it does not prove
that the model read the answer there. A place is a document's URL, title, page and section.
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
"""Least share of the answer's words that a quoted sentence must have; rare words weigh more."""


def cite(answer: str, shown: Sequence[tuple[str, Span, str]]) -> tuple[Quote, ...]:
    """Lists quotes for an answer: the sentence that shares most words with it, then all parts in `shown`.

    `shown` are parts of sources that a prompt contained: (source id, span, text). The sentence is left out if
    its share of the answer's words is below `LEAST`.

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
    """Lists the distinct sentences of the shown parts, each with the first source that has it. Overlapping
    parts of a source are merged first: a sentence that one part cuts may be whole in the next part."""
    by_source: dict[str, list[tuple[Span, str]]] = {}
    for source, span, text in shown:
        by_source.setdefault(source, []).append((span, text))
    found: dict[str, Sentence] = {}
    for source, parts in by_source.items():
        for start, text in _merged(parts):
            for a, b in sentences(text):
                b = min(b, a + MAX_CHARS)
                found.setdefault(text[a:b], Sentence(source, (start + a, start + b), text[a:b]))
    return list(found.values())


def _merged(parts: Iterable[tuple[Span, str]]) -> list[tuple[int, str]]:
    """Merges parts that overlap or touch. Returns the start and text of each merged part."""
    merged: list[tuple[int, str]] = []
    for (start, _), text in sorted(parts):
        first, so_far = merged[-1] if merged else (start, "")
        end = first + len(so_far)
        if merged and start <= end:
            merged[-1] = (first, so_far + text[end - start :])
        else:
            merged.append((start, text))
    return merged


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a span of a document, for citations."""

    url: str  # relative; with #page=N if the span is on a page
    title: str
    page: str  # "p. 7", "pp. 7-8"; "" if the span is on no page
    section: str  # heading of the section in which the span begins; "" if there is none


def place(layout: Layout, span: Span) -> Place:
    """Returns the place (page, section, URL) of a span of a document's parsed text.

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
    """Returns the whole words before a span and after it, at most `chars` characters each.

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
    """Replaces the space before each block, except a cell, by a line break. All spans remain valid.

    `text` is the part of a parsed text that begins at `start`.

    >>> lined("Opening hours From nine.", [Block(0, 13, "heading"), Block(14, 24, "paragraph")])
    'Opening hours\\nFrom nine.'
    """
    chars = list(text)
    for block in blocks:
        if start < block.start < start + len(text) and block.kind != "cell":
            chars[block.start - start - 1] = "\n"
    return "".join(chars)


def heading_sections(text: str, blocks: Sequence[Block]) -> tuple[Mark, ...]:
    """Makes sections from the headings of a parsed text; each section ends at the next heading.

    If only a title or menus are above the first heading, they belong to that heading's section: the quote of
    a first sentence may begin in the title. Other text above the first heading is in no section.

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
"""docs: each passage is between the lines <DOC> and </DOC>; list: each passage is one line after "- "."""

MARKS: Mapping[PassageLayout, tuple[str, str]] = {"docs": ("<DOC>\n", "\n</DOC>\n"), "list": ("- ", "\n")}
"""The text before and after each passage."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Passages packed into one text."""

    text: str
    shown: tuple[tuple[int, str], ...]  # (index of a packed passage, its text in `text`, maybe cut)


def characters(text: str) -> Sequence[Span]:
    """Returns the span of each character. Used as a tokenizer, it makes a budget a number of characters."""
    return [(i, i + 1) for i in range(len(text))]


def pack(
    passages: Sequence[str],
    layout: PassageLayout,
    budget: int | None,
    tokenize: Tokenize,
    most: int | None = None,
) -> Packed:
    """Packs the first `most` distinct passages into a text of at most `budget` tokens.

    Tokens are counted by `tokenize` on the packed text. Empty passages and repeats are omitted. Passages
    beyond the budget are dropped, and the last one may be cut; its fence is closed after the cut. None for
    `budget` or `most` means no limit.

    >>> import re
    >>> pack(["one two three", "four"], "docs", 4, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    Packed(text='<DOC>\\none two\\n</DOC>\\n', shown=((0, 'one two'),))
    """
    first: dict[str, int] = {}  # text in the layout -> index of the first passage with this text
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
        keep -= over  # the closing fence counts too, and a cut text may have other tokens than the whole
    return Packed("", ())


def cut(text: str, budget: int, tokenize: Tokenize) -> str:
    """Cuts a text to at most `budget` tokens, counted by `tokenize` on the cut text.

    >>> import re
    >>> cut("one two three", 2, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    'one two'
    """
    spans = tokenize(text)
    keep = budget
    whole = text
    while len(tokenize(text)) > budget:
        text = whole[: spans[keep - 1][1]].rstrip() if keep > 0 else ""
        keep -= 1  # a cut text may have more tokens than the same part of the whole
    return text


def _laid(parts: Sequence[tuple[int, str]], layout: PassageLayout) -> str:
    head, tail = MARKS[layout]
    return "".join(head + text + tail for _, text in parts)


def _cut(parts: Sequence[tuple[int, str]], layout: PassageLayout, end: int) -> list[tuple[int, str]]:
    """Cuts packed passages at character `end` of the packed text. Returns (index, text) of each one left."""
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
    text: str  # text of that span
    rank: int  # best rank of the passages that contain it
    score: float  # score of its best sentence: 0 for the first that was taken, -1 for the next, ...

    @property
    def chunk(self) -> str:
        return chunk_id(self.source, self.span)


def joined(taken: Sequence[tuple[Sentence, float]], pages: Mapping[str, SourceText]) -> list[Piece]:
    """Joins sentences of one block that overlap or have only white space between them. `taken` are pairs of
    sentence and score. Returns the joined pieces ordered by rank of the passage, source and span."""
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
