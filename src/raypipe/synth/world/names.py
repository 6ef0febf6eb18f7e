"""Invented names: people, places, films, songs, firms, teams. Knows syllables and a few common words.
And what all parts of the world draw and order with.

Every title carries at least one invented word, so that none can be a real film, song or firm by accident.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """A pool, written as one string."""
    return tuple(text.split())


ONSETS = words("b br d dr f g gr h j k kl l m n p pr qu r s sk st t tr v vr w y z th sh zh dv")
VOWELS = words("a e i o u a e i o ae ei ou")
CODAS = ["n", "r", "l", "s", "th", "m", "x", "nd", "rk", "ll", "v", "z", "", "", "", "", "", "", ""]
ACCENTS = str.maketrans("aeiou", "áéíöü")

NOUNS = words(
    "Lantern Harbor Orchard Compass Thunder Mirror Garden Engine Window Sparrow Letter Winter "
    "Crown Ladder Signal Canyon Ribbon Anchor Feather Candle Meadow Whisper Bridge Stairway "
    "Shadow Ocean Needle Parade"
)
ADJECTIVES = words(
    "Amber Silent Hollow Crimson Broken Distant Gentle Electric Paper Restless Golden "
    "Midnight Northern Velvet Wandering Frozen Secret Copper Lonely Burning"
)
ANIMALS = words(
    "Otters Falcons Badgers Herons Lynxes Comets Mariners Foxes Bisons Kestrels Wolverines "
    "Stags Drifters Ravens Pioneers Cyclones Mammoths Hornets Glaciers Anvils Sentinels "
    "Harpoons Tornadoes Millers Owls Jackals Voyagers Blizzards Lanterns Saddlers"
)
TRADES = words(
    "Dynamics Foods Mining Logistics Biotech Robotics Energy Textiles Networks Aerospace "
    "Pharma Motors Semiconductor Shipping Optics Paper Software Retail Insurance Materials"
)
SUBJECTS = ["Glass", "Maritime History", "Modern Art", "Clocks", "Natural Science", "Textiles", "Photography"]


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of the items. `Random.choice` is three times slower, and pages make millions of choices."""
    return items[int(rng.random() * len(items))]


def skewed(rng: Random, items: Sequence[T]) -> T:
    """One of the items, early ones more often: the famous are asked about most."""
    u = rng.random()
    return items[int(u * u * len(items))]


def number(rng: Random, low: int, count: int) -> int:
    """One of `count` numbers from `low` on."""
    return low + int(rng.random() * count)


def grouped(
    rows: Iterable[T], key: Callable[[T], str], order: Callable[[T], Any] | None = None
) -> dict[str, tuple[T, ...]]:
    """The rows of each key, as they come or in an order."""
    found: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return {k: tuple(sorted(v, key=order) if order else v) for k, v in found.items()}


def word(rng: Random, syllables: int) -> str:
    """An invented word with a capital letter; one in twenty has an accent."""
    head = pick(rng, ONSETS) + pick(rng, VOWELS)
    tail = "".join(pick(rng, ONSETS) + pick(rng, VOWELS) for _ in range(syllables - 1)) + pick(rng, CODAS)
    return ((head[:-1] + head[-1].translate(ACCENTS) if rng.random() < 0.05 else head) + tail).capitalize()


def plural(noun: str) -> str:
    return noun + ("es" if noun.endswith("s") else "s")


class NameSource:
    """Names that have not been given yet, whatever they are for."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
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
        return self._fresh(self._film)

    def _film(self) -> str:
        r, w = self._rng, word(self._rng, 2)
        noun, adjective = pick(r, NOUNS), pick(r, ADJECTIVES)
        shapes = (
            f"The {w} {noun}",
            f"{plural(noun)} of {w}",
            f"{adjective} {w}",
            f"{w} and the {noun}",
            f"Return to {w}",
            f"{self.given()}'s {noun}",
            f"The {adjective} {noun} of {w}",
            w,
        )
        return pick(r, shapes)

    def sequel(self, title: str) -> str:
        return self._fresh(
            lambda: f"{title} {pick(self._rng, ('Returns', 'Forever', 'Reborn', 'Part Two', 'Rising'))}"
        )

    def song(self) -> str:
        return self._fresh(self._song)

    def _song(self) -> str:
        r, w = self._rng, word(self._rng, 2)
        noun, adjective = pick(r, NOUNS), pick(r, ADJECTIVES)
        shapes = (
            f"{adjective} {w}",
            f"{w} {noun}",
            f"Dance with {self.given()}",
            f"{noun} for {self.given()}",
            f"Oh {self.given()}",
            f"{w} (Don't Go)",
            f"Take Me to {w}",
            f"{w} & {noun}",
        )
        return pick(r, shapes)

    def group(self) -> str:
        r = self._rng
        return self._fresh(
            lambda: pick(
                r,
                (
                    f"The {plural(word(r, 2))}",
                    f"{word(r, 2)} {plural(pick(r, NOUNS))}",
                    f"{pick(r, ADJECTIVES)} {word(r, 2)}",
                ),
            )
        )

    def firm(self) -> str:
        """Without its legal ending."""
        return self._fresh(lambda: f"{word(self._rng, 2)} {pick(self._rng, TRADES)}")

    def book(self) -> str:
        r = self._rng
        return self._fresh(
            lambda: pick(
                r,
                (
                    f"A History of {word(r, 2)}",
                    f"The {pick(r, NOUNS)} Keeper of {word(r, 2)}",
                    f"{pick(r, ADJECTIVES)} Days in {word(r, 2)}",
                    f"The House at {word(r, 3)}",
                ),
            )
        )
