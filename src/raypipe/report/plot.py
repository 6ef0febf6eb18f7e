"""Geometry of the plots of reports, in the units of their SVG view boxes. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.report.wording import cut

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
"""What can become of a question, in the order of the stacked bar."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One class of questions in the stacked bar."""

    name: str  # of CLASSES
    count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Dot:
    """One score with its interval."""

    label: str
    y: float
    x: float | None  # None: nothing was scored
    low: float
    high: float
    text: str  # the score and the questions behind it


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step's seconds."""

    label: str
    y: float
    width: float
    text: str


def segments(score: Mapping[str, Any]) -> list[Segment]:
    """The stacked bar over all questions, empty classes omitted; no segment where there is no question."""
    exact = score["n_correct_exact"]
    judged, missing = score["n_correct"] - exact, score["n_miss"]
    counts = (exact, judged, missing, score["n_hallucination"], score["n_unscored"])
    out, before = [], 0
    for name, count in zip(CLASSES, counts, strict=True):
        if count:
            x, width = (round(WIDTH * n / score["total"], 1) for n in (before, count))
            out.append(Segment(name, count, x, width))
        before += count
    return out


def at(score: float) -> float:
    """Where a score of -1..1 stands on the axis."""
    return round(LEFT + (RIGHT - LEFT) * (score + 1) / 2, 1)


def narrow(x: float) -> float:
    """Where on a phone stands what stands at `x` of the wide axis."""
    return round(10 + (NARROW - 20) * (x - LEFT) / (RIGHT - LEFT), 1)


def dots(report: Mapping[str, Any], slices: Sequence[Mapping[str, Any]]) -> list[Dot]:
    """The score of all questions, then of each of these slices, from top to bottom."""
    rows: list[tuple[str, str, Mapping[str, Any]]] = [("", "all questions", report)]
    rows += [(s["label"], f"{s['label']}: {s['value']}", s) for s in slices]
    out: list[Dot] = []
    y, last = 0.0, ""
    for label, text, part in rows:
        y += ROW if label == last else 1.5 * ROW  # labels stand apart
        last = label
        low, high = part["interval"] or (0.0, 0.0)
        scored = part["total"] - part["n_unscored"]
        shown = "not scored" if part["score"] is None else f"{part['score']:+.2f}  n={scored}"
        x = None if part["score"] is None else at(part["score"])
        out.append(Dot(cut(text, LABEL), y, x, at(low), at(high), shown))
    return out


def bars(steps: Sequence[Mapping[str, Any]]) -> list[StepBar]:
    """The seconds of each step, the slowest one as wide as the plot."""
    wide, longest = RIGHT - LEFT, max((s["seconds"] for s in steps), default=0) or 1
    return [
        StepBar(
            cut(s["step"], LABEL), i * ROW, round(wide * s["seconds"] / longest, 1), f"{s['seconds']:,.1f} s"
        )
        for i, s in enumerate(steps, 1)
    ]


@dataclass(frozen=True, slots=True)
class BinDot:
    """One bin of a reliability diagram."""

    x: float  # where its mean probability stands
    y: float  # its share of right answers
    low: float  # ends of the interval of that share
    high: float
    text: str


def across(share: float) -> float:
    """Where a share of 0..1 stands on the axis of a square plot."""
    return round(EDGE + SIDE * share, 1)


def up(share: float) -> float:
    """The same on the axis that rises."""
    return round(EDGE + SIDE * (1 - share), 1)


def reliability(bins: Sequence[Mapping[str, Any]]) -> list[BinDot]:
    """The bins of a reliability diagram: exact probabilities stand on the diagonal."""
    return [
        BinDot(
            across(b["mean"]), up(b["right"]), up(b["interval"][0]), up(b["interval"][1]),
            f"{b['n']} answers of probability {b['mean']:.2f}: {b['right']:.2f} right",
        )
        for b in bins
    ]  # fmt: skip


def curve(points: Sequence[Mapping[str, Any]]) -> str:
    """A risk-coverage curve as the points of an SVG polyline."""
    return " ".join(f"{across(p['coverage'])},{up(p['risk'])}" for p in points)
