"""Blocks of a text: where its paragraphs, headings, list items, cells and menus begin and end.

Spans that stand next to a text and change nothing of it. `page_blocks` gets them from one walk over a page's
tree, `plain_blocks` from the lines of a plain text or of Markdown. Pure functions that know no parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias, get_args

from raypipe.core.records import Block, BlockKind

KINDS: tuple[BlockKind, ...] = get_args(BlockKind)

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "caption", "figcaption", "legend", "summary"})
_ITEMS = frozenset({"li", "dt", "dd", "option"})
_CELLS = frozenset({"td", "th"})
_OTHERS = """
    address article aside blockquote body br button center details dialog dir div dl fieldset figure footer
    form frameset header hgroup hr html iframe main menu nav noframes noscript ol p pre search section select
    table tbody tfoot thead tr ul video audio canvas textarea title
"""
_PARAGRAPHS = frozenset(_OTHERS.split())
_BORDERS = _HEADINGS | _ITEMS | _CELLS | _PARAGRAPHS
_KIND_TAGS: dict[BlockKind, Collection[str]] = {
    "title": {"title"},
    "heading": _HEADINGS,
    "item": _ITEMS,
    "cell": _CELLS,
}
_MENUS = frozenset({"nav", "menu", "footer", "aside", "button", "select", "textarea", "dialog"})
_TELLING = _HEADINGS | _ITEMS | _CELLS | _MENUS | {"a", "title"}  # what is inside is of another kind
_ROLES = "navigation menu menubar banner contentinfo complementary search toolbar tablist"
_MENU_ROLES = frozenset(_ROLES.split())
_LINK_WORDS = 8  # a block of links with more words is a sentence that is linked


Element: TypeAlias = tuple[str, str, Iterable[Any]]
"""An element of a page's tree: its tag ("" of one that only holds others), attribute `role`, its nodes."""

Read: TypeAlias = Callable[[Any], "str | Element | None"]
"""A node of a parser's tree -> its text, or the element, or None for what has no text (comments). A tuple and
no record: a page has thousands."""


_Inside: TypeAlias = tuple[BlockKind, bool, bool]
"""What holds for the texts of an element: their kind, whether it is inside a menu, whether it is a link."""


def page_blocks(root: Any, read: Read, text: str) -> tuple[Block, ...]:
    """The blocks of a page's folded `text`, ascending and apart; () where the tree says another text.

    Without recursion: a page may nest 100,000 deep."""
    made = _Blocks()
    inside: _Inside = ("paragraph", False, False)
    nodes, bordered = iter((root,)), False
    stack: list[tuple[Iterator[Any], _Inside, bool]] = []
    while True:
        for raw in nodes:
            node = read(raw)
            if node is None:
                continue
            if isinstance(node, str):
                made.add(node, inside)
                continue
            tag, role, children = node
            stack.append((nodes, inside, bordered))
            nodes, bordered = iter(children), tag in _BORDERS
            if bordered:
                made.border()
            if role or tag in _TELLING:
                inside = _within(inside, tag, role)
            break
        else:
            if bordered:
                made.border()
            if not stack:
                return made.done(text)
            nodes, inside, bordered = stack.pop()


def _within(outside: _Inside, tag: str, role: str) -> _Inside:
    kind, menu, link = outside
    kind = next((k for k, tags in _KIND_TAGS.items() if tag in tags), kind)
    return kind, menu or tag in _MENUS or role in _MENU_ROLES, link or tag == "a"


class _Blocks:
    """Blocks while they are made, from the texts of a page in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # folded
        self._at = -1  # end of the last one in the folded text
        self._start = -1  # of the open block; -1: none is open
        self._inside: _Inside = ("paragraph", True, True)  # kind of its first text; what holds for all
        self._found: list[tuple[int, int, _Inside]] = []

    def add(self, text: str, inside: _Inside) -> None:
        if not (words := text.split()):
            return
        folded = " ".join(words)
        if self._start < 0:
            self._start, self._inside = self._at + 1, inside
        elif inside is not self._inside:
            kind, menu, link = self._inside
            self._inside = kind, menu and inside[1], link and inside[2]
        self._at += len(folded) + 1
        self._texts.append(folded)

    def border(self) -> None:
        if self._start >= 0:
            self._found.append((self._start, self._at, self._inside))
            self._start = -1

    def done(self, text: str) -> tuple[Block, ...]:
        """The blocks; short ones that are links and stand next to another such are a menu."""
        self.border()
        if " ".join(self._texts) != text:
            return ()
        short = [
            link and kind in ("item", "paragraph") and text.count(" ", start, end) < _LINK_WORDS
            for start, end, (kind, _, link) in self._found
        ]
        short = [False, *short, False]
        out = []
        for i, (start, end, (kind, menu, _)) in enumerate(self._found, start=1):
            links = short[i] and (short[i - 1] or short[i + 1])
            out.append(Block(start, end, "menu" if menu or links else kind))
        return tuple(out)


_HEADING_LINE = re.compile(r"#{1,6}\s")
_ITEM_LINE = re.compile(r"(?:[-*+\u2022\u2013]|\d{1,3}[.)])\s")
_FULL, _WRAPPED = 0.75, 100  # a line below this share of a full one, of at most these characters, is short
_TITLE_WORDS = 25
_RULE_LINE = re.compile(r"\W+")  # a line of signs alone: a rule, or the rule of a table


def plain_blocks(content: str, titled: bool = False) -> tuple[Block, ...]:
    """The blocks of a plain text or of Markdown (`html.storable`) in its folded form.

    A blank line is a border; so are headings (`#`), list items, rows with `|`, and the end of a short line
    before one that does not go on in lower case: the lines of a wrapped paragraph stay together. `titled`: a
    first line that looks like one is a title.

    >>> [b.kind for b in plain_blocks("Emma\\nA novel\\nby Austen.\\n\\n- one", titled=True)]
    ['title', 'paragraph', 'item']
    """
    made = _Blocks()
    lines = [line.strip() for line in content.splitlines()]
    full = _FULL * min(max(map(len, lines), default=0), _WRAPPED)
    before = ""
    for number, line in enumerate(lines):
        kind: BlockKind = "paragraph"
        alone = True  # on its line
        short = 0 < len(line.split()) <= _TITLE_WORDS and not line.endswith((".", "!", "?", ":", ";"))
        if titled and number == 0 and short and any(lines[1:]):
            kind = "title"
        elif _HEADING_LINE.match(line):
            kind = "heading"
        elif line.startswith("|"):
            kind = "menu" if _RULE_LINE.fullmatch(line) else "cell"
        else:
            alone = not line
            kind = "item" if _ITEM_LINE.match(line) else kind
        if alone or kind == "item" or (len(before) < full and not line[:1].islower()):
            made.border()
        made.add(line, (kind, kind == "menu", False))
        if alone:
            made.border()
        before = line
    return made.done(" ".join(content.split()))
