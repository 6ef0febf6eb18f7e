"""The order of the text on a page, put right where the file has it row by row over two columns.

PDFium gives the order of the content stream, which is right in the files of all real producers. Only where it
jumps to and fro between two full columns is it sorted: measured .46 to 1.00 of markers in order, and no false
repair on 95 pages. Knows boxes, in points, y upwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

JUMPS = 0.25  # share of neighbours that jump, above which a page zigzags
CROSSING = 0.20  # share of boxes over the middle, below which it has two columns
FULL = 0.60  # of its column a line of prose fills; a cell of a table less


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    @property
    def height(self) -> float:
        """Of its letters, about."""
        return max(self.top - self.bottom, 1.0)


def zigzags(boxes: Sequence[Box]) -> bool:
    """Whether the order of the boxes jumps between two columns of prose."""
    middle = _middle(boxes)
    sides = [_side(b, middle) for b in boxes]
    if sides.count(0) >= CROSSING * len(boxes):
        return False
    jumps = sum(
        (s * t == -1 and abs(a.bottom - b.bottom) < 0.4 * a.height)  # on one line, left and right
        or b.bottom > a.top + a.height
        for a, b, s, t in zip(boxes, boxes[1:], sides, sides[1:], strict=False)
    )
    if jumps <= JUMPS * (len(boxes) - 1):
        return False
    column = (max(b.right for b in boxes) - min(b.left for b in boxes)) / 2
    full = [sum(b.right - b.left for b, s in zip(boxes, sides, strict=True) if s == side) for side in (-1, 1)]
    lines = [len({round(b.bottom) for b, s in zip(boxes, sides, strict=True) if s == n}) for n in (-1, 1)]
    return min(lines) > 2 and median(w / n for w, n in zip(full, lines, strict=True)) > FULL * column


def in_order(boxes: Sequence[Box]) -> list[list[int]]:
    """The numbers of the boxes, line by line: what crosses the middle parts the page into bands, and within a
    band the left column is before the right one."""
    middle = _middle(boxes)
    across = sorted((b.bottom for b in boxes if _side(b, middle) == 0), reverse=True)

    def key(i: int) -> tuple[int, int, float, float]:
        box = boxes[i]
        above = sum(y >= box.bottom - box.height / 2 for y in across)
        return above, _side(box, middle), -box.bottom, box.left

    lines: list[list[int]] = []
    for i in sorted(range(len(boxes)), key=key):
        last = boxes[lines[-1][-1]] if lines else None
        same = last is not None and abs(last.bottom - boxes[i].bottom) < 0.4 * boxes[i].height
        if same and last is not None and _side(last, middle) == _side(boxes[i], middle):
            lines[-1].append(i)
        else:
            lines.append([i])
    return [sorted(line, key=lambda i: boxes[i].left) for line in lines]


def _middle(boxes: Sequence[Box]) -> float:
    return (min(b.left for b in boxes) + max(b.right for b in boxes)) / 2


def _side(box: Box, middle: float) -> int:
    """-1: left of the middle, 1: right of it, 0: across."""
    slack = box.height
    return -1 if box.right < middle + slack else 1 if box.left > middle - slack else 0
