"""Where a quote stands in a document of a folder: its url with the page, page, title, section. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raypipe.core.records import Block, Layout, Mark, Span


@dataclass(frozen=True, slots=True)
class Place:
    """What a citation says of a stretch of a document."""

    url: str  # relative, with #page=N for a page
    title: str
    page: str  # "p. 7", "pp. 7-8"; "" where the document has no pages
    section: str  # heading of the section that it begins in; "" for none


def place(layout: Layout, span: Span) -> Place:
    """Where a span of a document's parsed text stands.

    >>> pages = (Mark(0, 90, "iv"), Mark(91, 200, "1"))
    >>> place(Layout("d", "s", "a/b.pdf", "B", pages, (Mark(91, 200, "Method"),)), (80, 95))
    Place(url='a/b.pdf#page=1', title='B', page='pp. iv-1', section='')
    """
    on = [n for n, page in enumerate(layout.pages) if _holds(page, span)]
    url = f"{layout.url}#page={on[0] + 1}" if on else layout.url
    return Place(url, layout.title, _pages(layout.pages, on), _section(layout.sections, span[0]))


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


def _holds(page: Mark, span: Span) -> bool:
    start, end = span
    return page.start < max(end, start + 1) and start < page.end


def _pages(pages: Sequence[Mark], on: Sequence[int]) -> str:
    if not on:
        return ""
    first, last = pages[on[0]].label, pages[on[-1]].label
    return f"p. {first}" if len(on) == 1 else f"pp. {first}-{last}"


def _section(sections: Sequence[Mark], at: int) -> str:
    inside = [s.label for s in sections if s.start <= at < s.end]
    return inside[-1] if inside else ""
