"""The kind of answer that a question asks for: the kind of thing (a person, a date, a number), one or
several, which of two, and of which time; and spans of that kind in a sentence.

Rules over English text, with no model and no list of names. They are cautious: a question of no known kind
has no span, and a span that the question itself mentions is no answer. Where several things in a sentence
could be meant, the one nearest to the question's own words is taken, and their number is returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from raypipe.core.records import Span

Kind: TypeAlias = Literal["who", "when", "weekday", "how many", "how much", "where", "name", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STRICT: frozenset[Kind] = frozenset({"who", "when", "weekday", "how many", "how much"})
"""Kinds that a sentence either has or has not. A name, or a place, stands in nearly every sentence."""

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_YEAR = r"(?:1[0-9]{3}|20[0-9]{2})"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEARS = re.compile(rf"\b{_YEAR}s?\b(?![,.]\d)")
_DATES = re.compile(
    rf"\b{_MONTH}\s+{_DAY}(?:,?\s+{_YEAR})?\b|\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?\b"
    rf"|\b{_MONTH},?\s+{_YEAR}\b|\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b{_YEAR}s?\b(?![,.]\d)"
)
_ONES = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
_TENS = "seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
_SCALE = r"(?:\s+(?:hundred|thousand|million|billion|trillion))?"
_NUMBERS = re.compile(
    rf"(?<![\w.,-])(?:\d+(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:\s?%|\s+percent\b)?{_SCALE}(?![\w])"
    rf"|\b(?:{_ONES}|{_TENS})(?:-(?:{_ONES}))?\b{_SCALE}",
    re.IGNORECASE,
)
_MONEY = re.compile(  # of more than 40 digits and commas there is none
    rf"(?:US|A|C)?[$\u00a3\u20ac\u00a5]\s?\d[\d,]*(?:\.\d+)?{_SCALE}"
    rf"|\b\d[\d,]{{0,40}}(?:\.\d+)?{_SCALE}\s+(?:dollars|pounds|euros|yen|rupees|cents)\b",
    re.IGNORECASE,
)
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
    "how many": r"\bhow (?:many|old|long|high|tall|far|deep|large|big|populous|often|wide)\b"
    r"|\b(?:number|population|age|percentage|average|mean|ratio|rating|height|length|depth|elevation|area"
    r"|distance|volume|total|difference|margin|inhabitants) (?:of|in|between|for)\b|\bwhat percent",
    "how much": r"\bhow much\b"
    r"|\b(?:price|cost|budget|revenue|earnings|dividend|market cap\w*|salary|eps) of\b"
    r"|\bearnings per share\b|\btrading at\b|\b(?:stock|share) price\b",
    "when": r"\bwhen\b|\b(?:what|which) (?:\w+ )?(?:year|date|day|month)s?\b"
    r"|\b(?:birthday|date of birth|birth date|release date|year in which)\b",
    "who": r"\bwho(?:se|m)?\b|\bname of the (?:person|man|woman)\b"
    r"|\b(?:what|which) (?:actor|actress|artist|author|director|player|person|president|singer|writer)\b",
    "where": r"\bwhere\b|\b(?:what|which) (?:city|country|county|location|place|state|town|venue)\b",
    "name": r"\b(?:what|which|name)\b",
}  # in this order: "on which day of the week" asks for no date
_ASKS = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}

_COUNTS = re.compile(r"\bhow (?:many|often|old)\b|\bnumber of\b")
_COUNTED = re.compile(r"\bhow many (?:different |total |more |other )?(\w+)")


@dataclass(frozen=True, slots=True)
class TypedSpan:
    span: Span  # in the sentence
    choices: int  # how many there were to choose from, at least 1
    named: bool  # a number that stands before the very thing that is counted


def kind_of(question: str) -> Kind:
    """The kind of thing that a question asks for.

    >>> [kind_of(q) for q in ("who wrote emma", "what year did emma come out", "why is emma long")]
    ['who', 'when', 'other']
    """
    q = question.lower()
    return next((kind for kind, pattern in _ASKS.items() if pattern.search(q)), "other")


def typed_span(question: str, kind: Kind, sentence: str, marks: Sequence[int]) -> TypedSpan | None:
    """The span of a sentence that may answer a question of this kind; None where there is none.

    `marks` are the places in the sentence where words of the question start. A name that has one is what the
    question is about, not what it asks for; of the others the nearest to the marks is taken.
    """
    asked = set(re.findall(r"\w+", question.lower()))
    spans = [
        s
        for s in _all(question, kind, sentence)
        if not asked.issuperset(re.findall(r"\w+", sentence[slice(*s)].lower()))
    ]
    if kind in ("who", "where", "name"):
        spans = [s for s in spans if not any(s[0] <= m < s[1] for m in marks)]
    if kind == "how many" and not _COUNTS.search(question.lower()):  # "10 films" is no rating of the films
        spans = [s for s in spans if not any(0 < m - s[1] <= 2 for m in marks)] or spans
    if kind == "who":
        spans = [s for s in spans if " " in sentence[slice(*s)]] or spans
    if not spans:
        return None
    counted = _COUNTED.search(question.lower()) if kind == "how many" else None
    named = []
    if counted:  # its first letters, enough to match its other forms, with at most two words between,
        # and between words at most 40 other characters: a dotted line of a table of contents has more
        stem = re.escape(counted[1][: max(4, len(counted[1]) - 2)].rstrip("s"))
        before = re.compile(rf"(?:\W{{1,40}}+\w++){{0,2}}?\W{{1,40}}+{stem}", re.IGNORECASE)
        named = [s for s in spans if stem and before.match(sentence, s[1])]
    # the mean distance in characters to the question's words, but for their number
    best = min(named or spans, key=lambda s: (sum(max(s[0] - m, m - s[1], 0) for m in marks), s))
    return TypedSpan(best, len(named or spans), bool(named))


def _all(question: str, kind: Kind, sentence: str) -> list[Span]:
    if kind == "when":
        pattern = _YEARS if re.search(r"\b(?:what|which) year\b", question.lower()) else _DATES
        return [m.span() for m in pattern.finditer(sentence)]
    if kind == "how much":
        return numbers(sentence)
    if kind == "how many":
        return _numbers(sentence)
    if kind == "weekday":
        return [m.span() for m in _WEEKDAYS.finditer(sentence)]
    return _names(sentence) if kind in ("who", "where", "name") else []


def _numbers(sentence: str) -> list[Span]:
    """Numbers that are not part of a date."""
    found, of_dates = [m.span() for m in _NUMBERS.finditer(sentence)], dates(sentence)
    return [(a, b) for a, b in found if not any(a < d and c < b for c, d in of_dates)]


def _names(sentence: str) -> list[Span]:
    """Runs of capitalised words, without the words that only begin a sentence."""
    spans: list[Span] = []
    for m in _NAMES.finditer(sentence):
        start, words = m.start(), m.group()
        while words and re.split(r"[\s.\u2019']", words, maxsplit=1)[0].lower() in _NO_NAME:
            rest = re.sub(r"^\S+\s*", "", words)
            start += len(words) - len(rest)
            words = rest
        words = re.sub(r"(?:\u2019s|'s|(?<=\w{3})\.)$", "", words)
        if len(words) > 1:
            spans.append((start, start + len(words)))
    return spans


def dates(sentence: str) -> list[Span]:
    return [m.span() for m in _DATES.finditer(sentence)]


def numbers(sentence: str) -> list[Span]:
    """Amounts of money, or else other numbers that are not part of a date."""
    return [m.span() for m in _MONEY.finditer(sentence)] or _numbers(sentence)


Direction: TypeAlias = Literal["more", "less", "earlier", "later"]

OPPOSITE: dict[Direction, Direction] = {
    "more": "less", "less": "more", "earlier": "later", "later": "earlier"
}  # fmt: skip
_WORDS: dict[Direction, str] = {
    "more": """more most larger largest bigger biggest higher highest greater greatest better best dearer
        dearest valuable taller tallest longer longest heavier deeper wider farther""",
    "less": """less least fewer fewest lower lowest smaller smallest cheaper cheapest worse shorter shortest
        lighter narrower""",
    "earlier": "earlier earliest first older oldest before",
    "later": "later latest last newer newest younger youngest after",
}
WORDS = {direction: frozenset(words.split()) for direction, words in _WORDS.items()}
"""Words that compare. Those of one direction agree with each other, but for `EXACT`."""
_EXACT = "taller tallest longer longest shorter shortest heavier lighter deeper wider farther narrower"
EXACT = frozenset(_EXACT.split())
"""Words of one measure: "longer" is answered by "longer", not by "larger"."""

_PLURAL = re.compile(
    r"^(?:list|name (?:the|all|everything)|who are|who were|which (?:two|three|four|five)\b)"
    r"|\bwhat are (?:the|all|\w+'s)\b|\b(?:what|which) (?:\w+ )?(?!is\b|was\b|has\b|does\b|this\b|series\b)"
    r"\w{2,}(?<!s)s (?:are|did|do|have|were|star|won|feature)\b"
    r"|\b(?:in|on) (?:what|which) (?:dates|days|films|movies|songs|years|cities|countries)\b"
    r"|\b(?:names of (?:the|all)|members of|twin towns|sister cities|year by year)\b"
)
_TIMELY = re.compile(
    r"\b(?:today|tonight|yesterday|tomorrow|now|currently|current|latest|newest|most recent(?:ly)?|recently"
    r"|at the moment|at present|this (?:week|month|year)|last (?:week|month|year|night)|next (?:game|match)"
    r"|last (?:game|match|trading day))\b"
)
_TODAY = re.compile(
    r"\b(?:today|tonight|yesterday|tomorrow|now|at the moment|this week|last (?:week|night)"
    r"|current (?:\w+ ){0,2}price|trading at)\b"
)
_YES_NO = re.compile(r"^(?:is|are|was|were|did|do|does|has|have|had|can|could|will|would|should)\b")
_SECOND_YES_NO = re.compile(r":\s*(?:is|was|did|does)\b")
_BETWEEN = re.compile(r"\A(?>.*?\b(?:between|of) )(?>.+? and ).+?,\s*(?:which|who|whose|what|did|is|was)\b")
_EITHER = re.compile(r"\b(?!who or|what or|one or|more or)\w+ or (?!what\b|more\b|less\b|not\b)\w")


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    text: str  # in lower case, without the last question mark
    kind: Kind
    plural: bool  # several things are asked for
    timely: bool  # the answer changes with the day of asking
    today: bool  # and a text of another month does not say it
    yes_no: bool
    choice: bool  # one of two that the question names
    direction: Direction | None  # of a comparison
    word: str  # that says the direction; ""


def read(question: str) -> AskedQuestion:
    """Returns what a question asks for.

    >>> asked = read("Which is longer, the Ohio or the Elbe?")
    >>> asked.choice, asked.direction, asked.word
    (True, 'more', 'longer')
    >>> read("Is the Ohio longer than the Elbe?").yes_no
    True
    >>> read("which films did she direct?").plural, read("who is mayor today?").timely
    (True, True)
    """
    q = " ".join(question.lower().split()).rstrip("?. ")
    direction, word = _direction(q)
    either = bool(_BETWEEN.search(q) or _EITHER.search(q))
    colon = bool(_SECOND_YES_NO.search(q))
    choice = either and direction is not None and not colon
    yes_no = colon or (_YES_NO.match(q) is not None and not either)
    if not (choice or yes_no):
        direction, word = None, ""
    plural, timely, today = (bool(rule.search(q)) for rule in (_PLURAL, _TIMELY, _TODAY))
    return AskedQuestion(q, kind_of(q), plural, timely, today, yes_no, choice, direction, word)


def _direction(q: str) -> tuple[Direction | None, str]:
    """The direction of the comparison that a question makes, and the word that says it."""
    if "longer history" in q:
        return "earlier", "older"
    words = re.findall(r"\w+", q)
    known = {word: direction for direction, said in WORDS.items() for word in said}
    for preferred in (EXACT, known.keys() - {"first", "last", "before", "after"}, known.keys()):
        for word in words:
            if word in preferred:
                return known[word], word
    return None, ""
