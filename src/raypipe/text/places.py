"""Places of quotes in documents of a folder: its url with the page, page, title, section. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raypipe.core.records import Block, Layout, Mark, Span


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
