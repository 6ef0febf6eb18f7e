"""Whether a text repeats another: by its runs of words, and by words that no other text of a store has.

What is kept of the forgotten text are digests, so that a decision on disk holds no byte of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from raypipe.core.records import digest

RUN = 8
"""Words in a row that count as a repetition. Chosen here: shorter runs of an English page stand in others as
well (as one of the), and a quote of an answer is a sentence."""

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


def _runs(found: list[str]) -> Iterator[str]:
    for at in range(len(found) - RUN + 1):
        yield digest("run", *found[at : at + RUN])[:16]


@dataclass(frozen=True, slots=True)
class Mentions:
    """What tells that a text repeats the forgotten ones: digests."""

    runs: frozenset[str]  # of RUN words in a row
    rare: frozenset[str]  # of words that no other text has

    def __call__(self, text: str) -> bool:
        """Whether a text repeats a run of words, or has a rare word."""
        found = words(text)
        if self.rare and any(_word(w) in self.rare for w in set(found)):
            return True
        return bool(self.runs) and any(run in self.runs for run in _runs(found))

    def within(self, value: Any) -> bool:
        """Whether any text inside a value of JSON does."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return any(self.within(x) for pair in value.items() for x in pair)
        return isinstance(value, list | tuple) and any(self.within(x) for x in value)


def mentions(texts: Iterable[str], rare: Iterable[str]) -> Mentions:
    """What tells these texts. `rare`: words of theirs that no other text has."""
    found = frozenset(run for text in texts for run in _runs(words(text)))
    return Mentions(found, frozenset(map(_word, rare)))


def rare_words(texts: Iterable[str], others: Iterable[str]) -> set[str]:
    """Words of some texts that none of the others has."""
    left = {w for text in texts for w in words(text) if len(w) >= RARE}
    for other in others:
        if not left:
            break
        left.difference_update(words(other))
    return left
