"""Question templates, and how answers write values. Knows no domain.

A program is in the call language of the knowledge graph; its rule says how its result becomes the answer
(`RULES`). Readings of that language that are fixed here: `sort` orders the rows of the line before it and
gives the first, or all if that line said ALL, or n with `[:n]`; a key is looked up in each row, also of
`get_open`; "time" of a daily price is its date; GF and GA are the points of the named team and of the other,
in basketball too; `award_date` is the distinct years, ascending. Nothing after the time of the question is
visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Literal, TypeAlias

from raypipe.synth.world.world import World

QuestionType: TypeAlias = Literal[
    "simple",
    "simple_w_condition",
    "comparison",
    "aggregation",
    "set",
    "multi-hop",
    "post-processing",
    "false_premise",
]
Dynamism: TypeAlias = Literal["static", "slow-changing", "fast-changing", "real-time"]
Ref: TypeAlias = tuple[str, str]
"""(kind, name) of something that has a profile: movie, person, company, artist, song, team, entity."""

RULES: Mapping[str, str] = {
    "value": "the last line's value, written plainly",
    "round": "the last line's number, rounded to two decimals",
    "list": "all values of the last line in their order, joined by ', '",
    "least": "the first argument (lower case) of the line whose value is smallest",
    "most": "the first argument (lower case) of the line whose value is biggest",
    "difference": "the difference between the two lines' numbers, without its sign, two decimals at most",
    "sum": "the sum of the lines' numbers",
    "years_between": "whole years from the earlier to the later of the two lines' dates",
    "years_since": "whole years from the line's date or year to the day of asking",
    "percent_change": "change from the first line's number to the second's, in percent of the first",
    "weekday": "the weekday of the line's date",
    "yes_if_less": "'yes' if the first line's value is less than the second's, else 'no'",
    "premise": "the program gives nothing, which contradicts the question: 'invalid question'",
}
"""Plainly: dates YYYY-MM-DD, integers without separators, other numbers in their shortest form."""

INVALID = "invalid question"


@dataclass(frozen=True, slots=True)
class Now:
    """The time of a question. Between 6:00 and 20:59 Pacific, so that the day is the same in New York."""

    day: date
    time: str  # HH:MM:SS, Pacific

    @property
    def stamp(self) -> str:
        return f"{self.day:%m/%d/%Y}, {self.time} PT"

    @property
    def eastern(self) -> str:
        """HH:MM three hours later."""
        return f"{int(self.time[:2]) + 3:02d}{self.time[2:5]}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One instance of a template."""

    slots: Mapping[str, str]  # fills a phrasing
    answer: str
    alternatives: tuple[str, ...]
    said: tuple[str, ...]  # sentences that state the answer, or contradict the premise
    about: tuple[Ref, ...]  # what the pages are about
    tells: frozenset[str]  # keys of profile facts that give the answer away
    program: str = ""  # "" where no call reaches the fact
    rule: str = "value"


Draw: TypeAlias = Callable[[World, Random, Now], Asked | None]
"""None: this draw has no good question (a tie, an empty list); another is made."""


@dataclass(frozen=True, slots=True)
class Template:
    id: str  # domain.name
    type: QuestionType
    dynamism: Dynamism
    phrasings: tuple[str, ...]  # at least three; {slots} in braces
    draw: Draw
    weight: float = 1.0  # within its domain and type

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]


def long_date(day: date) -> str:
    return f"{day:%B} {day.day}, {day.year}"


def month(year: int, number: int) -> str:
    return f"{date(year, number, 1):%B %Y}"


def dated(day: date) -> tuple[str, tuple[str, ...]]:
    return day.isoformat(), (long_date(day).lower(),)


def counted(n: int) -> tuple[str, tuple[str, ...]]:
    return str(n), (() if n < 1000 else (f"{n:,}",))


def plain(x: float) -> str:
    """Its shortest form, without a trailing `.0`."""
    return f"{x:.10g}"


def price(x: float) -> str:
    return f"${x:,.2f}"


def priced(x: float) -> tuple[str, tuple[str, ...]]:
    x = round(x, 2)
    return price(x), tuple(dict.fromkeys((f"{x:.2f}", plain(x), repr(x))))


def large(dollars: int) -> str:
    """$3.02 billion, $640 million."""
    return f"${dollars / 1e9:.2f} billion" if dollars >= 1e9 else f"${dollars / 1e6:g} million"


def sized(dollars: int) -> tuple[str, tuple[str, ...]]:
    return large(dollars), (large(dollars)[1:], str(dollars), f"${dollars:,}")


def quoted(name: str) -> str:
    """A name as a string of the call language, in the lower case of the questions."""
    return f'"{name.lower()}"'


def later(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def pair(rng: Random, items: Sequence[str]) -> tuple[str, str] | None:
    """Two different items."""
    if len(items) < 2:
        return None
    a, b = rng.sample(range(len(items)), 2)
    return items[a], items[b]


def invalid(
    slots: Mapping[str, str],
    said: tuple[str, ...],
    about: tuple[Ref, ...],
    tells: frozenset[str],
    program: str,
) -> Asked:
    """A question whose premise the world contradicts. The program asks for what it presumes."""
    return Asked(slots, INVALID, (), said, about, tells, program, "premise")
