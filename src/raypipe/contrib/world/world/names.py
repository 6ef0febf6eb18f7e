"""Invented names: people, places, films, songs, firms, teams. Knows syllables; common words are those of
`words/names.yaml`. And what all parts of the world draw and order with, and the
sentences that questions and pages say: files of the package.

Every title carries at least one invented word, so that none can be a real film, song or firm by accident.
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
    """A pool, written as one string."""
    return tuple(text.split())


ONSETS = words("b br d dr f g gr h j k kl l m n p pr qu r s sk st t tr v vr w y z th sh zh dv")
VOWELS = words("a e i o u a e i o ae ei ou")
CODAS = ["n", "r", "l", "s", "th", "m", "x", "nd", "rk", "ll", "v", "z", "", "", "", "", "", "", ""]
ACCENTS = str.maketrans("aeiou", "áéíöü")


def pick(rng: Random, items: Sequence[T]) -> T:
    """Returns one of the items. `Random.choice` is three times slower, and pages make millions of choices."""
    return items[int(rng.random() * len(items))]


def skewed(rng: Random, items: Sequence[T]) -> T:
    """Returns one of the items, early ones more often: the famous are asked about most."""
    u = rng.random()
    return items[int(u * u * len(items))]


def number(rng: Random, low: int, count: int) -> int:
    """Returns one of `count` numbers from `low` on."""
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
    """Names that have not been given yet, whatever they are for."""

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
        """Need not be unique: two films may have a character of one name."""
        return self.given() if self._rng.random() < 0.3 else f"{self.given()} {self.family()}"

    def coined(self, *endings: str) -> str:
        """An invented word with one of the endings."""
        return self._fresh(lambda: word(self._rng, 2) + (pick(self._rng, endings) if endings else ""))

    def film(self) -> str:
        return self._titled("films", 1)

    def song(self) -> str:
        return self._titled("songs", 3)

    def _titled(self, kind: str, given: int) -> str:
        """A title with an invented word, a noun, an adjective and some given names to choose from."""

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
        """Without its legal ending."""
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
    """The sentences of `words/NAME.yaml`."""
    words = resources.files("raypipe.contrib.world").joinpath("words")
    text = words.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    # libyaml, where PyYAML has it, reads them ten times faster.
    tree: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tree


def frozen(said: dict[str, Any]) -> dict[str, Any]:
    """An entry of such a file with tuples in the place of lists: the fields of a record."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
