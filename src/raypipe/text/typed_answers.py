"""Typed answers: the kind of answer that a question asks for (person, date, number), and its span in a
sentence.

These are rules over English text, without a model or a list of names. A question that asks for no such kind
has no span. A span that contains a word of the question is no answer. If several spans remain, the one
nearest to the question's words is taken. A comparison is decided only by a sentence that names both things,
as in "A is longer than B".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from raypipe.core.records import Span

Kind: TypeAlias = Literal["who", "when", "weekday", "version", "number", "other"]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_YEAR = r"(?:1[0-9]{3}|20[0-9]{2})"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DATES = re.compile(
    rf"\b{_MONTH}\s+{_DAY}(?:,?\s+{_YEAR})?\b|\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?\b"
    rf"|\b{_MONTH},?\s+{_YEAR}\b|\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b{_YEAR}s?\b(?![,.]\d)"
)
DAY_IN_NAME = re.compile(r"(?<!\d)((?:19|20)\d\d)[-_.]?(0[1-9]|1[0-2])[-_.]?([0-2]\d|3[01])(?!\d)")
"""A date in the name of a file: year, month, day."""
_TIMES = re.compile(
    r"\b(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?(?:\s?[ap]\.?m\b)?(?![\d:])|\b(?:1[0-2]|[1-9])\s?[ap]\.?m\b",
    re.I,
)
_ONES = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
_TENS = "seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
_SCALE = r"(?:\s+(?:hundred|thousand|million|billion|trillion))?"
_NUMBERS = re.compile(
    rf"(?<![\w.,-])(?:\d+(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:\s?%|\s+percent\b)?{_SCALE}(?![\w]|[-/\u2013]\d)"
    rf"|\b(?:{_ONES}|{_TENS})(?:-(?:{_ONES}))?\b{_SCALE}",
    re.IGNORECASE,
)
_MONEY = re.compile(  # an amount before a currency has at most 41 digits and commas
    rf"(?:US|A|C)?[$\u00a3\u20ac\u00a5]\s?\d[\d,]*(?:\.\d+)?{_SCALE}"
    rf"|\b\d[\d,]{{0,40}}(?:\.\d+)?{_SCALE}\s+(?:dollars|pounds|euros|yen|rupees|cents)\b",
    re.IGNORECASE,
)
_UNIT = re.compile(  # the unit directly after a number: "8,000 hours", "140 EUR a night"
    r"(?:\s?(?:[%\u00b0]\s?[CF]?|\u20ac|[A-Z]{3}|[kMGT]?(?:Hz|W|Wh|V|A|B|bit|bps)|[kmc\u00b5n]?[mgs]|k[mg]/h"
    r"|[mkd]?[lL]|m[23\u00b2\u00b3])(?!\w)|[ -](?:(?:milli|micro|nano|kilo|mega|giga|centi)?(?:second|minute"
    r"|hour|day|night|week|month|year|met(?:er|re)|mile|yard|gram|ton|tonne|pound|ounce|lit(?:er|re)|gallon|watt"
    r"|volt|amp|byte|bit|degree|dollar|euro)s?|feet|foot|inch(?:es)?|hertz|percent)\b)(?:\s(?:an?|per)\s\w+|/\w+)?"
)
_VERSIONS = re.compile(r"(?:(?<=v)|(?<![\w.]))\d++\.\d[\w.+-]*\b")
_WEEKDAYS = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b", re.IGNORECASE)
_NAME = r"[A-Z\u00c0-\u00de][\w\u2019'-]*\.?"
_NAMES = re.compile(rf"{_NAME}(?:\s+(?:(?:of|de|da|di|van|von|der|bin|la|le)\s+)*{_NAME})*")
_PLAIN = """
    a an the this that these those he she it they we you i his her its their our in on at by for from to
    with as of and or but if when while after before since during until although though because so then
    there here both each all most many some several other another such no not also however what who
    which where how one two three first second monday tuesday wednesday thursday friday saturday sunday
    january february march april may june july august september october november december mr mrs ms dr
    sir according later early late under over between
"""
_NO_NAME = frozenset(_PLAIN.split())

_PATTERNS: Mapping[Kind, str] = {
    "weekday": r"\bday of the week\b|\bweekday\b",
    "version": r"\bversions?\b|\brelease number\b",
    "number": r"\bhow (?:many|much|old|long|high|tall|far|deep|large|big|populous|often|wide|heavy|loud|hot"
    r"|cold|fast|thick)\b|\b(?:number|population|age|percentage|average|mean|ratio|rating|height|length|depth"
    r"|elevation|area|distance|volume|total|difference|margin|inhabitants) (?:of|in|between|for)\b"
    r"|\bwhat percent|\b(?:price|cost|budget|revenue|earnings|dividend|market cap\w*|salary|eps) of\b"
    r"|\bearnings per share\b|\btrading at\b|\b(?:stock|share) price\b",
    "when": r"\bwhen\b|\bwhat time\b|\b(?:what|which) (?:\w+ )?(?:year|date|day|month)s?\b"
    r"|\b(?:birthday|date of birth|birth date|release date|year in which)\b",
    "who": r"\bwho(?:se|m)?\b|\bname of the (?:person|man|woman)\b"
    r"|\b(?:what|which) (?:actor|actress|artist|author|director|player|person|president|singer|writer)\b",
}  # tried in this order, so that "on which day of the week" does not ask for a date
_ASKS = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}

_COUNTS = re.compile(r"\bhow (?:many|often|old)\b|\bnumber of\b")


@dataclass(frozen=True, slots=True)
class TypedSpan:
    span: Span  # in the sentence
    only: bool  # True: the sentence has no other span that may answer


def typed_span(
    question: str, kind: Kind, sentence: str, marks: Sequence[int], start: int = 0
) -> TypedSpan | None:
    """Finds the span of a sentence that may answer a question of a kind; None without one.

    `question` is in lower case. The span begins at `start` or later. `marks` are the offsets in the sentence
    at which words of the question start: a span with a mark is the question's subject, not its answer. The
    span of a number includes its unit.
    """
    found = _OF_KIND[kind](sentence) if kind in _OF_KIND else []
    spans = [s for s in found if s[0] >= start and not any(s[0] <= m < s[1] for m in marks)]
    if kind == "number" and not _COUNTS.search(question):  # "10 films" does not answer "rating of the films"
        spans = [s for s in spans if not any(0 < m - s[1] <= 2 for m in marks)] or spans
    if not spans:
        return None
    # The sum of distances in characters to the question's words orders spans as their mean does.
    best = min(spans, key=lambda s: (sum(max(s[0] - m, m - s[1], 0) for m in marks), s))
    best = with_unit(sentence, best) if kind == "number" else best
    return TypedSpan(best, len(spans) == 1)


def with_unit(sentence: str, number: Span) -> Span:
    """Extends the span of a number to the unit directly after it.

    >>> with_unit("It is 34 EUR a day.", (6, 8))
    (6, 18)
    """
    unit = _UNIT.match(sentence, number[1])
    return number[0], unit.end() if unit else number[1]


def names(sentence: str) -> list[Span]:
    """Finds runs of capitalised words, without leading words such as "The" or "In", and without units."""
    spans: list[Span] = []
    for m in _NAMES.finditer(sentence):
        start, words = m.start(), m.group()
        while words and re.split(r"[\s.\u2019']", words, maxsplit=1)[0].lower() in _NO_NAME:
            rest = re.sub(r"^\S+\s*", "", words)
            start += len(words) - len(rest)
            words = rest
        words = re.sub(r"(?:\u2019s|'s|(?<=\w{3})\.)$", "", words)
        unit = words[:3].isupper() and re.search(r"\d\s?\Z", sentence[max(0, start - 2) : start])
        if len(words) > 1 and not unit:  # EUR in "34 EUR a day" is no name
            spans.append((start, start + len(words)))
    return spans


def dates(sentence: str) -> list[Span]:
    return [m.span() for m in _DATES.finditer(sentence)]


def numbers(sentence: str) -> list[Span]:
    """Finds amounts of money. If there are none, finds the numbers that are not part of a date."""
    if amounts := [m.span() for m in _MONEY.finditer(sentence)]:
        return amounts
    found, of_dates = [m.span() for m in _NUMBERS.finditer(sentence)], dates(sentence)
    return [(a, b) for a, b in found if not any(a < d and c < b for c, d in of_dates)]


_OF_KIND: Mapping[Kind, Callable[[str], list[Span]]] = {
    "who": names,
    "number": numbers,
    # Times of day count only if there is no date.
    "when": lambda sentence: dates(sentence) or [m.span() for m in _TIMES.finditer(sentence)],
    "version": lambda sentence: [m.span() for m in _VERSIONS.finditer(sentence)],
    "weekday": lambda sentence: [m.span() for m in _WEEKDAYS.finditer(sentence)],
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def day_of(text: str) -> float | None:
    """Converts a date to a number that grows with time (a bare year: January 1); None without a year."""
    if iso := re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", text):
        return int(iso[1]) * 372 + (int(iso[2]) - 1) * 31 + int(iso[3]) - 1
    if not (year := re.search(r"\d{4}", text)):
        return None
    month = next((i for i, m in enumerate(_MONTHS) if m in text.lower()), 0)
    day = re.search(r"\b\d{1,2}(?=\D|$)", text.replace(year[0], ""))
    return int(year[0]) * 372 + month * 31 + (int(day[0]) - 1 if day else 0)


Direction: TypeAlias = Literal["more", "less", "earlier", "later"]
_AXES: tuple[frozenset[Direction], ...] = (frozenset({"more", "less"}), frozenset({"earlier", "later"}))
_WORDS: Mapping[Direction, str] = {
    "earlier": "earlier earliest older oldest first before",
    "later": "later latest newer newest younger youngest last after",
    "more": """more most larger largest bigger biggest higher highest greater greatest better best dearer
        dearest valuable taller tallest longer longest heavier deeper wider farther""",
    "less": """less least fewer fewest lower lowest smaller smallest cheaper cheapest worse shorter shortest
        lighter narrower""",
}
WORDS = {direction: frozenset(words.split()) for direction, words in _WORDS.items()}
"""Direction -> words that compare in this direction."""

_YES_NO = re.compile(r"^(?:is|are|was|were|did|do|does|has|have|had|can|could|will|would|should)\b")
_EITHER = re.compile(
    r"\A(?>.*?\b(?:between|of) )(?>.+? and ).+?,\s*(?:which|who|whose|what|did|is|was)\b"
    r"|\b(?!who or|what or|one or|more or)\w+ or (?!what\b|more\b|less\b|not\b)\w"
)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    text: str  # in lower case, white space folded, without question marks and points at the end
    kind: Kind
    yes_no: bool  # False for a comparison
    direction: Direction | None  # direction of a comparison of two things; None: no comparison


def read(question: str) -> AskedQuestion:
    """Analyses a question: the kind of its answer, whether it is a yes/no question, and its comparison.

    >>> asked = read("Which is longer, the Ohio or the Elbe?")
    >>> asked.kind, asked.direction
    ('other', 'more')
    >>> read("Is the Ohio longer than the Elbe?").yes_no, read("who wrote emma").kind
    (True, 'who')
    """
    q = " ".join(question.lower().split()).rstrip("?. ")
    kind: Kind = next((k for k, pattern in _ASKS.items() if pattern.search(q)), "other")
    words = re.findall(r"\w+", q)
    said = [d for w in words for d, known in WORDS.items() if w in known]
    direction = said[0] if said and _EITHER.search(q) else None
    return AskedQuestion(q, kind, _YES_NO.match(q) is not None and direction is None, direction)


_OR = re.compile(r" (?:or|and) ")
_LEAST = 3  # least characters of a side of a comparison
_SMALL = "the a an it he she they one this that film song club team city river company which who"
_NO_SIDE = frozenset(_SMALL.split())
_BEFORE = re.compile(r"^(?:(?:the|a|an|of|is|was|did|song|film|movie|company)\s+)+(?=\w)")  # before a name
_DENIES = re.compile(r"\b(?:not|no|neither|nor|as \w+ as)\b|n't\b|\?$")
_COMPARES = re.compile(r"\A(?=[^.;!?]*+\Z)[^.;!?]*?\b(?:(?:than|before|after|first)\b|the \w{1,30}er \w)")
# Measures that a sentence must share with the question: "longer" does not answer "larger".
_MEASURE = re.compile(r"\b(?:tall|long|short|heavi|light|deep|wid|far|narrow)\w*?(?=er\b|est\b)")
_WORD = re.compile(r"\w+")


def decide(asked: AskedQuestion, sentences: Sequence[str]) -> tuple[str, int] | None:
    """Decides a comparison by the first sentence that names both sides and compares them. Returns the winning
    side, in the sentence's words, and the sentence's index. Returns None if no sentence decides."""
    asked_numbers = set(re.findall(r"\d+", asked.text))
    for i, sentence in enumerate(sentences):
        lower = sentence.lower()
        if len(lower) != len(sentence) or not asked_numbers <= set(re.findall(r"\d+", sentence)):
            continue
        for m in _OR.finditer(asked.text):  # the two things are before and after an "or" or "and"
            left = _longest(asked.text[: m.start()], lower, True)
            right = _longest(asked.text[m.end() :], lower, False)
            if not (left and right and (left[1] <= right[0] or right[1] <= left[0])):
                continue
            first, second = sorted((left, right))
            if (wins := _first_wins(asked, sentence, first, second)) is not None:
                side = sentence[slice(*(first if wins else second))]
                return _BEFORE.sub("", side), i
    return None


def _longest(side: str, sentence: str, ends: bool) -> Span | None:
    """Finds the longest run of words of `side` that a sentence has as whole words. The run must end `side`,
    or begin it if `ends` is False. Returns None if no run is a name of at least _LEAST characters."""
    words, found = list(_WORD.finditer(side)), None
    for count in range(1, len(words) + 1):
        name = side[words[-count].start() :] if ends else side[: words[count - 1].end()]
        at = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence)
        if at is None and count > 3:  # "of the ohio": short runs may miss, since words may precede the name
            break
        if at and len(name) >= _LEAST and name not in _NO_SIDE:
            found = at.span()
    return found


def _first_wins(asked: AskedQuestion, sentence: str, first: Span, second: Span) -> bool | None:
    """Returns whether the side named first in a sentence wins; None if the sentence does not decide."""
    between = sentence[first[1] : second[0]].lower()
    if _DENIES.search(sentence.lower()) or asked.direction is None:
        return None
    if set(_MEASURE.findall(between)) != set(_MEASURE.findall(asked.text)):
        return None
    said = {d for w in _WORD.findall(between) for d, words in WORDS.items() if w in words}
    if not _COMPARES.search(between) or not any(asked.direction in axis and said & axis for axis in _AXES):
        return None
    return asked.direction in said
