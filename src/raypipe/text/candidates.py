"""Candidates for an answer: the sentences of passages, and the facts of their tables.

Pure functions over texts and their blocks. A candidate is a sentence, which lies in one block, or a fact: a
cell of a table with its label, "Warranty: 24 months", or with the row's name and the column's, "IM-60,
delivery (days): 21". Headings and menus are no candidates, but say, as a title does, what the ones below them
are about. Knows no question and no model.
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
"""A longer sentence is cut there: a table or menu that came out as one (the cap of CRAG's baseline)."""

_CONTENT = frozenset({"title", "paragraph", "item", "row", "cell"})
_IN_TABLE = frozenset({"row", "cell"})
_LABEL_CHARS = 60  # a longer cell is no label
_VALUE_CHARS = 250  # a longer cell is prose: its sentences are candidates (`Extract.chars` says no more)
_CELL = re.compile(r"\|((?:\\\||[^|])*)")  # of a row that has its cells between `|`
_NAMED = re.compile(rf"\A([^:|]{{1,{_LABEL_CHARS}}}?)\s*+:\s++(?=\S)")  # "weight: 3 kg" in a cell or a line
_NO_COLUMN = re.compile(  # a number, but for a year; or a cell with a name of its own
    rf"\A(?!(?:1[0-9]|20)\d\d\Z)[-+]?[\d.,]++\s?%?\Z|{_NAMED.pattern}"
)


@dataclass(frozen=True, slots=True)
class SourceText:
    text: str
    blocks: tuple[Block, ...] = ()  # (): one block
    hidden: tuple[Span, ...] = ()  # what a browser does not show
    file: Layout | None = None  # that it is of


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or a fact of a table."""

    source: str  # source id
    span: Span  # in the source's parsed text; of a fact its row
    text: str  # the text of that span; of a fact its label, a colon, and its value
    kind: BlockKind = "paragraph"  # of its block
    around: str = ""  # what it stands under: the page's title, the nearest heading; of a fact the row, too
    rank: int = 0  # of the best of the passages it stands in, from 0
    label: str = ""  # what its value is of, as `text` begins; "" where it names nothing
    value: Span | None = None  # of a fact: its value, in the source's parsed text
    title: str = ""  # of its page, where it is a fact

    @property
    def meaning(self) -> str:
        """The text that is embedded: of a fact under the title of its page, which says what has it."""
        return f"{self.title}. {self.text}" if self.title else self.text


_Passage: TypeAlias = tuple[str, Span, int]
"""Source id, span in the source's parsed text, and rank."""


def _holds(passage: _Passage, span: Span) -> bool:
    """Returns whether at least half of a span is inside."""
    _, (start, end), _ = passage
    return 2 * (min(span[1], end) - max(span[0], start)) >= span[1] - span[0]


def candidates(
    passages: Iterable[tuple[str, Span]], texts: Mapping[str, SourceText], most: int | None = None
) -> list[Sentence]:
    """The candidates of some passages (source, span), best passage first, then by place; of each passage the
    first `most`.

    What the end of a passage cuts counts whole where most of it is inside. Equal sentences, and equal facts
    under equal titles, count once, where they are met first. Hidden ones, headings and menus are left out.
    """
    found: dict[str, Sentence] = {}
    for rank, (source, span) in enumerate(passages):
        for s in islice(_candidates(texts[source], (source, span, rank)), most):
            found.setdefault(f"{s.around}\n{s.text}" if s.value else s.text, s)
    return list(found.values())


def _candidates(page: SourceText, passage: _Passage) -> Iterator[Sentence]:
    text, blocks = page.text, page.blocks or (Block(0, len(page.text), "paragraph"),)
    i = bisect_right([b.end for b in blocks], passage[1][0])
    last = bisect_left([b.start for b in blocks], passage[1][1])
    while 0 < i < last and all(_in_table(text, b) for b in blocks[i - 1 : i + 1]):
        i -= 1  # to the begin of the table
    title = next((text[b.start : b.end] for b in blocks if b.kind == "title"), "")
    heading = next((text[b.start : b.end] for b in blocks[:i][::-1] if b.kind == "heading"), "")
    names: list[str] | None = None  # of the open table's columns; None: no table is open
    caption = _caption(text, blocks, i - 1) if i else None  # above it
    group = ""  # first cell of its last row that has one
    while i < last:
        row = [blocks[i]]
        while (
            i + len(row) < len(blocks) and blocks[i].kind in _IN_TABLE and blocks[i + len(row)].kind == "cell"
        ):
            row.append(blocks[i + len(row)])
        i += len(row)
        if not _in_table(text, row[0]):
            names, group, caption = None, "", _caption(text, blocks, i - 1)
        heading = text[row[0].start : row[0].end] if row[0].kind == "heading" else heading
        above, label, found = f"{title} {heading}".strip(), "", list[Sentence]()
        if row[0].kind in _IN_TABLE:
            start, cells = row[0].start, [(b.start, b.end) for b in row]
            if text[start] == "|":  # some may be empty
                inner = _CELL.finditer(text[start : row[0].end].removesuffix("|"))
                begins = [(start + m.start(1) + len(m[1]) - len(m[1].lstrip()), m[1].strip()) for m in inner]
                cells = [(at, at + len(cell)) for at, cell in begins]
            said = [text[slice(*c)] for c in cells]
            if names is None:
                more = i < len(blocks) and _in_table(text, blocks[i])
                names = said if more and len(said) > 2 and not any(map(_NO_COLUMN.match, said)) else []
                if names:
                    continue
            if row[-1].end <= passage[1][0]:
                continue
            named = 2 if said[0] in ("", group) or _is_coded(said) else 1
            named_by = text[slice(*caption)] if caption else ""
            under = " ".join(filter(None, (above, named_by, "" if said[0] else group)))
            found = [replace(f, title=title) for f in _facts(cells, said, names, named, under, passage)]
            group = said[0] or group
            if not found and len(said) == 2 and len(said[0]) <= _LABEL_CHARS:  # a term, and much about it
                row, label, above = row[-1:], said[0], f"{above} {said[0]}".strip()
        for block in row if not found and row[0].kind in _CONTENT else ():
            found += _sentences(text, block, above, passage, label)
        for s in found:
            if s.span != caption and not any(a < s.span[1] and s.span[0] < b for a, b in page.hidden):
                yield s


def _caption(text: str, blocks: Sequence[Block], i: int) -> Span | None:
    """Returns where a paragraph above a table ends with a short line that is no sentence: its name."""
    block, after = blocks[i], blocks[i + 1 : i + 2]
    if block.kind != "paragraph" or not after or not _in_table(text, after[0]) or _in_table(text, block):
        return None
    start = max(block.start, block.end - MAX_CHARS)
    a, b = [(0, 0), *sentences(text[start : block.end])][-1]
    is_one = 0 < b - a <= _LABEL_CHARS and text[start + b - 1] not in ".!?;"
    return (start + a, start + b) if is_one else None


def _is_coded(said: Sequence[str]) -> bool:
    """Returns whether the name of a row stands behind its code or number: "P02 | Wych elm | 2.4"."""
    digits = [any(map(str.isdigit, cell)) for cell in said]
    return len(said) > 2 and digits[:2] == [True, False] and any(map(str.isalpha, said[1]))


def _in_table(text: str, block: Block) -> bool:
    return block.kind in _IN_TABLE or text[block.start] == "|"  # the rule under the names of columns


def _facts(
    cells: Sequence[Span],
    said: Sequence[str],
    names: Sequence[str],
    named: int,
    above: str,
    passage: _Passage,
) -> Iterator[Sentence]:
    """The facts of a row: each cell that has a label, with it. `named`: how many cells are the row's name."""
    own = [_NAMED.match(c) for c in said]
    names = names if len(names) == len(said) else [""] * len(said)  # it may have other cells than the first
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
    """The sentences of a block of which at least half are in the passage. A block may be a whole page: only
    the surroundings of the passage are split."""
    source, (first, last), rank = passage
    start = max(block.start, first - MAX_CHARS)
    for a, b in sentences(text[start : min(block.end, last + MAX_CHARS)]):
        a, b = start + a, min(start + b, start + a + MAX_CHARS)
        said = text[a:b]
        if _holds(passage, (a, b)) and any(map(str.isalnum, said)):
            label = m[1] if (m := _NAMED.match(said)) and b - a <= _VALUE_CHARS else term
            yield Sentence(source, (a, b), said, block.kind, around, rank, label)
