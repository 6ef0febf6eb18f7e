"""Normal forms of names and values, for comparison."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any, Final

_LETTERS: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "\u0131": "i"}
)
_JOINED = re.compile(r"(?<=\w)['\u2019`.](?=\w)")  # don't, S.H.I.E.L.D: one word
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]+)?|-?[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]+)?")


@lru_cache(maxsize=200_000)
def _fold(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_LETTERS)
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    words = "".join(c if c.isalnum() else " " for c in _JOINED.sub("", plain).replace("&", " and "))
    return " ".join(words.split()) or " ".join(text.casefold().split())


def fold(value: Any) -> str | None:
    """Drops case, accents, punctuation and extra spaces; "&" becomes "and". Null stays null.

    >>> fold("  Spider-Man: Far  From Home "), fold("Beyoncé & JAY-Z"), fold("Schindler's"), fold("???")
    ('spider man far from home', 'beyonce and jay z', 'schindlers', '???')
    """
    return None if value is None else _fold(str(value))


def typed(value: Any) -> float | str | None:
    """Converts an untyped fact to a number if possible ("1,200" is one), else to its folded text."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value).strip()
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else fold(text)
