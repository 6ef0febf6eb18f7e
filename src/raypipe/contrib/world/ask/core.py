"""Question templates: what one is, what an attempt at a question draws with, and its shape: value, compare,
count, list (`several`), false premise. Knows no domain.

A program is in the call language of the knowledge graph; its rule says how its result becomes the answer
(`answer_rules.RULES`). Readings of that language that are fixed here: `sort` orders the rows of the line
before it and gives the first, or all if that line said ALL, or n with `[:n]`; a key is looked up in each row,
also of `get_open`; "time" of a daily price is its date; GF and GA are the points of the named team and of the
other, in basketball too; `award_date` is the distinct years, ascending. Nothing after the time of the
question is visible.

A shape takes how its scene is drawn, and what the answer is. A scene is what was drawn and the words for it:
`{m}` of a program, a phrasing or a sentence is `m` of the scene's words. Called with an attempt and the rule
of the template, a shape gives the scene and the answer, None where the attempt drew no good one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any, TypeAlias, TypeVar

from raypipe.contrib.world.ask.forms import Written, also, counted, listed
from raypipe.contrib.world.world import names
from raypipe.contrib.world.world.world import World

T = TypeVar("T")
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


Drawn: TypeAlias = tuple[Scene, Written]
"""A question before its wording, and its answer."""
Shape: TypeAlias = Callable[[Attempt, str], Drawn | None]
"""Result of an attempt and the template's rule. None: there is no good question (a tie, an empty list);
another attempt is made."""


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
    type: str  # one of `questions.TYPE_SHARES`
    dynamism: str  # static, slow-changing, fast-changing or real-time
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
        """Returns one question with its answer; None if there is no good one."""
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


Drawer: TypeAlias = Callable[[Attempt], Scene | None]
Rows: TypeAlias = Callable[[World], Sequence[Any]]


def one(rows: Rows, kind: str, slot: str) -> Callable[[Attempt], Scene]:
    """Draws a row, one of the first more often. Its name is the word {slot}."""

    def drawer(d: Attempt) -> Scene:
        row = d.skewed(rows(d.world))
        return scene(row, (kind, row.name), **{slot: row.name})

    return drawer


def two(rows: Rows, kind: str) -> Callable[[Attempt], Scene]:
    """Draws two rows so, {a} and {b}, which may be one."""

    def drawer(d: Attempt) -> Scene:
        a, b = d.skewed(rows(d.world)), d.skewed(rows(d.world))
        return scene((a, b), (kind, a.name), (kind, b.name), a=a.name, b=b.name)

    return drawer


def then(drawer: Drawer, link: Callable[[Attempt, Scene], Scene | None]) -> Drawer:
    """Draws what is linked to what `drawer` draws: `*` in a program stands for that."""

    def drawn(d: Attempt) -> Scene | None:
        found = drawer(d)
        return link(d, found) if found else None

    return drawn


def value(drawer: Drawer, answer: Callable[[Any], Written | None]) -> Shape:
    """Returns one value of what was drawn, or computed from it."""

    def shape(d: Attempt, rule: str) -> Drawn | None:
        found = drawer(d)
        written = answer(found.it) if found else None
        return (found, written) if found and written else None

    return shape


def compare(
    drawer: Drawer,
    measure: Callable[[Any], Any],
    spoken: Callable[[Any], str] = str,
    others: Callable[[Any], Sequence[str]] = lambda one: (),
) -> Shape:
    """Which of two, {a} or {b}, has less of a measure (`least`) or more (`most`); `yes_if_less`: has {a}?

    Words: {best} with {top}, the {other} with {low}. No question where they are equal or one has none.
    """

    def shape(d: Attempt, rule: str) -> Drawn | None:
        found = drawer(d)
        if found is None:
            return None
        sides = [(measure(one), found.words[slot], one) for one, slot in zip(found.it, "ab", strict=True)]
        if None in (sides[0][0], sides[1][0]) or sides[0][0] == sides[1][0]:
            return None
        (top, best, one), (low, other, _) = sorted(sides, key=lambda s: s[0], reverse=rule == "most")
        words = {"best": best, "other": other, "top": spoken(top), "low": spoken(low)}
        yes = "Yes" if best == found.words["a"] else "No"
        written = also(yes) if rule == "yes_if_less" else also(best, *others(one))
        return found.at(found.it, **words), written

    return shape


def count(drawer: Drawer, number: Callable[[Any], int] = len, least: int = 1) -> Shape:
    """Returns how many rows there are. `least`: no question about fewer. Word: {plural}, an "s" or
    nothing."""

    def shape(d: Attempt, rule: str) -> Drawn | None:
        found = drawer(d)
        n = number(found.it) if found else 0
        if found is None or n < least:
            return None
        return found.at(found.it, plural="s" if n > 1 else ""), counted(n)

    return shape


def several(
    drawer: Drawer,
    rows: Callable[[Any], Sequence[Any]] = list,
    least: int = 1,
    form: Callable[[Sequence[Any]], Written] = listed,
) -> Shape:
    """A list in its order. `least`: no question about shorter ones."""

    def answer(it: Any) -> Written | None:
        found = rows(it)
        return form(found) if len(found) >= least else None

    return value(drawer, answer)


def false(drawer: Drawer) -> Shape:
    """A question whose premise the world contradicts. The program asks for what it presumes."""
    return value(drawer, lambda it: Written(INVALID, (), ""))
