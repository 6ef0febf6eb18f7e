"""Models without weights that compute, for tests and large trial runs.

They know words and nothing of meaning: a hashed bag of words, the overlap of two sets of words, white space.
They give the same numbers in every process and on every machine; `catalog.FORMULA` is raised when those
change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from raypipe.core.protocols import Role
from raypipe.core.records import Span

_WORD = re.compile(r"\w+")
_NO_WORDS = "\x00"  # stands for a text without words, so that its vector is a unit row too


@lru_cache(maxsize=1 << 16)  # a vocabulary; 12 MB when full
def _hash(word: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower()) or [_NO_WORDS]


class HashEmbedder:
    """Each word goes to one of `dim` buckets with a sign, both from its digest; roles make no difference."""

    truncated = 0

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        out = np.zeros((len(texts), self._dim), np.float32)  # (texts, dim) float32, unit rows
        for row, text in zip(out, texts, strict=True):
            hashes = np.fromiter((_hash(w) for w in _words(text)), np.uint64)
            np.add.at(
                row,
                (hashes >> np.uint64(1)) % np.uint64(self._dim),
                1 - 2 * (hashes & np.uint64(1)).astype(np.float32),
            )
            norm = float(np.linalg.norm(row))
            if norm == 0:  # words of opposite sign met in one bucket and nothing else is left
                row[_hash(_NO_WORDS) % self._dim] = norm = 1.0
            row /= norm
        return out


class OverlapReranker:
    """Distinct words in common over the geometric mean of both counts: 0 for none, 1 for equal sets."""

    truncated = 0

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        sets = {text: frozenset(_words(text)) for pair in pairs for text in pair}
        scores = [len(sets[q] & sets[p]) / (len(sets[q]) * len(sets[p])) ** 0.5 for q, p in pairs]
        return np.array(scores, np.float32)


def whitespace(text: str) -> list[Span]:
    """The span of each run of characters between white space."""
    return [m.span() for m in re.finditer(r"\S+", text)]
