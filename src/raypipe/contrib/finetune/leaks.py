"""Questions that stand in two splits: the same id, the same text, or nearly the same words.

A model that was trained on a question is no longer measured by it. Pure; knows ids and texts alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import Stemmer

from raypipe.text.words import STOP_WORDS

NEAR = 0.8
"""Weighted overlap from which on two questions count as one: docs/labels.md has what was measured."""

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Leak:
    """A training question that is evaluated, too."""

    kind: Literal["id", "text", "near"]
    question: str  # id of the training question
    other: str  # id of the evaluated one
    text: str  # of the training question
    other_text: str
    overlap: float  # of their words, weighted by rarity: 0..1


def leaks(training: Mapping[str, str], evaluated: Mapping[str, str]) -> list[Leak]:
    """Every training question with an evaluated one that is the same or nearly so: id -> text of both.

    Nearly: their stems without stop words, each weighted by its rarity in both splits, overlap by NEAR
    (Jaccard), and they have the same numbers: another year or another name is another question.

    >>> leaks({"a": "Who wrote Sea of Glass?"}, {"b": "who wrote sea of glass"})[0].kind
    'text'
    >>> leaks({"a": "Who wrote Sea of Glass in 1911?"}, {"b": "Who wrote Sea of Glass in 1912?"})
    []
    """
    found: dict[str, Leak] = {}
    for id in training.keys() & evaluated.keys():
        found[id] = Leak("id", id, id, training[id], evaluated[id], 1.0)
    spelled = {_plain(text): id for id, text in evaluated.items()}
    for id, text in training.items():
        if id not in found and (other := spelled.get(_plain(text))) is not None:
            found[id] = Leak("text", id, other, text, evaluated[other], 1.0)
    rest = {id: text for id, text in training.items() if id not in found}
    for id, other, overlap in _near(rest, evaluated):
        if id not in found or found[id].overlap < overlap:
            found[id] = Leak("near", id, other, rest[id], evaluated[other], overlap)
    return [found[id] for id in training if id in found]


def groups(questions: Mapping[str, str]) -> dict[str, str]:
    """Question id -> id of the first question that it, or one that is near it, is nearly the same as."""
    first = {id: id for id in questions}

    def root(id: str) -> str:
        while first[id] != id:
            id = first[id]
        return id

    spelled: dict[str, str] = {}
    pairs = [(id, spelled.setdefault(_plain(text), id)) for id, text in questions.items()]
    pairs += [(a, b) for a, b, _ in _near(questions, questions) if a != b]
    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        first[high] = low
    return {id: root(id) for id in questions}


def _near(training: Mapping[str, str], evaluated: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    """Pairs whose weighted overlap is at least NEAR. A pair shares one of the rarest words of each of the
    two, up to a share 1 - NEAR of its weight: only such pairs are looked at."""
    stem = Stemmer.Stemmer("english")
    words = {
        (side, id): frozenset(stem.stemWords([w for w in _WORD.findall(text.lower()) if w not in STOP_WORDS]))
        for side, texts in enumerate((training, evaluated))
        for id, text in texts.items()
    }
    seen = Counter(w for of in words.values() for w in of)
    weight = {w: 1 + math.log(len(words) / n) for w, n in seen.items()}
    holding: dict[str, list[str]] = defaultdict(list)
    for (side, id), of in words.items():
        if side:
            for w in of:
                holding[w].append(id)
    for id in training:
        mine = words[0, id]
        total, left = sum(weight[w] for w in mine), 0.0
        others: set[str] = set()
        for w in sorted(mine, key=lambda w: (-weight[w], w)):
            if total - left < NEAR * total:
                break
            others.update(holding[w])
            left += weight[w]
        for other in sorted(others):
            theirs = words[1, other]
            both = sum(weight[w] for w in mine & theirs)
            overlap = both / (total + sum(weight[w] for w in theirs) - both)
            if overlap >= NEAR and _numbers(mine) == _numbers(theirs):
                yield id, other, overlap


def _numbers(words: frozenset[str]) -> set[str]:
    return {w for w in words if any(c.isdigit() for c in w)}


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))
