"""Citations: quotes of a reply that was written from a context, and the places of quotes in documents. Pure.

The sentence that states a reply is found by its words: that is where the answer stands, not a proof that a
model read it there. A place is a document's url with the page, page, title and section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from raypipe.core.records import Block, Layout, Mark, Quote, Span
from raypipe.text.evidence import ANALYZER, MAX_CHARS, Sentence, overlaps
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
