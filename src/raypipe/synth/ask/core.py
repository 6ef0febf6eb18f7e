"""Question templates: what one is, what an attempt at a question draws with, and what comes of it.

A program is in the call language of the knowledge graph; its rule says how its result becomes the answer
(`answer_rules.RULES`). Readings of that language that are fixed here: `sort` orders the rows of the line
before it and gives the first, or all if that line said ALL, or n with `[:n]`; a key is looked up in each row,
also of `get_open`; "time" of a daily price is its date; GF and GA are the points of the named team and of the
other, in basketball too; `award_date` is the distinct years, ascending. Nothing after the time of the
question is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

from raypipe.synth.ask.forms import Written
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


Drawn: TypeAlias = tuple[Scene, Written]
"""A question before its wording, and its answer."""
Shape: TypeAlias = Callable[[Attempt, str], Drawn | None]
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
