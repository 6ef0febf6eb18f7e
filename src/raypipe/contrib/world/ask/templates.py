"""Question templates and their shapes: value, compare, count, list (`several`), false premise.

An `Attempt` has the world, random numbers and time of one try. A drawer uses an attempt to draw a `Scene`:
rows of the world, and words for them. `{m}` in a program, phrasing or sentence stands for the scene's word
`m`. A shape combines a drawer with a function that computes the answer.

A program is written in the call language of the knowledge graph; a rule turns the program's result into the
answer (`answer_rules.RULES`). Invented questions read that language in this way. `sort` orders the rows of
the line before, and gives the first row, all rows if that line has ALL, or n rows with `[:n]`. A key is
looked up in each row, also in rows of `get_open`. "time" of a daily price is the date. GF and GA are the
points of the named team and of the opponent, also in basketball. `award_date` gives the distinct years,
ascending. Nothing after the time of the question is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any, TypeAlias, TypeVar

from raypipe.contrib.world.ask.spellings import Spelling, also, counted, listed
from raypipe.contrib.world.world import names
from raypipe.contrib.world.world.world import World

T = TypeVar("T")
Ref: TypeAlias = tuple[str, str]
"""(kind, name) of a thing with a profile. Kinds: movie, person, company, artist, song, team, entity."""

INVALID = "invalid question"


@dataclass(frozen=True, slots=True)
class Now:
    """Time of a question, from 6:00 to 20:59 Pacific: New York has the same date."""

    day: date
    time: str  # HH:MM:SS, Pacific

    @property
    def stamp(self) -> str:
        return f"{self.day:%m/%d/%Y}, {self.time} PT"

    @property
    def eastern(self) -> str:
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
        return int(self.rng.random() * count)


@dataclass(frozen=True, slots=True)
class Scene:
    it: Any  # rows of the world, or a value computed from them
    about: tuple[Ref, ...]  # subjects of the pages
    words: Mapping[str, str]  # fill phrasings, sentences and, in lower case, the program

    def at(self, it: Any, *about: Ref, **words: str) -> Scene:
        """Returns a copy of this scene with another `it`, more subjects and more words."""
        return Scene(it, self.about + about, {**self.words, **words})


def scene(it: Any, *about: Ref, **words: str) -> Scene:
    return Scene(it, about, words)


Drawn: TypeAlias = tuple[Scene, Spelling]
"""A drawn scene, and the answer of its question."""
Shape: TypeAlias = Callable[[Attempt, str], Drawn | None]
"""Attempt, template's rule -> scene and answer. None: no good question (a tie, an empty list); then another
attempt follows."""


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    slots: Mapping[str, str]  # words of a phrasing
    answer: str
    alternatives: tuple[str, ...]
    said: tuple[str, ...]  # sentences of pages: they state the answer, or contradict the premise
    about: tuple[Ref, ...]  # subjects of the pages
    tells: frozenset[str]  # keys of profile facts that give the answer away
    program: str  # "": no call of the graph returns the fact
    rule: str


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of question: its wording comes from a YAML file, its shape computes the answer."""

    id: str  # domain.name
    shape: Shape
    type: str  # one of `questions.TYPE_SHARES`
    dynamism: str  # static, slow-changing, fast-changing or real-time
    tells: tuple[str, ...]  # keys of profile facts that give the answer away; with {words}
    phrasings: tuple[str, ...]  # at least three; {words} in braces
    sentences: tuple[str, ...]  # each states the answer, or contradicts the premise
    weight: float = 1  # relative frequency within its domain and type
    program: str = ""  # with {words}; "": no call of the graph returns the fact
    rule: str = "value"

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]

    def ask(self, attempt: Attempt) -> DrawnQuestion | None:
        """Draws one question with its answer. Returns None if the attempt drew no good one."""
        drawn = self.shape(attempt, self.rule)
        if drawn is None:
            return None
        found, written = drawn
        words = {**found.words, "v": written.spoken}
        return DrawnQuestion(
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
    """Returns a drawer of one row that prefers early rows. The row's name becomes the word {slot}."""

    def drawer(d: Attempt) -> Scene:
        row = d.skewed(rows(d.world))
        return scene(row, (kind, row.name), **{slot: row.name})

    return drawer


def two(rows: Rows, kind: str) -> Callable[[Attempt], Scene]:
    """Returns a drawer of two rows, {a} and {b}, that prefers early rows. Both may be the same row."""

    def drawer(d: Attempt) -> Scene:
        a, b = d.skewed(rows(d.world)), d.skewed(rows(d.world))
        return scene((a, b), (kind, a.name), (kind, b.name), a=a.name, b=b.name)

    return drawer


def then(drawer: Drawer, link: Callable[[Attempt, Scene], Scene | None]) -> Drawer:
    """Returns a drawer that follows a link from a drawn scene. `*` in a program is the last line's result."""

    def drawn(d: Attempt) -> Scene | None:
        found = drawer(d)
        return link(d, found) if found else None

    return drawn


def value(drawer: Drawer, answer: Callable[[Any], Spelling | None]) -> Shape:
    """Returns a shape whose answer is a value of the scene, or computed from it."""

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
    """Returns a shape that asks which of {a} and {b} has less or more of a measure.

    Rule `least` asks for less, `most` for more, `yes_if_less` if {a} has less. Words: {best} with the value
    {top}, {other} with the value {low}. There is no question if the values are equal or one is None.
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
    """Returns a shape that asks for a number of rows, at least `least`. Word: {plural}, "s" or ""."""

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
    form: Callable[[Sequence[Any]], Spelling] = listed,
) -> Shape:
    """Returns a shape that asks for a list in order, of at least `least` values."""

    def answer(it: Any) -> Spelling | None:
        found = rows(it)
        return form(found) if len(found) >= least else None

    return value(drawer, answer)


def false(drawer: Drawer) -> Shape:
    """Returns a shape whose premise the world contradicts. Its program asks for the presumed fact."""
    return value(drawer, lambda it: Spelling(INVALID, (), ""))
