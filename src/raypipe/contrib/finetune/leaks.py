"""Leaks: questions in two splits with the same id, the same text, or nearly the same words.

A question that a model was trained on cannot measure the model. Pure functions of ids and texts.
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
"""Weighted overlap from which two questions count as the same. docs/labels.md has the measurement."""

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Leak:
    """A training question that equals or nearly equals an evaluation question."""

    kind: Literal["id", "text", "near"]
    question: str  # id of the training question
    other: str  # id of the evaluation question
    overlap: float  # 0..1, of the words of both, weighted by rarity


def leaks(training: Mapping[str, str], evaluated: Mapping[str, str]) -> list[Leak]:
    """Returns each training question that equals or nearly equals an evaluation question.

    Both arguments map id -> text. Two questions are nearly equal if they have the same numbers, and their
    words overlap by NEAR or more (Jaccard). Words are stems without stop words, weighted by their rarity in
    both splits. So another year or another name makes another question.

    >>> leaks({"a": "Who wrote Sea of Glass?"}, {"b": "who wrote sea of glass"})[0].kind
    'text'
    >>> leaks({"a": "Who wrote Sea of Glass in 1911?"}, {"b": "Who wrote Sea of Glass in 1912?"})
    []
    """
    by_question = {id: Leak("id", id, id, 1.0) for id in training.keys() & evaluated.keys()}
    spelled = {_plain(text): id for id, text in evaluated.items()}
    for id, text in training.items():
        if id not in by_question and (other := spelled.get(_plain(text))) is not None:
            by_question[id] = Leak("text", id, other, 1.0)
    rest = {id: text for id, text in training.items() if id not in by_question}
    for id, other, overlap in _near(rest, evaluated):
        if id not in by_question or by_question[id].overlap < overlap:
            by_question[id] = Leak("near", id, other, overlap)
    return [by_question[id] for id in training if id in by_question]


def groups(questions: Mapping[str, str]) -> dict[str, str]:
    """Groups equal and nearly equal questions. Returns question id -> smallest id of its group."""
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
    """Yields pairs of ids with their weighted overlap, if it is at least NEAR. Such a pair must share one of
    the rarest words that make up 1 - NEAR of a question's weight, so only these pairs are compared."""
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
