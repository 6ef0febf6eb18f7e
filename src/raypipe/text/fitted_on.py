"""Origin of fitted numbers, and the questions that the fit has seen. Pure; knows no fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raypipe.core.records import digest

HALVES = 2  # parts of a data set: one is fitted on, the other says how good the fit is
_DIGITS = 8  # of a question's digest: 2,706 questions meet one of 1,353 others by chance once in 1,200 runs


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Origin of fitted numbers. Scores of questions that a fit has seen are marked."""

    data: str  # name and digest of the data
    split: str  # which rows of it
    metric: str  # what was fitted, and how well it does there
    n: int = 0  # questions
    recipe: str = ""  # name of the recipe; "": of any
    basis: str = ""  # digest of the steps that the numbers rest on; "": they rest on no recipe
    seen: str = ""  # digests of these questions' texts, parted by spaces; "": not kept

    def has_seen(self, text: str) -> bool:
        """Returns whether a question with this text was among those of the fit.

        >>> on = FittedOn("demo", "half 0", "score", seen=seen_rows(["who wrote it?"]))
        >>> on.has_seen("who wrote it?"), on.has_seen("who sang it?")
        (True, False)
        """
        return row_digest(text) in self.seen.split()


def row_digest(text: str) -> str:
    """Names a question by its text: ids are often line numbers, which other data have, too."""
    return digest("seen", text)[:_DIGITS]


def seen_rows(texts: Iterable[str]) -> str:
    """The questions of a fit as `FittedOn` keeps them."""
    return " ".join(sorted({row_digest(t) for t in texts}))


def half_of(key: str) -> int:
    """The half, 0 or 1, that a question belongs to, by its id, or by its group where questions come in
    groups. Nothing but the key decides, so a question stays in its half whatever else the data hold.

    >>> [half_of(id) for id in ("q1", "q2", "q3", "q4")]
    [1, 0, 0, 1]
    """
    return part_of(key, HALVES, "split")


def part_of(key: str, parts: int, salt: str) -> int:
    """Returns one of 0..parts - 1 for a key; another salt deals them otherwise."""
    return int(digest(salt, key)[:8], 16) % parts
