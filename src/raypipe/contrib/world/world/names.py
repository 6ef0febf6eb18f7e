"""Invented names of people, places, films, songs, firms and teams, made of syllables and common words.

The common words are those of `words/names.yaml`. The module also has the random draws that all parts of the
world use, and the reader of `words/*.yaml`: the sentences of questions and pages.

Every title has at least one invented word, so no title is a real film, song or firm by accident.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from random import Random
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """Splits a pool of words that is written as one string."""
    return tuple(text.split())


ONSETS = words("b br d dr f g gr h j k kl l m n p pr qu r s sk st t tr v vr w y z th sh zh dv")
VOWELS = words("a e i o u a e i o ae ei ou")
CODAS = ["n", "r", "l", "s", "th", "m", "x", "nd", "rk", "ll", "v", "z", "", "", "", "", "", "", ""]
ACCENTS = str.maketrans("aeiou", "áéíöü")


def pick(rng: Random, items: Sequence[T]) -> T:
    """Draws one of the items. `Random.choice` is three times slower, and pages make millions of choices."""
    return items[int(rng.random() * len(items))]


def skewed(rng: Random, items: Sequence[T]) -> T:
    """Draws one of the items, early items more often: most questions are about famous things."""
    u = rng.random()
    return items[int(u * u * len(items))]


def number(rng: Random, low: int, count: int) -> int:
    return low + int(rng.random() * count)


def grouped(
    rows: Iterable[T], key: Callable[[T], str], order: Callable[[T], Any] | None = None
) -> dict[str, tuple[T, ...]]:
    found: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return {k: tuple(sorted(v, key=order) if order else v) for k, v in found.items()}


def word(rng: Random, syllables: int) -> str:
    head = pick(rng, ONSETS) + pick(rng, VOWELS)
    tail = "".join(pick(rng, ONSETS) + pick(rng, VOWELS) for _ in range(syllables - 1)) + pick(rng, CODAS)
    return ((head[:-1] + head[-1].translate(ACCENTS) if rng.random() < 0.05 else head) + tail).capitalize()


def plural(noun: str) -> str:
    return noun + ("es" if noun.endswith("s") else "s")


class NameSource:
    """Source of names. Each full name is given out once; only characters may share names."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._said = rng, wording("names")
        self._nouns, self._adjectives, self._trades, self.animals = (
            words(self._said[kind]) for kind in ("nouns", "adjectives", "trades", "animals")
        )
        self.subjects: Sequence[str] = self._said["subjects"]
        self.mascots: Sequence[str] = self._said["mascots"]
        self._taken: set[str] = set()
        self._given = self._pool(170, 2)
        self._family = self._pool(260, 2) + self._pool(80, 3)

    def _pool(self, size: int, syllables: int) -> list[str]:
        return [self._fresh(lambda: word(self._rng, syllables)) for _ in range(size)]

    def _fresh(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if name.lower() not in self._taken:
                self._taken.add(name.lower())
                return name

    def given(self) -> str:
        return pick(self._rng, self._given)

    def family(self) -> str:
        return pick(self._rng, self._family)

    def person(self) -> str:
        return self._fresh(lambda: f"{self.given()} {self.family()}")

    def character(self) -> str:
        """Returns a character's name. Characters of two films may share it."""
        return self.given() if self._rng.random() < 0.3 else f"{self.given()} {self.family()}"

    def coined(self, *endings: str) -> str:
        """Returns an invented word with one of the endings."""
        return self._fresh(lambda: word(self._rng, 2) + (pick(self._rng, endings) if endings else ""))

    def film(self) -> str:
        return self._titled("films", 1)

    def song(self) -> str:
        return self._titled("songs", 3)

    def _titled(self, kind: str, given: int) -> str:
        """Returns a title from a pattern, with an invented word and at most `given` given names."""

        def made() -> str:
            r = self._rng
            w, noun, adjective = word(r, 2), pick(r, self._nouns), pick(r, self._adjectives)
            people = {slot: self.given() for slot in "abc"[:given]}
            title: str = pick(r, self._said[kind])
            return title.format(w=w, noun=noun, nouns=plural(noun), adjective=adjective, **people)

        return self._fresh(made)

    def sequel(self, title: str) -> str:
        return self._fresh(lambda: f"{title} {pick(self._rng, self._said['sequels'])}")

    def group(self) -> str:
        r = self._rng
        return self._fresh(
            lambda: pick(
                r,
                (
                    f"The {plural(word(r, 2))}",
                    f"{word(r, 2)} {plural(pick(r, self._nouns))}",
                    f"{pick(r, self._adjectives)} {word(r, 2)}",
                ),
            )
        )

    def firm(self) -> str:
        """Returns a firm's name without its legal ending."""
        return self._fresh(lambda: f"{word(self._rng, 2)} {pick(self._rng, self._trades)}")

    def book(self) -> str:
        r = self._rng
        return self._fresh(
            lambda: pick(
                r,
                (
                    f"A History of {word(r, 2)}",
                    f"The {pick(r, self._nouns)} Keeper of {word(r, 2)}",
                    f"{pick(r, self._adjectives)} Days in {word(r, 2)}",
                    f"The House at {word(r, 3)}",
                ),
            )
        )


@functools.cache
def wording(name: str) -> dict[str, Any]:
    """Reads the sentences of `words/NAME.yaml`."""
    words = resources.files("raypipe.contrib.world").joinpath("words")
    text = words.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    # If PyYAML has libyaml, it reads them ten times faster.
    tree: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tree


def frozen(said: dict[str, Any]) -> dict[str, Any]:
    """Returns an entry of a wording file as fields of a record: tuples replace lists."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
