"""What a question asks for: the kind of thing, one or several, which of two, and of which time.

Rules over English questions in any case; pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from raypipe.text.spans import Kind, kind_of

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
_BETWEEN = re.compile(
    r"\b(?:between|of) (?P<left>.+?) and (?P<right>.+?),\s*(?:which|who|whose|what|did|is|was)\b"
)
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
    """What a question asks for.

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
