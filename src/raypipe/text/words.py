"""Analyzers for BM25: the words of a text as hashes and offsets.

Two analyzers. `plain`: lower case, split at white space, as users of rank_bm25 do it. `stems`: runs of a-z
and 0-9 after lower-casing, without English stop words, cut to their Snowball stems.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import Stemmer

Analyzer: TypeAlias = Literal["plain", "stems"]

_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such
    that the their then there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""The 33 words that Lucene's English analysis has always dropped."""

_RUNS = re.compile("[a-z0-9]+")
_VISIBLE = re.compile(r"\S+")
_DISTINCT = 1 << 16  # words whose hashes are kept, 12 MB: a page has 1,500, and rare ones come back rarely


@lru_cache(maxsize=_DISTINCT)
def word_hash(word: str) -> int:
    """A stable uint64 hash of the word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def analyse(text: str, analyzer: str) -> tuple[np.ndarray, np.ndarray]:
    """The words of a text: hashes (words,) uint64 in text order, and the offsets in `text` at which they
    start, (words,) int32. Raises ValueError for an unknown analyzer."""
    if analyzer not in ANALYZERS:
        raise ValueError(f"unknown analyzer {analyzer!r}; known: {', '.join(ANALYZERS)}")
    pattern, named = ANALYZERS[analyzer]
    hashes: list[int] = []
    starts: list[int] = []
    for word in pattern.finditer(_lower(text)):
        if (name := named(word[0])) is not None:
            hashes.append(name)
            starts.append(word.start())
    return np.array(hashes, np.uint64), np.array(starts, np.int32)


def _lower(text: str) -> str:
    """Lower case of the same length: the Turkish dotted capital is the one letter that would become two."""
    return text.replace("\u0130", "i").lower()


@lru_cache(maxsize=_DISTINCT)
def _stem_hash(word: str) -> int | None:
    return None if word in STOP_WORDS else word_hash(_stemmer().stemWord(word))


@cache
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("english")


ANALYZERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], int | None]]] = MappingProxyType(
    {"plain": (_VISIBLE, word_hash), "stems": (_RUNS, _stem_hash)}
)
