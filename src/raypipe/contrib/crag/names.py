"""Normal forms of names and values, and aliases of clubs, teams, companies and tickers.

Aliases (`aliases.yaml`) map spellings in questions to spellings in tables. The functions read no tables.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, TypedDict

import yaml

from raypipe.text.words import STOP_WORDS

_LETTERS: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "\u0131": "i"}
)
_JOINED = re.compile(r"(?<=\w)['\u2019`.](?=\w)")  # don't, S.H.I.E.L.D: one word
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]+)?|-?[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]+)?")


@functools.lru_cache(maxsize=200_000)
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


# ---------------------------------------------------------------- aliases


class KnownNames(TypedDict):
    teams: dict[str, list[str]]  # sport -> full names
    aliases: dict[str, dict[str, str]]  # kind of name -> folded spelling in questions -> spelling in tables


@functools.cache
def known_names() -> KnownNames:
    text = resources.files("raypipe.contrib.crag").joinpath("aliases.yaml").read_text(encoding="utf-8")
    names: KnownNames = yaml.load(text, Loader=yaml.CSafeLoader)
    return names


def team(written: str, sport: str) -> str | None:
    """Resolves the name, city or nickname of a team or club to its full name; None if unknown or ambiguous.

    >>> team("lakers", "nba"), team("Arsenal FC", "soccer"), team("koln", "soccer"), team("real", "soccer")
    ('Los Angeles Lakers', 'Arsenal', 'Köln', None)
    """
    query, known = fold(written) or "", known_names()
    for spoken in dict.fromkeys((query, " ".join(w for w in query.split() if w not in _CLUB_WORDS))):
        if not spoken:
            continue
        if spoken in known["aliases"][sport]:
            return known["aliases"][sport][spoken]
        near = [t for t in known["teams"][sport] if f" {spoken} " in f" {fold(t)} "]
        whole = [t for t in near if fold(t) == spoken]
        if len(whole or near) == 1:
            return (whole or near)[0]
    return None


_CLUB_WORDS: Final = frozenset({"the", "fc", "afc", "cf", "sc", "club"})

# ---------------------------------------------------------------- companies

_SUFFIX_WORDS: Final = """
    inc incorporated corp corporation co company ltd limited plc llc lp sa se ag nv holdings holding group the
    common stock ordinary share shares class a b c depositary american ads adr unit units
"""
_SUFFIXES: Final = frozenset(_SUFFIX_WORDS.split())


def short_company(folded: str) -> str:
    """Removes the legal form of a folded company name, and "the". The result is never empty.

    >>> short_company("apple inc common stock")
    'apple'
    """
    words = folded.split()
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    while len(words) > 1 and words[0] == "the":
        words.pop(0)
    return " ".join(words)


_SYMBOL: Final = r"[A-Za-z]{1,5}(?:[.-][A-Za-z]{1,2})?"
_MARK: Final = r"(?:\b(?:stock\s+)?(?:ticker|symbol|nasdaq|nyse|amex)\b(?:\s+symbol\b)?[\s:(\"']*\$?|\$)"
_TICKER: Final = re.compile(rf"\A\W*+(?:{_MARK})?({_SYMBOL})(?:\s+(?:stocks?|shares?))?\W*", re.IGNORECASE)
_MARKED: Final = re.compile(rf"{_MARK}({_SYMBOL})(?![\w])", re.IGNORECASE)
_MARK_BEFORE: Final = re.compile(rf"{_MARK}$", re.IGNORECASE)
_BARE: Final = re.compile(rf"(?<![\w$.'-]){_SYMBOL}(?![\w-])")
_OF_SHARES: Final = re.compile(
    r"\b(?:stocks?|shares?|tickers?|dividends?|eps|earnings|p/?e|market cap\w*|traded?|trading|price|"
    r"(?:open|clos)(?:e|ed|ing) (?:at|higher|lower))\b",
    re.IGNORECASE,
)
_OF_A_DAY: Final = re.compile(r"\b(?:high|low|open|close)\b", re.IGNORECASE)  # two of these: about shares
# Short words that are no tickers in questions about shares, though some are tickers elsewhere.
_SAID: Final = """
    about after all am any apr aug avg been best both can cap ceo cfo close daily date day days dec did do
    does dow each earn end eps etf feb first fri from get give had has have her high his how ipo its jan
    jul july jun june just know last less like low lower many mar march may me mean mon month more most
    much my near new next nov now nyse oct off one open out over p pay pe per price q rate ratio sale sat
    sell sep share sold some sp stock sum sun tell than them thu today total trade tue two up us usa usd
    value was we wed week were what when which who whom why worst year yet you your
"""
_SHORT_WORDS: Final = STOP_WORDS | frozenset(_SAID.split())
MOST_TICKERS: Final = 5
"""Largest number of words of one text that are looked up as tickers."""


def ticker(written: str) -> str | None:
    """Converts a written ticker to capitals with Yahoo's hyphen; None if the text cannot be a ticker.

    >>> ticker("aapl"), ticker("$TSLA"), ticker("ticker MSFT"), ticker("NYSE: BRK.B"), ticker("msft stock")
    ('AAPL', 'TSLA', 'MSFT', 'BRK-B', 'MSFT')
    >>> ticker("united states steel")
    """
    match = _TICKER.fullmatch(written)
    return None if match is None else match[1].upper().replace(".", "-")


def tickers_in(text: str) -> list[str]:
    """Finds the words of a text that may be tickers, the most certain first.

    Marked words come first ("$TSLA", "ticker MSFT"), then words in capitals, if the text is not all capitals.
    Without any of these, a text about shares gives its short words that have no other meaning there. Only a
    graph can tell if such a ticker exists.

    >>> tickers_in("What did AAPL close at?"), tickers_in("how is auph's eps?"), tickers_in("who is he?")
    (['AAPL'], ['AUPH'], [])
    """
    marked = [m[1] for m in _MARKED.finditer(text)]
    bare = [m[0] for m in _BARE.finditer(text) if len(m[0]) > 1]
    sure = [*marked, *(w for w in bare if w.isupper() and text.upper() != text)]
    symbols = _symbols(sure) or (_symbols(bare) if _of_shares(text) else [])
    return symbols[:MOST_TICKERS]


def _of_shares(text: str) -> bool:
    return bool(_OF_SHARES.search(text)) or any(len(_OF_A_DAY.findall(s)) > 1 for s in text.split("\n"))


def _symbols(words: Sequence[str]) -> list[str]:
    """Converts words to tickers, each once, and drops words with another meaning."""
    return [
        w for w in dict.fromkeys(w.upper().replace(".", "-") for w in words) if w.lower() not in _SHORT_WORDS
    ]


def mark_before(text: str) -> int:
    """Returns the length of the mark at the end of a text that announces a ticker; 0 if there is none.

    >>> mark_before("what did $"), mark_before("of ticker "), mark_before("of ")
    (1, 7, 0)
    """
    mark = _MARK_BEFORE.search(text)
    return 0 if mark is None else len(mark[0])
