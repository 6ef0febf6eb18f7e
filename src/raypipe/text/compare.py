"""Comparison of two things: decided by a sentence that names both: "A is longer than B".

Rules over texts; pure. Undecided is the usual outcome, and no guess is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from raypipe.core.records import Span
from raypipe.text.spans import OPPOSITE, WORDS, AskedQuestion

_OR = re.compile(r" (?:or|and) ")
_LEAST = 3  # characters of a side
_SMALL = "the a an it he she they one this that film song club team city river company which who"
_NO_SIDE = frozenset(_SMALL.split())
_BEFORE = re.compile(r"^(?:(?:the|a|an|of|is|was|did|song|film|movie|company)\s+)+(?=\w)")  # of a name
_DENIES = re.compile(r"\b(?:not|no|neither|nor|as \w+ as)\b|n't\b|\?$")
_COMPARES = re.compile(r"\A(?=[^.;!?]*+\Z)[^.;!?]*?\b(?:(?:than|before|after|first)\b|the \w{1,30}er \w)")
_MEASURE = re.compile(
    r"\b(?:tall|long|short|heavi|light|deep|wid|far|narrow)\w*?(?=er\b|est\b)"
)  # a longer is no larger
_WORD = re.compile(r"\w+")


def decide(asked: AskedQuestion, sentences: Sequence[str]) -> tuple[str, int] | None:
    """The side that is asked for, as one of some sentences writes it, and the place of that sentence; None
    where none decides it."""
    asked_numbers = set(re.findall(r"\d+", asked.text))
    for i, sentence in enumerate(sentences):
        lower = sentence.lower()
        if len(lower) != len(sentence) or not asked_numbers <= set(re.findall(r"\d+", sentence)):
            continue
        for left, right in _sides(asked.text, lower):
            first, second = sorted((left, right))
            if (wins := _first_wins(asked, sentence, first, second)) is not None:
                side = sentence[slice(*(first if wins else second))]
                return _BEFORE.sub("", side), i
    return None


def _sides(question: str, sentence: str) -> Iterator[tuple[Span, Span]]:
    """Returns where the two things stand in a sentence that a question names around "or" or "and"."""
    for m in _OR.finditer(question):
        left, right = (
            _longest(question[: m.start()], sentence, True),
            _longest(question[m.end() :], sentence, False),
        )
        if left and right and (left[1] <= right[0] or right[1] <= left[0]):
            yield left, right


def _longest(side: str, sentence: str, ends: bool) -> Span | None:
    """Returns where the longest run of words at the end (or begin) of `side` stands in a sentence, as whole
    words."""
    words, found = list(_WORD.finditer(side)), None
    for count in range(1, len(words) + 1):
        name = side[words[-count].start() :] if ends else side[: words[count - 1].end()]
        at = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence)
        if at is None and count > 3:  # "of the ohio": a word of the question may stand before the name
            break
        if at and len(name) >= _LEAST and name not in _NO_SIDE:
            found = at.span()
    return found


def _first_wins(asked: AskedQuestion, sentence: str, first: Span, second: Span) -> bool | None:
    """Returns whether the side that a sentence names first is the one asked for; None: it does not say."""
    between = sentence[first[1] : second[0]].lower()
    if _DENIES.search(sentence.lower()) or asked.direction is None:
        return None
    if set(_MEASURE.findall(between)) != set(_MEASURE.findall(asked.text)):
        return None
    said = {d for w in _WORD.findall(between) for d, words in WORDS.items() if w in words}
    if not _COMPARES.search(between) or not said & {asked.direction, OPPOSITE[asked.direction]}:
        return None
    return asked.direction in said
