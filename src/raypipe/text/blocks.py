"""Blocks of a text (paragraphs, headings, items, cells, menus), and hidden text of a page.

A block is a span with a kind; it does not change the text. `page_blocks` makes blocks in one walk over a
page's tree, `plain_blocks` from the lines of a plain text or of Markdown. All functions are pure and
independent of the HTML parser.

An element is hidden by the attribute `hidden`, by its `style` (also with text in the colour of its
background), or because browsers never draw its tag. Style sheets are not resolved, so text that a class hides
is not detected. Text with `aria-hidden` is hidden from screen readers only; it is drawn on the screen, so it
does not count as hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

from raypipe.core.records import Block, BlockKind, Span

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "caption", "figcaption", "legend", "summary"})
_ITEMS = frozenset({"li", "option"})
_ROWS = frozenset({"tr", "dt"})  # a list of terms is a table of two columns
_CELLS = frozenset({"td", "th", "dt", "dd"})
_OTHERS = """
    address article aside blockquote body br button center details dialog dir div dl fieldset figure footer
    form frameset header hgroup hr html iframe main menu nav noframes noscript ol p pre search section select
    table tbody tfoot thead tr ul video audio canvas textarea title
"""
_PARAGRAPHS = frozenset(_OTHERS.split())
_BORDERS = _HEADINGS | _ITEMS | _CELLS | _PARAGRAPHS
_KIND_TAGS: dict[BlockKind, Collection[str]]
_KIND_TAGS = {"title": {"title"}, "heading": _HEADINGS, "item": _ITEMS, "cell": _CELLS}
_MENUS = frozenset({"nav", "menu", "footer", "aside", "button", "select", "textarea", "dialog"})
_TELLING = _HEADINGS | _ITEMS | _CELLS | _MENUS | {"a", "title"}  # tags that set the kind of their texts
_ROLES = "navigation menu menubar banner contentinfo complementary search toolbar tablist"
_MENU_ROLES = frozenset(_ROLES.split())
_LINK_WORDS = 8  # most words of a link in a menu; a longer one is a linked sentence


Element: TypeAlias = tuple[str, str, Iterable[Any]]
"""Element of a page's tree: (tag, attribute `role`, child nodes). The document itself has the tag "". It is a
tuple and no record, because a page has thousands of elements."""

Read: TypeAlias = Callable[[Any], "str | Element | None"]
"""Function from a parser's node to its text or element; None for nodes without text, such as comments."""

_Inside: TypeAlias = tuple[BlockKind, bool, bool]
"""State of an element's texts: (their kind, whether they are in a menu, whether they are in a link)."""


def page_blocks(root: Any, read: Read, text: str) -> tuple[Block, ...]:
    """Makes the blocks of a page from its tree. Returns () if the tree's texts do not give the folded `text`.
    The walk is not recursive, since a page may nest 100,000 deep."""
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
                made.row |= tag in _ROWS
            if role or tag in _TELLING:
                kind, menu, link = inside
                kind = next((k for k, tags in _KIND_TAGS.items() if tag in tags), kind)
                inside = kind, menu or tag in _MENUS or role in _MENU_ROLES, link or tag == "a"
            break
        else:
            if bordered:
                made.border()
            if not stack:
                return made.done(text)
            nodes, inside, bordered = stack.pop()


class _Blocks:
    """Builder of blocks from the texts of a page, added in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # folded
        self._at = -1  # end of the last text, in the folded whole
        self._start = -1  # start of the open block; -1: no block is open
        self._inside: _Inside = ("paragraph", True, True)  # kind of its first text; flags true of all
        self._found: list[tuple[int, int, _Inside]] = []  # (start, end, state) of each finished block
        self.row = False  # whether the next cell is the first of its row

    def add(self, text: str, inside: _Inside) -> None:
        if not (words := text.split()):
            return
        folded = " ".join(words)
        if self._start < 0:
            if self.row and inside[0] == "cell":
                inside, self.row = ("row", *inside[1:]), False
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
        """Returns the blocks; () if the added texts do not give `text`. Blocks inside menu elements become
        menus. So do neighbouring items or paragraphs that are short links."""
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
_COMMAND_LINE = re.compile(r"\A#\s++[a-z][\w./-]*+\s.*(?:\s--?\w|\s[~.]?/\w|[=$;&<>])")  # "# su -s /bin/bash"
_ITEM_LINE = re.compile(
    r"(?:[-*+\u2022\u2013]|\d{1,3}[.)])\s"
    r"|(?:\d{1,3}|[一二三四五六七八九十]{1,4})[、．]|[（(](?:\d{1,3}|[一二三四五六七八九十]{1,4})[）)]"  # noqa: RUF001
    r"|第[\d\u3007零一二三四五六七八九十百]{1,7}[编章节条款]|[①-⑳]"
)
_FULL, _WRAPPED = 0.75, 100  # a line is short below this share of the longest line, or of 100 characters
_TITLE_WORDS = 25  # most words of a title
_RULE_LINE = re.compile(r"\W+")  # a line of punctuation only: a ruled line, also inside a table
_UNDERLINE = re.compile(r"([=~^*+#\"-])\1{2,}")
_TERM = re.compile(r"(?!\.\.|<|[|])(?=\S).{1,60}(?<![,;:])")  # 60: the longest label that `candidates` uses
_GAP = re.compile(r"((?!\|)\S(?:\S| (?! )){0,40}(?<![.!?:;,])) {2,}(?=\S(?:\S| (?! ))*$)")  # term, gap, text
_FIELD_LINE = re.compile(r"[^\W\d_][\w ()/-]{0,38}: \S")


def plain_blocks(content: str, titled: bool = False) -> tuple[Block, ...]:
    """Makes the blocks of plain text or Markdown (after `page_parser.shown`), as spans of the folded text.

    Blank lines, headings (`#` or an underlined line), list items and rows with `|` separate blocks. A block
    also ends after a short line, except before a small letter, and between two fields ("weight: 3 kg"). A
    term and its meaning become a row of two cells, as in a man page. A term is a short line above deeper
    lines, or the text before a gap in a line; the deeper lines, or the text after the gap, are its meaning.
    With `titled`, the title is the first line if it looks like one, else the first heading of the highest
    level; text must follow.

    >>> [b.kind for b in plain_blocks("Emma\\nA novel\\nby Austen.\\n\\n- one", titled=True)]
    ['title', 'paragraph', 'item']
    """
    made = _Blocks()
    lines = list(_lines(content))
    full = _FULL * min(max((len(line) for _, line in lines), default=0), _WRAPPED)
    before, heads, term = "", False, -1  # heads: `before` is a heading; term: indent of the open term, or -1
    for number, (indent, line) in enumerate(lines):
        alone = True  # whether the line is a block of its own
        after, third = [*lines[number + 1 : number + 3], (0, ""), (0, "")][:2]
        first = not before or heads or 0 <= indent <= term
        term = term if line and indent > term else -1
        kind: BlockKind | None = _kind_alone(line, before, after[1], titled and not number)
        if kind == "heading" and titled and (line[:2] == "# " or after[1][:3] == "==="):
            kind = "title"
        if kind == "title":
            more = any(t for _, t in lines[number + 1 :])
            kind, titled = ("title", False) if more else ("paragraph", titled)
        elif kind is None and term >= 0:
            kind, alone = "cell", False
        elif kind is None:
            item = _ITEM_LINE.match(line)
            if first and after[0] > indent and _TERM.fullmatch(line) and not item:
                nested = third[0] > after[0] and third[1]  # the lines under it are terms themselves
                kind, term = ("heading", -1) if nested else ("row", indent)
            else:
                kind, alone = ("item" if item else "paragraph"), not line
        begins = not line[:1].islower() or _FIELD_LINE.match(line)
        field = _FIELD_LINE.match(line) and _FIELD_LINE.match(before)
        if alone or kind == "item" or (kind != "cell" and (field or (len(before) < full and begins))):
            made.border()
        made.add(line, (kind, kind == "menu", False))
        if alone:
            made.border()
        before, heads = line, kind == "heading"
    return made.done(" ".join(content.split()))


def _kind_alone(line: str, before: str, after: str, first: bool) -> BlockKind | None:
    """Returns the kind of a line that is a block by itself, else None. `before` and `after` surround it."""
    marked = _HEADING_LINE.match(line)
    comment = marked and (after.startswith(marked[0]) or _COMMAND_LINE.match(line))
    short = 0 < len(line.split()) <= _TITLE_WORDS and not line.endswith((".", "!", "?", ":", ";"))
    if line.startswith("|"):
        return "menu" if _RULE_LINE.fullmatch(line) else "row"
    if _UNDERLINE.fullmatch(line) and (before or line[:3] != "---"):
        return "menu"
    if first and short and not comment and line[:3] != "---" and line[0] not in "<[!":
        return "title"
    return "heading" if (marked and not comment) or (short and _UNDERLINE.fullmatch(after)) else None


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Yields (indent, line) for each line of a text. A line with a gap after a term is split in two."""
    for line in content.expandtabs().splitlines():
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if gap := _GAP.match(bare):
            yield indent, gap[1]
            yield indent + gap.end(), bare[gap.end() :]
        else:
            yield indent, bare


NEVER_DRAWN = frozenset({"audio", "canvas", "datalist", "iframe", "noembed", "noframes", "noscript", "video"})
"""Tags that are not drawn: their text is for browsers without the feature. So is `dialog` without `open`."""

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Marks around hidden text while a page is parsed: noncharacters, which Unicode reserves for internal use."""

_MARK = re.compile(f"([{OPEN}{CLOSE}])")
_COMMENT = re.compile(r"(?s)/\*.*?(?:(\*/)|\Z)")  # an unclosed comment is kept as text
_NUMBER = re.compile(r"\A\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([a-z%]*)")
# 200 characters are enough for the three or four numbers in brackets.
_COLOUR = re.compile(r"#[0-9a-f]{3,8}\b|rgba?\([^)]{0,200}+\)|(?<![\w-])[a-z]+(?![\w(-])")
_NOT_COLOURS = {"none", "inherit", "initial", "unset", "url", "repeat", "fixed", "scroll", "center"}
_FAR = -100.0  # in any unit: -100 % is off the screen, and real off-screen text is at -999 px or beyond


def hides(tag: str, attrs: Mapping[str, object], ancestors: Iterator[Mapping[str, object]]) -> bool:
    """Returns whether a browser hides an element's text. `ancestors` gives the attributes of its ancestors,
    nearest first. They are only read if the element sets a text colour but no background."""
    if "hidden" in attrs or tag in NEVER_DRAWN or (tag == "dialog" and "open" not in attrs):
        return True
    if not attrs.get("style"):
        return False
    gone, colour, _ = _read(str(attrs["style"]))
    if gone or not colour:
        return gone
    grounds = (
        _read(str(a.get("style") or ""))[2] or _named(a.get("bgcolor")) for a in chain([attrs], ancestors)
    )
    return colour == next(filter(None, grounds), "ffffff")


def unmark(marked: str, elements: int) -> tuple[str, tuple[Span, ...]] | None:
    """Removes the marks OPEN and CLOSE around hidden text. Returns the text and the hidden spans, ascending
    and disjoint. In `marked`, white space is folded and each mark is a separate word. `elements` is the
    number of hidden elements. Returns None for another number of marks: the page itself then has marks."""
    if marked.count(OPEN) != elements or marked.count(CLOSE) != elements:
        return None
    kept, spans = list[str](), list[Span]()
    at, depth, joined = 0, 0, False  # joined: no visible text since the last hidden text
    for piece in _MARK.split(marked):
        if piece in (OPEN, CLOSE):
            depth += 1 if piece == OPEN else -1
            continue
        if not (piece := piece.strip()):
            continue
        start = at + bool(kept)
        at = start + len(piece)
        kept.append(piece)
        if depth > 0:
            spans[-1:] = [(spans[-1][0], at)] if joined else [*spans[-1:], (start, at)]
        joined = depth > 0
    return " ".join(kept), tuple(spans)


@lru_cache(maxsize=4096)  # a page repeats a few styles hundreds of times
def _read(style: str) -> tuple[bool, str, str]:
    """Reads a style attribute: (whether it hides, text colour, background). An unset colour is ""."""
    rules: dict[str, str] = {}
    for rule in _COMMENT.sub(lambda m: "" if m[1] else m[0], style).lower().split(";"):
        name, _, value = rule.partition(":")
        rules[name.strip()] = value.replace("!important", "").strip()
    colour = _named(rules.get("color"))
    ground = _named(rules.get("background-color")) or _named(rules.get("background"))
    # the number at the beginning of each value, without its unit
    numbers = {name: float(found[1]) for name, value in rules.items() if (found := _NUMBER.fullmatch(value))}
    placed = rules.get("position") in ("absolute", "fixed")
    away = ("text-indent", *(("left", "top", "right", "bottom") if placed else ()))
    boxes = ("width", "height", "max-width", "max-height") if rules.get("overflow") == "hidden" else ()
    gone = (
        rules.get("display") == "none"
        or rules.get("visibility") in ("hidden", "collapse")
        or rules.get("content-visibility") == "hidden"
        or any(numbers.get(name) == 0 for name in ("opacity", "font-size", *boxes))
        or any(numbers.get(name, 0) <= _FAR for name in away)
        or (placed and rules.get("clip", "").startswith(("rect(0", "rect(1px")))
        or rules.get("clip-path", "").startswith(("inset(50%", "inset(100%"))
        or colour == "transparent"
    )
    return gone, colour, "" if ground == "transparent" else ground


def _named(value: object) -> str:
    """Normalises a colour to hex digits, "transparent" or a name; an image or gradient to "picture"."""
    if not value:
        return ""
    text = str(value).strip().lower()
    if "url(" in text or "gradient(" in text:
        return "picture"
    found = next((c for c in _COLOUR.findall(text) if c not in _NOT_COLOURS), "")
    if found.startswith("#"):
        digits, alpha = found[1:], ""
        if len(digits) in (4, 8):
            digits, alpha = digits[: len(digits) * 3 // 4], digits[len(digits) * 3 // 4 :]
        if set(alpha) == {"0"}:
            return "transparent"
        return "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    if found.startswith("rgb"):
        parts = re.findall(r"[\d.]+", found)
        if len(parts) == 4 and float(parts[3]) == 0:
            return "transparent"
        return "".join(f"{min(int(float(p)), 255):02x}" for p in parts[:3])
    return {"white": "ffffff", "black": "000000"}.get(found, found)
