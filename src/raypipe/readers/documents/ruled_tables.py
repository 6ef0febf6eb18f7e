"""Tables of a page whose columns and rows are separated by ruled lines.

A box is the rectangle of some consecutive words, as in `page_tables`. All functions are pure. What they
return is part of the reader's identity: raise READER in `reader` with each change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raypipe.readers.documents.page_tables import Box, Row, Rule, Words, cells_of, headed, lines_of

LABEL = 80  # most characters of a merged cell whose text is repeated in its rows and columns
CELL = 400  # most characters of a cell; longer text in a frame is prose
NEAR = 2.5  # points, the tolerance within which two ruled lines meet
RULES = 150  # most ruled lines of a page with tables; a chart has more


def ruled(
    boxes: Sequence[Box], words: Words, across: Sequence[Rule], down: Sequence[Rule]
) -> Iterator[list[Row]]:
    """Yields the tables with ruled lines between columns and rows; none if there are over RULES lines."""
    across, down = joined_rules(across), joined_rules(down)
    if len(across) + len(down) > RULES:
        return
    for grid in _grids(across, down):
        if rows := grid.rows(boxes, words):
            yield headed(rows)


def joined_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Merges ruled lines that overlap or continue each other."""
    found: list[Rule] = []
    for rule in sorted(rules, key=lambda r: (round(r.at / NEAR), r.start)):
        last = found[-1] if found else None
        if last and abs(last.at - rule.at) <= NEAR and rule.start <= last.end + NEAR:
            found[-1] = last._replace(end=max(last.end, rule.end))
        else:
            found.append(rule)
    return found


def _grids(across: Sequence[Rule], down: Sequence[Rule]) -> Iterator[_Grid]:
    """Yields the grids of ruled lines that meet, if they have at least two columns and two rows."""
    left = set(range(len(across) + len(down)))
    rules = [*across, *down]

    def meet(i: int, j: int) -> bool:
        if (i < len(across)) == (j < len(across)):
            return False
        a, b = rules[i], rules[j]
        on = a.start - NEAR <= b.at <= a.end + NEAR
        return on and b.start - NEAR <= a.at <= b.end + NEAR

    while left:
        some = [left.pop()]
        for i in some:  # the list grows during the loop
            more = [j for j in left if meet(i, j)]
            some += more
            left -= set(more)
        rows = [rules[i] for i in some if i < len(across)]
        columns = [rules[i] for i in some if i >= len(across)]
        xs = _places([r.at for r in columns] + [x for r in rows for x in (r.start, r.end)])
        ys = _places([r.at for r in rows] + [y for r in columns for y in (r.start, r.end)])
        if len(xs) > 2 and len(ys) > 2:
            yield _Grid(xs, ys, rows, columns)


def _places(at: Sequence[float]) -> list[float]:
    """Sorts positions, and drops each that is near the last position kept."""
    found: list[float] = []
    for x in sorted(at):
        if not found or x - found[-1] > 2 * NEAR:
            found.append(x)
    return found


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cells between ruled lines; row 0 is at the top."""

    xs: list[float]  # ascending
    ys: list[float]  # ascending
    across: list[Rule]
    down: list[Rule]

    def rows(self, boxes: Sequence[Box], words: Words) -> list[Row]:
        """Returns the table's rows that have text. Returns none if the grid is a frame around prose, or
        around columns without ruled lines."""
        held: dict[tuple[int, int], list[int]] = {}  # (row, column) -> boxes
        for i, box in enumerate(boxes):
            column = bisect_left(self.xs, (box.left + box.right) / 2) - 1
            row = len(self.ys) - 1 - bisect_left(self.ys, (box.bottom + box.top) / 2)
            if 0 <= column < len(self.xs) - 1 and 0 <= row < len(self.ys) - 1 and words(i):
                held.setdefault((row, column), []).append(i)
        lines = {at: lines_of(boxes, some) for at, some in held.items()}
        said = {at: " ".join(words(i) for line in lines[at] for i in line) for at in held}
        filled = Counter(row for row, _ in held)
        full = [row for row, n in filled.items() if n > 1]
        unruled = {row for (row, _), some in lines.items() if any(len(cells_of(boxes, x)) > 1 for x in some)}
        prose = sum(len(s) for s in said.values() if len(s) > CELL)
        if len(full) < 2 or 2 * len(unruled) >= len(full) or 2 * prose > sum(map(len, said.values())):
            return []
        for cells in self._merged():
            there = [at for at in cells if at in said]
            if len(there) == 1 and len(cells) > 1 and len(said[there[0]]) <= LABEL:
                said |= dict.fromkeys(cells, said[there[0]])
        found: list[Row] = []
        columns = [c for c in range(len(self.xs) - 1) if any(column == c for _, column in held)]
        for row in sorted(filled):
            some = [i for c in columns for i in held.get((row, c), ())]
            apart = lines_of(boxes, some)
            each = [
                [" ".join(words(i) for i in line if i in held.get((row, c), ())) for c in columns]
                for line in apart
            ]
            many = len(apart) > 3 or len(filled) < 4  # several rows without lines between them
            if len(apart) > 1 and many and all(e[0] and any(e[1:]) for e in each):
                found += [Row(tuple(line), tuple(e)) for line, e in zip(apart, each, strict=True)]
                continue
            texts = tuple(said.get((row, c), "") for c in columns)
            if len(set(texts)) > 1:
                found.append(Row(tuple(some), texts))
            elif found:  # a cell over all columns is a subheading; above the first row it is a title, no row
                found.append(Row(tuple(some), texts[:1]))
        return found

    def _merged(self) -> list[set[tuple[int, int]]]:
        """Returns the groups of cells (row, column) with no ruled line between them."""
        of: dict[tuple[int, int], set[tuple[int, int]]] = {}
        rows, columns = len(self.ys) - 1, len(self.xs) - 1
        for row in range(rows):
            below, above = self.ys[rows - row - 1 : rows - row + 1]
            for column in range(columns):
                cells = of.setdefault((row, column), {(row, column)})
                x, left = self.xs[column], (self.xs[column] + self.xs[column + 1]) / 2
                joins = []
                if column and not _covered(self.down, x, (below + above) / 2):
                    joins.append((row, column - 1))
                if row and not _covered(self.across, above, left):
                    joins.append((row - 1, column))
                for other in joins:
                    if of[other] is not cells:
                        cells |= of[other]
                        of |= dict.fromkeys(cells, cells)
        return list({id(cells): cells for cells in of.values()}.values())


def _covered(rules: Sequence[Rule], at: float, along: float) -> bool:
    return any(abs(r.at - at) <= 2 * NEAR and r.start - NEAR <= along <= r.end + NEAR for r in rules)
