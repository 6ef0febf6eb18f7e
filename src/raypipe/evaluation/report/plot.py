"""Geometry of the plots of reports, in the units of their SVG view boxes. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raypipe.evaluation.report.wording import cut
from raypipe.metrics.crag import CragScore, RuleScore, Slice

WIDTH = 720  # of every plot that has lines
ROW = 22  # height of one line
LEFT = 230  # where bars and axes begin; labels stand before it
LABEL = 34  # characters of a label
RIGHT = 620  # where they end; numbers stand behind it

NARROW = 360  # of the same plot on a phone, where labels stand over their lines
PITCH = 1.7  # how much higher its lines are

SIDE = 300  # of a square plot of two shares
EDGE = 40  # around it, for its axes

CLASSES = ("exact", "judged", "missing", "hallucination", "unscored")
"""Verdicts of a question, in the order of the stacked bar."""


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Returns where a value between `low` and `high` stands between `start` and `end`, to a tenth of a
    unit."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low), 1)


at = scale(-1, 1, LEFT, RIGHT)  # of a score
narrow = scale(LEFT, RIGHT, 10, NARROW - 10)  # on a phone, of what stands there on the wide axis
across, up = scale(0, 1, EDGE, EDGE + SIDE), scale(0, 1, EDGE + SIDE, EDGE)  # of a share in a square plot


def segments(score: CragScore) -> list[tuple[str, int, float, float]]:
    """The stacked bar over all questions: class, questions, x and width of each that has some."""
    exact, missing, wrong = score.n_correct_exact, score.n_miss, score.n_hallucination
    counts = (exact, score.n_correct - exact, missing, wrong, score.n_unscored)
    wide = scale(0, score.total or 1, 0, WIDTH)
    found = enumerate(zip(CLASSES, counts, strict=True))
    return [(name, n, wide(sum(counts[:i])), wide(n)) for i, (name, n) in found if n]


@dataclass(frozen=True, slots=True)
class Dot:
    """A score with its interval."""

    label: str
    y: float
    x: float | None  # None: nothing was scored
    low: float
    high: float
    text: str  # the score and the questions behind it


def dots(whole: RuleScore, slices: Sequence[Slice]) -> list[Dot]:
    """The score of all questions, then of each of these slices, from top to bottom."""
    rows: list[tuple[str, str, RuleScore | Slice]] = [("", "all questions", whole)]
    rows += [(s.label, f"{s.label}: {s.value}", s) for s in slices]
    out: list[Dot] = []
    y, last = 0.0, ""
    for label, text, part in rows:
        y += ROW if label == last else 1.5 * ROW  # labels stand apart
        last = label
        low, high = part.interval or (0.0, 0.0)
        value, scored = part.score.score, part.score.total - part.score.n_unscored
        shown = "not scored" if value is None else f"{value:+.2f}  n={scored}"
        x = None if value is None else at(value)
        out.append(Dot(cut(text, LABEL), y, x, at(low), at(high), shown))
    return out
