"""Candidates for an answer: the sentences of passages, and the facts of their tables.

All functions are pure: they take texts and their blocks, and depend on no question and no model. A candidate
is a sentence within one block, or a fact. A fact is a cell of a table with its label, "Warranty: 24 months",
or with the names of its row and column, "IM-60, delivery (days): 21". Headings, captions and menus are no
candidates. A candidate stores the page's title and the heading above it, as its subject.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from raypipe.core.records import Block, BlockKind, Layout, Span
from raypipe.text.words import sentences

MAX_CHARS = 1000
"""Most characters of a sentence (the cap of CRAG's baseline). A longer one is cut: mostly a table or menu."""

_CONTENT = frozenset({"title", "paragraph", "item", "row", "cell"})
_IN_TABLE = frozenset({"row", "cell"})
_LABEL_CHARS = 60  # most characters of a label
_VALUE_CHARS = 250  # most characters of a fact's value (as `Extract.chars`); a longer cell is prose
_CELL = re.compile(r"\|((?:\\\||[^|])*)")  # a cell of a row with `|` between its cells
_NAMED = re.compile(rf"\A([^:|]{{1,{_LABEL_CHARS}}}?)\s*+:\s++(?=\S)")  # "weight: 3 kg" in a cell or a line
_NO_COLUMN = re.compile(  # a cell that names no column: a number, except a year, or a cell with its own label
    rf"\A(?!(?:1[0-9]|20)\d\d\Z)[-+]?[\d.,]++\s?%?\Z|{_NAMED.pattern}"
)


@dataclass(frozen=True, slots=True)
class SourceText:
    text: str
    blocks: tuple[Block, ...] = ()  # (): the whole text is one block
    hidden: tuple[Span, ...] = ()  # spans that a browser does not show
    file: Layout | None = None  # layout of the file that the text is from


@dataclass(frozen=True, slots=True)
class Sentence:
    """A candidate: a sentence, or a fact of a table."""

    source: str  # source id
    span: Span  # span in the source's parsed text; for a fact, the span of its row
    text: str  # text of that span; for a fact "LABEL: VALUE"
    kind: BlockKind = "paragraph"  # kind of its block
    around: str = ""  # its context: the page's title and the nearest heading; for a fact also its row
    rank: int = 0  # rank, from 0, of the first passage that gives it
    label: str = ""  # name of its value ("weight: 3 kg"), or the term that it explains; "": neither
    value: Span | None = None  # for a fact, the span of its value in the source's parsed text
    title: str = ""  # for a fact, the title of its page

    @property
    def meaning(self) -> str:
        """The text to embed. A fact follows the title of its page, since the title names its subject."""
        return f"{self.title}. {self.text}" if self.title else self.text


_Passage: TypeAlias = tuple[str, Span, int]
"""(source id, span in the source's parsed text, rank)."""


def _holds(passage: _Passage, span: Span) -> bool:
    """Returns whether at least half of a span is inside a passage."""
    _, (start, end), _ = passage
    return 2 * (min(span[1], end) - max(span[0], start)) >= span[1] - span[0]


def candidates(
    passages: Iterable[tuple[str, Span]], texts: Mapping[str, SourceText], most: int | None = None
) -> list[Sentence]:
    """Lists the candidates of each passage, in text order. `passages` holds (source, span), best first.

    `most` limits the candidates of each passage; None means no limit. A sentence that a passage's border cuts
    is taken whole if at least half of it is inside. Equal sentences are listed once, and so are equal facts
    with an equal context. Candidates that overlap hidden text are left out.
    """
    found: dict[str, Sentence] = {}
    for rank, (source, span) in enumerate(passages):
        for s in islice(_candidates(texts[source], (source, span, rank)), most):
            found.setdefault(f"{s.around}\n{s.text}" if s.value else s.text, s)
    return list(found.values())


@dataclass(slots=True)
class _Table:
    """State of a table whose rows are read in order."""

    caption: Span | None  # span of the caption above the table
    names: list[str] | None = None  # names of the columns, [] without names; None before the first row
    group: str = ""  # first cell of the last row whose first cell is not empty


def _candidates(page: SourceText, passage: _Passage) -> Iterator[Sentence]:
    text, blocks = page.text, page.blocks or (Block(0, len(page.text), "paragraph"),)
    i = bisect_right([b.end for b in blocks], passage[1][0])
    last = bisect_left([b.start for b in blocks], passage[1][1])
    while 0 < i < last and all(_in_table(text, b) for b in blocks[i - 1 : i + 1]):
        i -= 1  # to the beginning of the table
    title = next((text[b.start : b.end] for b in blocks if b.kind == "title"), "")
    heading = next((text[b.start : b.end] for b in blocks[:i][::-1] if b.kind == "heading"), "")
    table = _Table(_caption(text, blocks, i - 1) if i else None)
    while i < last:
        end = i + 1
        while blocks[i].kind in _IN_TABLE and end < len(blocks) and blocks[end].kind == "cell":
            end += 1
        row = blocks[i:end]  # a block, or all cells of a table's row
        i = end
        if not _in_table(text, row[0]):
            table = _Table(_caption(text, blocks, i - 1))
        heading = text[row[0].start : row[0].end] if row[0].kind == "heading" else heading
        around = f"{title} {heading}".strip()
        found: Iterable[Sentence] = ()
        if row[0].kind in _IN_TABLE:
            more = i < len(blocks) and _in_table(text, blocks[i])
            found = _of_row(text, row, table, more, title, around, passage)
        elif row[0].kind in _CONTENT:
            found = _sentences(text, row[0], around, passage)
        for s in found:
            if s.span != table.caption and not any(a < s.span[1] and s.span[0] < b for a, b in page.hidden):
                yield s


def _of_row(
    text: str, row: Sequence[Block], table: _Table, more: bool, title: str, around: str, passage: _Passage
) -> list[Sentence]:
    """Reads the next row of a table: its facts, or the sentences of its cells if it has no facts. Returns []
    for a row of column names, and for a row before the passage. `more` tells whether another row follows."""
    start, cells = row[0].start, [(b.start, b.end) for b in row]
    if text[start] == "|":  # its cells may be empty
        inner = _CELL.finditer(text[start : row[0].end].removesuffix("|"))
        begins = [(start + m.start(1) + len(m[1]) - len(m[1].lstrip()), m[1].strip()) for m in inner]
        cells = [(at, at + len(cell)) for at, cell in begins]
    said = [text[slice(*c)] for c in cells]
    if table.names is None:
        heads = more and len(said) > 2 and not any(map(_NO_COLUMN.match, said))
        table.names = said if heads else []
        if heads:
            return []
    if row[-1].end <= passage[1][0]:
        return []
    named = 2 if said[0] in ("", table.group) or _is_coded(said) else 1
    caption = text[slice(*table.caption)] if table.caption else ""
    under = " ".join(filter(None, (around, caption, "" if said[0] else table.group)))
    found = [replace(f, title=title) for f in _facts(cells, said, table.names, named, under, passage)]
    table.group = said[0] or table.group
    if found:
        return found
    if len(said) == 2 and len(said[0]) <= _LABEL_CHARS:  # a term with a long meaning
        return list(_sentences(text, row[-1], f"{around} {said[0]}".strip(), passage, said[0]))
    return [s for block in row for s in _sentences(text, block, around, passage)]


def _caption(text: str, blocks: Sequence[Block], i: int) -> Span | None:
    """Returns the span of a table's caption: the short last part of paragraph `i` directly above the table.
    Returns None if that part ends like a sentence, or if block `i` is no such paragraph."""
    block, after = blocks[i], blocks[i + 1 : i + 2]
    if block.kind != "paragraph" or not after or not _in_table(text, after[0]) or _in_table(text, block):
        return None
    start = max(block.start, block.end - MAX_CHARS)
    a, b = [(0, 0), *sentences(text[start : block.end])][-1]
    is_one = 0 < b - a <= _LABEL_CHARS and text[start + b - 1] not in ".!?;"
    return (start + a, start + b) if is_one else None


def _is_coded(said: Sequence[str]) -> bool:
    """Returns whether a row begins with a code or number and then its name: "P02 | Wych elm | 2.4"."""
    digits = [any(map(str.isdigit, cell)) for cell in said]
    return len(said) > 2 and digits[:2] == [True, False] and any(map(str.isalpha, said[1]))


def _in_table(text: str, block: Block) -> bool:
    return block.kind in _IN_TABLE or text[block.start] == "|"  # "|": the line under the column names


def _facts(
    cells: Sequence[Span],
    said: Sequence[str],
    names: Sequence[str],
    named: int,
    above: str,
    passage: _Passage,
) -> Iterator[Sentence]:
    """Yields the facts of a row: each cell with a label. `said` are the texts of `cells`, `names` the
    columns' names. The first `named` cells name the row. Without labels, the first cell labels the others."""
    own = [_NAMED.match(c) for c in said]
    names = names if len(names) == len(said) else [""] * len(said)  # the row may have more or fewer cells
    keys = [m[1] if m else n for m, n in zip(own, names, strict=True)]
    if len(said) > 1 and not any(keys):
        start, end = cells[1][0], cells[-1][1]
        found = [(said[0].rstrip(" :"), (start, end), ", ".join(filter(None, said[1:])))]
    else:
        values = [c[m.end() :] if m else c for c, m in zip(said, own, strict=True)]
        name = [value if len(value) <= _LABEL_CHARS else "" for value in values[:named]]
        found = [
            (", ".join(filter(None, (*name[:i], key))), (end - len(value), end), value)
            for i, (key, value, (_, end)) in enumerate(zip(keys, values, cells, strict=True))
            if key
        ]
    whole, around = (cells[0][0], cells[-1][1]), " ".join(filter(None, (above, names[0], *said)))
    for label, span, value in found:
        likely = label and len(label) <= 2 * _LABEL_CHARS and 0 < len(value) <= _VALUE_CHARS
        if likely and _holds(passage, span) and any(map(str.isalnum, value)) and any(map(str.isalnum, label)):
            yield Sentence(passage[0], whole, f"{label}: {value}", "row", around, passage[2], label, span)


def _sentences(text: str, block: Block, around: str, passage: _Passage, term: str = "") -> Iterator[Sentence]:
    """Yields the sentences of a block that are at least half inside the passage, each cut to MAX_CHARS. A
    block may be a whole page, so only the text around the passage is split. A sentence without a label of its
    own gets the label `term`."""
    source, (first, last), rank = passage
    start = max(block.start, first - MAX_CHARS)
    for a, b in sentences(text[start : min(block.end, last + MAX_CHARS)]):
        a, b = start + a, min(start + b, start + a + MAX_CHARS)
        said = text[a:b]
        if _holds(passage, (a, b)) and any(map(str.isalnum, said)):
            label = m[1] if (m := _NAMED.match(said)) and b - a <= _VALUE_CHARS else term
            yield Sentence(source, (a, b), said, block.kind, around, rank, label)
