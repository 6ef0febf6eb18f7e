"""What only some texts of a store say: runs of words, and words, that no text which stays has.

It tells where bytes came from that name no source: replies whose request is not known, pages of runs, what
users wrote. What is kept of the texts are digests, so that a decision on disk holds no byte of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from raypipe.core.records import digest

RUN = 8
"""Words in a row that count as a quote. Chosen here: shorter runs of an English page stand in others as well
(as one of the), and a quote of an answer is a sentence."""

RARE = 4  # characters of a word that may tell a text alone: shorter ones are articles and numbers
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, in lower case.

    >>> words("It's 42, here.")
    ['it', 's', '42', 'here']
    """
    return _WORD.findall(text.lower())


@functools.lru_cache(maxsize=1 << 16)
def _word(word: str) -> str:
    return digest("word", word)[:16]


def _windows(found: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(found[at:] for at in range(RUN)), strict=False)


def _run(window: tuple[str, ...]) -> str:
    return digest("run", *window)[:16]


@dataclass(frozen=True, slots=True)
class Mentions:
    """What the forgotten texts alone say: digests."""

    runs: frozenset[str]  # of RUN words in a row
    rare: frozenset[str]  # of words

    def __call__(self, text: str) -> bool:
        """Whether a text has one of these runs or words."""
        found = words(text)
        if self.rare and any(_word(w) in self.rare for w in set(found)):
            return True
        return bool(self.runs) and any(_run(w) in self.runs for w in _windows(found))

    def within(self, value: Any, named: Collection[str] = ()) -> bool:
        """Whether any text inside a value of JSON does, or is one of these names. Names of fields say
        nothing."""
        if isinstance(value, str):
            return value in named or self(value)
        if isinstance(value, dict):
            return any(key in named or self.within(x, named) for key, x in value.items())
        return isinstance(value, list | tuple) and any(self.within(x, named) for x in value)


class OwnWords:
    """The runs of words, and the words, of some texts, less those of each text that stays.

    >>> own = OwnWords(["the plan of quorz is to open at ten", "we open at ten in the morning of each day"])
    >>> own.subtract("They say we open at ten in the morning of the year.")
    1
    >>> told = own.mentions()
    >>> told("a quorz"), told("we open at ten in the morning of")
    (True, False)
    >>> told("At ten in the morning of each day!")
    True
    """

    def __init__(self, texts: Iterable[str]) -> None:
        split = [words(text) for text in texts]
        self._all = {w for found in split for w in _windows(found)}
        self._runs = set(self._all)
        self._rare = {w for found in split for w in found if len(w) >= RARE}

    def subtract(self, text: str) -> int:
        """Takes out what a text says that stays; how many of their runs it has."""
        found = words(text)
        shared = self._all.intersection(_windows(found))
        self._runs -= shared
        self._rare.difference_update(found)
        return len(shared)

    def mentions(self) -> Mentions:
        """What they alone say."""
        return Mentions(frozenset(map(_run, self._runs)), frozenset(map(_word, self._rare)))
