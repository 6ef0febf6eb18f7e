"""Question templates: what one is, what an attempt at a question draws with, and what comes of it.

A program is in the call language of the knowledge graph; its rule says how its result becomes the answer
(`answer_rules.RULES`). Readings of that language that are fixed here: `sort` orders the rows of the line
before it and gives the first, or all if that line said ALL, or n with `[:n]`; a key is looked up in each row,
also of `get_open`; "time" of a daily price is its date; GF and GA are the points of the named team and of the
other, in basketball too; `award_date` is the distinct years, ascending. Nothing after the time of the
question is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

from raypipe.synth.world import names
from raypipe.synth.world.world import World

T = TypeVar("T")
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
class Attempt:
    world: World
    rng: Random
    now: Now

    def pick(self, items: Sequence[T]) -> T:
        return names.pick(self.rng, items)

    def skewed(self, items: Sequence[T]) -> T:
        return names.skewed(self.rng, items)

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        return int(self.rng.random() * count)


@dataclass(frozen=True, slots=True)
class Scene:
    it: Any  # rows of the world, or what was counted or looked up in them
    about: tuple[Ref, ...]  # what the pages are about
    words: Mapping[str, str]  # fill phrasings, sentences and, in lower case, the program

    def at(self, it: Any, *about: Ref, **words: str) -> Scene:
        """The same scene with `it` in the middle, more subjects and more words."""
        return Scene(it, self.about + about, {**self.words, **words})


def scene(it: Any, *about: Ref, **words: str) -> Scene:
    return Scene(it, about, words)


Drawn: TypeAlias = "tuple[Scene, Written]"
"""A question before its wording, and its answer."""
Shape: TypeAlias = "Callable[[Attempt, str], Drawn | None]"
"""Of an attempt and the template's rule. None: there is no good question (a tie, an empty list); another
attempt is made."""


@dataclass(frozen=True, slots=True)
class Asked:
    slots: Mapping[str, str]  # fills a phrasing
    answer: str
    alternatives: tuple[str, ...]
    said: tuple[str, ...]  # sentences that state the answer, or contradict the premise
    about: tuple[Ref, ...]  # what the pages are about
    tells: frozenset[str]  # keys of profile facts that give the answer away
    program: str  # "" where no call reaches the fact
    rule: str


@dataclass(frozen=True, slots=True)
class Template:
    """A question to be drawn: its wording is data of a YAML file, its shape says what the answer is."""

    id: str  # domain.name
    shape: Shape
    type: QuestionType
    dynamism: Dynamism
    tells: tuple[str, ...]  # with {words}
    phrasings: tuple[str, ...]  # at least three; {words} in braces
    sentences: tuple[str, ...]  # each states the answer, or contradicts the premise
    weight: float = 1  # within its domain and type
    program: str = ""  # with {words}; "" where no call reaches the fact
    rule: str = "value"

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]

    def ask(self, attempt: Attempt) -> Asked | None:
        """One question with its answer; None if there is no good one."""
        drawn = self.shape(attempt, self.rule)
        if drawn is None:
            return None
        found, written = drawn
        words = {**found.words, "v": written.spoken}
        return Asked(
            slots=words,
            answer=written.answer,
            alternatives=written.others,
            said=tuple(s.format_map(words) for s in self.sentences),
            about=found.about,
            tells=frozenset(t.format_map(words) for t in self.tells),
            program=self.program.format_map({k: v.lower() for k, v in words.items()}),
            rule=self.rule,
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A value in its forms."""

    answer: str  # lower case
    others: tuple[str, ...]  # lower case
    spoken: str


def long_date(day: date) -> str:
    return f"{day:%B} {day.day}, {day.year}"


def plain(x: float) -> str:
    """Its shortest form, without a trailing `.0`."""
    return f"{x:.10g}"


def price(x: float) -> str:
    return f"-${-x:.2f}" if x < 0 else f"${x:,.2f}"


def large(dollars: int) -> str:
    """$3.02 billion, $640 million."""
    return f"${dollars / 1e9:.2f} billion" if dollars >= 1e9 else f"${dollars / 1e6:g} million"


def named(name: str) -> Written:
    return Written(name.lower(), (), name)


def listed(names: Iterable[object]) -> Written:
    return named(", ".join(map(str, names)))


def also(name: str, *others: str) -> Written:
    """A name that has other names."""
    return Written(name.lower(), tuple(o.lower() for o in others), name)


def articled(name: str) -> Written:
    """A name that begins with an article, which an answer may leave out."""
    return also(name, name.split(" ", 1)[1])


def dated(day: date) -> Written:
    return Written(day.isoformat(), (long_date(day).lower(),), long_date(day))


def dates(days: Iterable[date]) -> Written:
    each = [dated(d) for d in days]
    spoken = ", ".join(d.spoken for d in each)
    return Written(", ".join(d.answer for d in each), (spoken.lower(),), spoken)


def counted(n: int) -> Written:
    return Written(str(n), () if n < 1000 else (f"{n:,}",), f"{n:,}")


def units(n: int | None, *names: str) -> Written:
    return Written(str(n), tuple(f"{n} {name}" for name in names), str(n))


def decimal(x: float) -> Written:
    return Written(plain(x), (f"{x:.2f}",), plain(x))


def priced(x: float) -> Written:
    x = round(x, 2)
    return Written(price(x), tuple(dict.fromkeys((f"{x:.2f}", plain(x), repr(x)))), price(x))


def per_share(x: float) -> Written:
    """Earnings, which may be a loss."""
    return Written(price(x), tuple(dict.fromkeys((plain(x), f"{x:.2f}"))), price(x))


def dollars(text: str, *others: str) -> Written:
    """An amount, with or without its sign."""
    return Written(f"${text}", (*others, text), f"${text}")


def percent(share: float) -> Written:
    x = round(share * 100, 2)
    return Written(f"{plain(x)}%", (plain(x), f"{x:.2f}%"), f"{plain(x)}%")


def sized(dollars: int) -> Written:
    text = large(dollars)
    return Written(text, (text[1:], str(dollars), f"${dollars:,}"), text)


def years(start: date, end: date) -> int:
    return end.year - start.year - ((end.month, end.day) < (start.month, start.day))


def age(start: date, end: date) -> Written:
    return units(years(start, end), "years old", "years")


def apart(a: int, b: int) -> Written | None:
    """The years between two years; none if they are one."""
    return units(abs(a - b), "years") if a != b else None
