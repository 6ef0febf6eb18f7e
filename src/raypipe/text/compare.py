"""Which of two: decided by a sentence that names both sides, or by a value found for each.

Rules over texts; pure. Undecided is the usual outcome, and no guess is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raypipe.core.records import Span
from raypipe.text.spans import EXACT, OPPOSITE, WORDS, AskedQuestion, Direction, dates, numbers

_OR = re.compile(r" (or|and|than|before|after) ")
_LEAST = 3  # characters of a side
_SMALL = "the a an it he she they one this that film song club team city river company which who"
_NO_SIDE = frozenset(_SMALL.split())
_WORD = re.compile(r"\w+")


Sides: TypeAlias = tuple[Span, Span]
"""The two things that a question compares, as a text writes them, in the order of the question."""


@dataclass(frozen=True, slots=True)
class Decided:
    text: str  # the side that is asked for, as the sentence writes it; yes or no where that is asked
    sentences: tuple[int, ...]  # the places of the sentences that say so


def decide(asked: AskedQuestion, sentences: Sequence[str]) -> Decided | None:
    """The answer to a comparison from some sentences, likeliest first; None where none decides it."""
    if asked.direction is None:
        return None
    numbers_asked = set(re.findall(r"\d+", asked.text))
    for i, sentence in enumerate(sentences):
        if sentence.endswith("?") or not numbers_asked <= set(re.findall(r"\d+", sentence)):
            continue
        if (sides := sides_in(asked, sentence)) and (left := _left_wins(asked, sentence, sides)) is not None:
            return Decided(_said(asked, left, *(_named(sentence, side) for side in sides)), (i,))
    return _by_two(asked, sentences)


def sides_in(asked: AskedQuestion, sentence: str) -> Sides | None:
    lower = sentence.lower()
    if len(lower) != len(sentence):
        return None
    for written in _sides(asked):
        left, right = (_longest(side, lower, ends) for side, ends in written)
        if left and right and left != right and not (left[0] < right[1] and right[0] < left[1]):
            return left, right
    return None


def _sides(asked: AskedQuestion) -> Iterator[tuple[tuple[str, bool], tuple[str, bool]]]:
    """Both sides as the question may write them, each with whether its name stands at the end."""
    for m in _OR.finditer(asked.text):
        before, after = asked.text[: m.start()], asked.text[m.end() :]
        if m[1] in ("or", "and"):
            yield (before, True), (after, False)
        else:  # "is A older than B"
            yield (before.partition(" ")[2], False), (after, False)


def _longest(side: str, sentence: str, ends: bool) -> Span | None:
    """Returns where the longest run of words at the end (or begin) of `side` stands in a sentence, as whole
    words."""
    words = list(_WORD.finditer(side))
    found = None
    for count in range(1, len(words) + 1):
        name = side[words[-count].start() :] if ends else side[: words[count - 1].end()]
        at = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence)
        if at is None:
            if count > 3:  # "of the ohio": a word of the question may stand before the name
                break
            continue
        if len(name) >= _LEAST and name not in _NO_SIDE:
            found = at.span()
    return found


def _said(asked: AskedQuestion, left_wins: bool, left: str, right: str) -> str:
    if asked.yes_no:
        return "yes" if left_wins else "no"
    return left if left_wins else right


def _named(sentence: str, span: Span) -> str:
    """A side without the small words before its name."""
    return re.sub(
        r"^(?:(?:the|a|an|of|is|was|did|song|songs|film|movie|company)\s+)+(?=\w)", "", sentence[slice(*span)]
    )


def _left_wins(asked: AskedQuestion, sentence: str, sides: Sides) -> bool | None:
    """Returns whether the side that the question names first is the one asked for; None: the sentence does
    not say.

    "A is longer than B" says which side is more; "A in 1912, B in 2002" gives a value for each."""
    first, second = sorted(sides)
    between = sentence[first[1] : second[0]]
    if re.search(r"\b(?:not|no|neither|nor|as \w+ as)\b|n't\b", sentence.lower()):
        return None
    if (compared := _compared(asked, between)) is not None:
        return compared == (sides[0] == first)
    values = [_value(asked, sentence, first[1], second[0]), _value(asked, sentence, second[1], len(sentence))]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return None
    return _wins(asked, values[0], values[1]) == (sides[0] == first)


def _compared(asked: AskedQuestion, between: str) -> bool | None:
    """Returns whether the side named first in a sentence is the one asked for, by a word that compares."""
    words = between.lower()
    says = re.search(r"\bthan\b|\bbefore\b|\bafter\b|\bthe \w*er \w+|\bfirst\b", words)
    if says is None or re.search(r"[.;!?]", words):
        return None
    for direction, known in WORDS.items():
        for word in re.findall(r"\w+", words):
            if word in known and (found := _agrees(asked, direction, word)) is not None:
                return found
    return None


def _agrees(asked: AskedQuestion, direction: Direction, word: str) -> bool | None:
    """Returns whether a word asks for the same end as the question, or the other; None: for another
    measure."""
    if (asked.word in EXACT or word in EXACT) and asked.word != word:
        return None
    if direction == asked.direction:
        return True
    return False if OPPOSITE[direction] == asked.direction else None


def _value(asked: AskedQuestion, sentence: str, start: int, end: int) -> float | None:
    """The one value of a side, between its name and the next; None where there is none or several."""
    part = sentence[start:end]
    spans, read = (dates, day_of) if asked.direction in ("earlier", "later") else (numbers, _amount)
    found = [read(part[slice(*s)]) for s in spans(part)]
    return found[0] if len(found) == 1 else None


def _wins(asked: AskedQuestion, first: float, second: float) -> bool:
    return first > second if asked.direction in ("more", "later") else first < second


MONTH, YEAR = 31, 372  # of the numbers of `day_of`
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def day_of(text: str) -> float | None:
    """A date as a number that grows with time; None without a year."""
    if iso := re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", text):
        return int(iso[1]) * YEAR + (int(iso[2]) - 1) * MONTH + int(iso[3]) - 1
    if not (year := re.search(r"\d{4}", text)):
        return None
    month = next((i for i, m in enumerate(_MONTHS) if m in text.lower()), 0)
    day = re.search(r"\b\d{1,2}(?=\D|$)", text.replace(year[0], ""))
    return int(year[0]) * YEAR + month * MONTH + (int(day[0]) - 1 if day else 0)


_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


def _amount(text: str) -> float | None:
    """A number as written in digits, with its scale; None for words."""
    digits = re.search(r"\d[\d,]*(?:\.\d+)?", text)
    if digits is None:
        return None
    scale = next((v for k, v in _SCALES.items() if k in text.lower()), 1.0)
    return float(digits[0].replace(",", "")) * scale


def _by_two(asked: AskedQuestion, sentences: Sequence[str]) -> Decided | None:
    """A comparison from one value for each side, in two sentences of the same wording."""
    found: dict[bool, tuple[int, str, float, str]] = {}  # is it the left side -> place, name, value, wording
    for written in _sides(asked):
        for i, sentence in enumerate(sentences):
            lower = sentence.lower()
            if len(lower) != len(sentence):
                continue
            sides = [_longest(side, lower, ends) for side, ends in written]
            for is_left, at in zip((True, False), sides, strict=True):
                if at is None or is_left in found or (sides[0] and sides[1]):
                    continue
                value = _value(asked, sentence, at[1], len(sentence))
                if value is not None:
                    found[is_left] = (i, _named(sentence, at), value, _wording(asked, lower, at))
    if len(found) < 2:
        return None
    (i, a, x, said), (j, b, y, also) = found[True], found[False]
    if said != also or x == y:
        return None
    return Decided(_said(asked, _wins(asked, x, y), a, b), (i, j))


def _wording(asked: AskedQuestion, sentence: str, at: Span) -> str:
    """A sentence without its name and its value: two that agree in it state the same measure, of one year."""
    rest = sentence[: at[0]] + "@" + sentence[at[1] :]
    values = dates(rest) if asked.direction in ("earlier", "later") else numbers(rest)
    for start, end in sorted(values, reverse=True):
        rest = rest[:start] + "#" + rest[end:]
    return rest
