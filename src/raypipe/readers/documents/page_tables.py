"""Tables of a page with white space between their columns (`page_layout` reads tables with ruled lines).

A box is the rectangle around consecutive words of a line, in points or a scan's pixels, y upwards. Boxes are
numbered in the order of the file or of text recognition. A cell is a list of boxes, which may be empty or
come from several lines. A heading over several columns is part of each column's name. Prose in columns, code
and lists are no tables. All functions are pure. The reader's identity covers their results: with each change,
raise READER in `reader`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from statistics import median
from typing import NamedTuple, TypeAlias

GAP = 1.5  # least gap between two cells, in letter heights; the widest space in justified prose here is 1.2
DASH = 0.70  # share of its line's height with which a lower box, such as a dash, counts next to a gap
PROSE = 14  # least width of a line of prose, in letter heights: some 28 letters
COLUMNS = 63  # most columns of a table, as in a docx
LEADER = ". . ."
FILLED = 0.3  # least share of a table's rows that have a cell in each column
ORPHANS = 4  # most consecutive lines of a single cell between two rows of a table
_NUMBER = re.compile(r"(?!(?:1[0-9]|20)\d\d\Z)[-+]?[\d.,]+\s?%?")  # a number other than a year
_ITEM = re.compile(r"[^\w\s]{1,2}|\(?\w{1,3}[.)]|\[\w+\]")  # bullet or number of a list's item
_HEADING = re.compile(r"\A\d+\.\d+\.\d+(?:\.\d+)?\.?")  # number of a heading; with two dots it is no decimal
_SECTION = re.compile(r"\d+(?:\.\d+)*\.?")

Words: TypeAlias = Callable[[int], str]
"""Function from the number of a box to its text, in which white space is folded."""


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    @property
    def height(self) -> float:
        """Approximate height of the box's letters, at least 1."""
        return max(self.top - self.bottom, 1.0)

    def level_with(self, other: Box) -> bool:
        """Returns whether two boxes are on one line: they share at least half of the smaller height."""
        shared = min(self.top, other.top) - max(self.bottom, other.bottom)
        return 2 * shared >= min(self.height, other.height)


class Rule(NamedTuple):
    """Ruled line, drawn at position `at` of one axis, from `start` to `end` of the other axis."""

    at: float
    start: float
    end: float


class Row(NamedTuple):
    """Row of a table, or several rows of headings that were merged."""

    boxes: tuple[int, ...]  # numbers of the boxes that the row replaces in the text
    cells: tuple[str, ...]


def lines_of(boxes: Sequence[Box], some: Sequence[int], back: int = 1) -> list[list[int]]:
    """Groups the boxes numbered `some` into lines, top to bottom; a line's boxes go from left to right. A box
    that is level with one of the last `back` lines joins the first such line, else begins a new line."""
    found: list[list[int]] = []
    for i in sorted(some, key=lambda i: (-boxes[i].top, boxes[i].left)):
        line = next((line for line in found[-back:] if boxes[line[0]].level_with(boxes[i])), None)
        if line is None:
            found.append([i])
        else:
            line.append(i)
    return [sorted(line, key=lambda i: boxes[i].left) for line in found]


def cells_of(boxes: Sequence[Box], line: Sequence[int], gap: float = GAP) -> list[list[int]]:
    """Splits a line into cells at white space wider than `gap` times the letter height. This height is that
    of the smaller box next to the space, but at least DASH of the line's height, since a dash is low."""
    found = [[*line[:1]]] if line else []
    least = DASH * max((boxes[i].height for i in line), default=0.0)
    for i, j in pairwise(line):
        height = max(least, min(boxes[i].height, boxes[j].height))
        if boxes[j].left - boxes[i].right > gap * height:
            found.append([j])
        else:
            found[-1].append(j)
    return found


def headed(rows: list[Row]) -> list[Row]:
    """Merges the top rows while a heading covers several columns: `Sales` above `2024` becomes `Sales 2024`.
    Stops at a second row that has numbers other than years."""
    while len(rows) > 2 and len(rows[0].cells) == len(rows[1].cells):
        first, second = rows[:2]
        above = _spread(first.cells, second.cells)
        spans = any(a and a == b for a, b in pairwise(above))
        if not spans or any(map(_NUMBER.fullmatch, second.cells)):
            break
        both = zip(above, second.cells, strict=True)
        names = tuple(" ".join(dict.fromkeys(filter(None, pair))) for pair in both)
        rows = [Row(first.boxes + second.boxes, names), *rows[2:]]
    return rows


def _spread(above: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the heading for each column, given the heading row `above` and the next row, `names`. A heading
    covers the columns up to the first name that repeats, and is repeated for each of them: `A, "", B, ""`
    over `2023, 2024, 2023, 2024` becomes `A, A, B, B`."""
    found, counts, group = list(above), Counter(names), list[int]()
    for k, name in enumerate([*names, ""]):
        if k == len(names) or name in [names[i] for i in group]:
            if len(said := {above[i] for i in group} - {""}) == 1:
                for i in group:
                    found[i] = said.copy().pop() if counts[names[i]] > 1 else found[i]
            group = []
        group.append(k)
    return found


def aligned(boxes: Sequence[Box], words: Words, taken: Container[int], gap: float) -> Iterator[list[Row]]:
    """Yields the tables whose cells are separated by white space wider than `gap`, in the file's order. A
    line of a single cell may continue a cell of the row above or below it. Boxes in `taken` end a table."""
    lines: list[list[int]] = []
    for i, box in enumerate(boxes):
        last = boxes[lines[-1][-1]] if lines and lines[-1] else None
        if i in taken:
            lines.append([])
        elif last and last.level_with(box) and box.left >= last.right - 1:
            lines[-1].append(i)
        else:
            lines.append([i])
    block: list[list[list[int]]] = []  # lines of the current table; per line, per cell: numbers of its boxes
    for line in [*lines, *[[]] * (ORPHANS + 1)]:
        cells = cells_of(boxes, line, gap)
        if len(cells) > 1:
            cells = [cell for cell in cells if any(map(words, cell))]
        if len(cells) == 2 and _HEADING.fullmatch(words(line[0])):
            cells = []
        if len(cells) > 1 or (block and cells):
            block.append(cells)
        ends = not cells or (len(block) > ORPHANS and all(len(row) < 2 for row in block[-ORPHANS - 1 :]))
        if ends and block:
            yield headed(_aligned(boxes, words, block))
            block = []


def _aligned(boxes: Sequence[Box], words: Words, block: Sequence[list[list[int]]]) -> list[Row]:
    """Places the cells of a table's lines in columns. Returns [] for prose in columns, a list or code."""
    rows = [cells for cells in block if len(cells) > 1]
    count = max(map(len, rows))
    full = [row for row in rows if len(row) == count]  # rows with a cell in each column
    if count > COLUMNS or (count < 4 and (_is_list(words, rows) or _is_prose(boxes, full))):
        return []
    columns = [
        (min(boxes[row[k][0]].left for row in full), max(boxes[row[k][-1]].right for row in full))
        for k in range(count)
    ]
    heads = rows.index(full[0])  # number of rows above the first full row: they may be headings
    placed = [_placed(boxes, row, columns, n < heads) for n, row in enumerate(rows)]
    apart = all(right < left for (_, right), (left, _) in pairwise(columns))
    filled = sum(len(row) == count for row in placed)
    if count > 2 and (not apart or filled < max(2, FILLED * len(rows))):
        return []  # lines with scattered spaces, such as code
    if not apart:
        return [Row(tuple(chain(*row)), tuple(" ".join(map(words, c)) for c in row)) for row in rows]
    _add_single_cells(boxes, block, columns, placed)
    found = []
    for row in placed:
        lines = (lines_of(boxes, row.get(k, ())) for k in range(count))  # of each cell
        texts = (" ".join(words(i) for line in cell for i in line) for cell in lines)
        found.append(Row(tuple(sorted({i for cell in row.values() for i in cell})), tuple(texts)))
    return found


def _add_single_cells(
    boxes: Sequence[Box],
    block: Sequence[list[list[int]]],
    columns: Sequence[tuple[float, float]],
    placed: Sequence[dict[int, list[int]]],
) -> None:
    """Adds each line of a single cell to the nearer of the rows above and below it (`placed`), if the line
    lies in one column and is close enough to continue the row's cell there."""
    gaps = [max(0.0, _edges(boxes, a)[0] - _edges(boxes, b)[1]) for a, b in pairwise(placed)]
    below = 0  # index of the row below the line
    for cells in block:
        if len(cells) > 1:
            below += 1
            continue
        [single] = cells
        cell, box = _cell(boxes, single), boxes[single[0]]
        over = _over(cell, columns)
        edges = [(*_edges(boxes, row), row) for row in placed[below - 1 : below + 1]]
        distances = [(max(0.0, bottom - box.top, box.bottom - top), row) for bottom, top, row in edges]
        distance, nearest = min(distances, key=itemgetter(0))
        most = box.height if over and over[0] else median(gaps or [0.0]) / 2
        if len(over) == 1 and distance <= most and cell[0] >= columns[over[0]][0] - box.height:
            nearest.setdefault(over[0], []).extend(single)


def _cell(boxes: Sequence[Box], cell: Sequence[int]) -> tuple[float, float]:
    return boxes[cell[0]].left, boxes[cell[-1]].right


def _over(cell: tuple[float, float], columns: Sequence[tuple[float, float]]) -> list[int]:
    return [k for k, (left, right) in enumerate(columns) if left < cell[1] and cell[0] < right]


def _placed(
    boxes: Sequence[Box], row: Sequence[list[int]], columns: Sequence[tuple[float, float]], spans: bool
) -> dict[int, list[int]]:
    """Assigns a row's boxes to columns: column -> boxes. A box goes to the column at its place, or else to
    the nearest column. If a box lies over several columns, its whole cell goes to all of these columns if
    `spans`, else to the first of them."""
    found: dict[int, list[int]] = {}
    for cell in row:
        pieces = [[i] for i in cell]
        if any(len(_over(_cell(boxes, piece), columns)) > 1 for piece in pieces):
            pieces = [cell]
        for piece in pieces:
            span = _cell(boxes, piece)
            near = min(range(len(columns)), key=lambda k: abs(sum(columns[k]) - sum(span)))
            at = _over(span, columns) or [near]
            for k in at if spans else at[:1]:
                found[k] = [*found.get(k, ()), *piece]
    return found


def _edges(boxes: Sequence[Box], row: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Returns the bottom and the top of a row."""
    some = [boxes[i] for cell in row.values() for i in cell]
    return min(b.bottom for b in some), max(b.top for b in some)


def _is_list(words: Words, rows: Sequence[list[list[int]]]) -> bool:
    """Returns whether most rows are items of a list or of a table of contents. Also returns True if the only
    row is a numbered heading."""
    marks = [words(row[0][-1]) for row in rows]
    items = sum(bool(_ITEM.fullmatch(mark) or LEADER in mark) for mark in marks)
    return 2 * items > len(rows) or (len(rows) == 1 and bool(_SECTION.fullmatch(marks[0])))


def _is_prose(boxes: Sequence[Box], rows: Sequence[list[list[int]]]) -> bool:
    """Returns whether every column is as wide as lines of prose, by the median of its cells."""
    each = zip(*(((_cell(boxes, c), boxes[c[0]].height) for c in row) for row in rows), strict=True)
    return all(median((b - a) / h for (a, b), h in column) > PROSE for column in each)
