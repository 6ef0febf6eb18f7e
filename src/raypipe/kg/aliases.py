"""Aliases of clubs, teams, companies and tickers, as questions write them and as tables hold them.

Pure functions and lists; knows no table. The clubs and teams are those of the leagues that the mock API
serves, in its spelling, so that one which has no game in a time is still known to be one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from raypipe.kg.normalize import fold
from raypipe.text.words import STOP_WORDS

# Clubs as newspapers write them and as the match tables do. Abbreviations that are words of the full name
# need no entry: they are found as substrings or by shared words. A nickname that is mostly something else
# (the Eagles, the Saints) is none here.
ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "soccer": {
        "manchester united": "Manchester Utd", "man united": "Manchester Utd", "man utd": "Manchester Utd",
        "red devils": "Manchester Utd", "man city": "Manchester City", "gunners": "Arsenal",
        "toffees": "Everton", "newcastle united": "Newcastle Utd", "newcastle": "Newcastle Utd",
        "magpies": "Newcastle Utd", "nottingham forest": "Nott'ham Forest", "notts forest": "Nott'ham Forest",
        "sheffield united": "Sheffield Utd", "tottenham hotspur": "Tottenham", "spurs": "Tottenham",
        "wolverhampton wanderers": "Wolves", "wolverhampton": "Wolves", "west ham united": "West Ham",
        "hammers": "West Ham", "cottagers": "Fulham", "leicester": "Leicester City", "leeds": "Leeds United",
        "norwich": "Norwich City", "ipswich": "Ipswich Town", "luton": "Luton Town",
        "brighton and hove albion": "Brighton", "afc bournemouth": "Bournemouth",
        "paris saint germain": "Paris S-G", "psg": "Paris S-G", "paris sg": "Paris S-G",
        "olympique lyonnais": "Lyon", "olympique de marseille": "Marseille", "as monaco": "Monaco",
        "stade rennais": "Rennes", "stade de reims": "Reims", "losc": "Lille", "ogc nice": "Nice",
        "bayern": "Bayern Munich", "bayern munchen": "Bayern Munich", "fc bayern": "Bayern Munich",
        "borussia dortmund": "Dortmund", "bvb": "Dortmund", "borussia monchengladbach": "M'Gladbach",
        "monchengladbach": "M'Gladbach", "gladbach": "M'Gladbach", "bayer leverkusen": "Leverkusen",
        "eintracht frankfurt": "Eint Frankfurt", "frankfurt": "Eint Frankfurt", "leipzig": "RB Leipzig",
        "cologne": "Köln", "bremen": "Werder Bremen", "hertha berlin": "Hertha BSC", "hertha": "Hertha BSC",
        "mainz": "Mainz 05", "schalke": "Schalke 04", "darmstadt": "Darmstadt 98",
        "inter milan": "Inter", "internazionale": "Inter", "nerazzurri": "Inter", "ac milan": "Milan",
        "rossoneri": "Milan", "juve": "Juventus", "bianconeri": "Juventus", "as roma": "Roma",
        "giallorossi": "Roma", "ss lazio": "Lazio", "ssc napoli": "Napoli", "partenopei": "Napoli",
        "verona": "Hellas Verona", "athletic bilbao": "Athletic Club", "bilbao": "Athletic Club",
        "atletico de madrid": "Atlético Madrid", "atletico": "Atlético Madrid", "atleti": "Atlético Madrid",
        "los blancos": "Real Madrid", "barca": "Barcelona", "blaugrana": "Barcelona",
        "fc barcelona": "Barcelona", "real betis": "Betis", "celta de vigo": "Celta Vigo",
        "celta": "Celta Vigo", "deportivo alaves": "Alavés", "rayo": "Rayo Vallecano",
        "real valladolid": "Valladolid", "ud las palmas": "Las Palmas",
    },
    "nba": {
        "sixers": "Philadelphia 76ers", "cavs": "Cleveland Cavaliers", "mavs": "Dallas Mavericks",
        "wolves": "Minnesota Timberwolves", "blazers": "Portland Trail Blazers",
        "dubs": "Golden State Warriors",
        "la clippers": "LA Clippers", "los angeles clippers": "LA Clippers",
        "la lakers": "Los Angeles Lakers",
        "okc": "Oklahoma City Thunder", "nola": "New Orleans Pelicans",
    },
    "company": {"google": "GOOGL", "alphabet": "GOOGL", "facebook": "META", "berkshire hathaway": "BRK-B"},
}  # fmt: skip
NBA_TEAMS: Final = (
    "Atlanta Hawks", "Boston Celtics", "Brooklyn Nets", "Charlotte Hornets", "Chicago Bulls",
    "Cleveland Cavaliers", "Dallas Mavericks", "Denver Nuggets", "Detroit Pistons", "Golden State Warriors",
    "Houston Rockets", "Indiana Pacers", "LA Clippers", "Los Angeles Lakers", "Memphis Grizzlies",
    "Miami Heat", "Milwaukee Bucks", "Minnesota Timberwolves", "New Orleans Pelicans", "New York Knicks",
    "Oklahoma City Thunder", "Orlando Magic", "Philadelphia 76ers", "Phoenix Suns", "Portland Trail Blazers",
    "Sacramento Kings", "San Antonio Spurs", "Toronto Raptors", "Utah Jazz", "Washington Wizards",
)  # fmt: skip
SOCCER_CLUBS: Final = (
    "Arsenal", "Aston Villa", "Bournemouth", "Brentford", "Brighton", "Burnley", "Chelsea", "Crystal Palace",
    "Everton", "Fulham", "Ipswich Town", "Leeds United", "Leicester City", "Liverpool", "Luton Town",
    "Manchester City", "Manchester Utd", "Newcastle Utd", "Norwich City", "Nott'ham Forest", "Sheffield Utd",
    "Southampton", "Tottenham", "Watford", "West Ham", "Wolves",
    "Alavés", "Almería", "Athletic Club", "Atlético Madrid", "Barcelona", "Betis", "Cádiz", "Celta Vigo",
    "Elche", "Espanyol", "Getafe", "Girona", "Granada", "Las Palmas", "Leganés", "Levante", "Mallorca",
    "Osasuna", "Rayo Vallecano", "Real Madrid", "Real Sociedad", "Sevilla", "Valencia", "Valladolid",
    "Villarreal",
    "Atalanta", "Bologna", "Cagliari", "Como", "Cremonese", "Empoli", "Fiorentina", "Frosinone", "Genoa",
    "Hellas Verona", "Inter", "Juventus", "Lazio", "Lecce", "Milan", "Monza", "Napoli", "Parma", "Roma",
    "Salernitana", "Sampdoria", "Sassuolo", "Spezia", "Torino", "Udinese", "Venezia",
    "Arminia", "Augsburg", "Bayern Munich", "Bochum", "Darmstadt 98", "Dortmund", "Eint Frankfurt",
    "Freiburg", "Greuther Fürth", "Heidenheim", "Hertha BSC", "Hoffenheim", "Holstein Kiel", "Köln",
    "Leverkusen", "Mainz 05", "M'Gladbach", "RB Leipzig", "Schalke 04", "St. Pauli", "Stuttgart",
    "Union Berlin", "Werder Bremen", "Wolfsburg",
    "Ajaccio", "Angers", "Auxerre", "Bordeaux", "Brest", "Clermont Foot", "Le Havre", "Lens", "Lille",
    "Lorient", "Lyon", "Marseille", "Metz", "Monaco", "Montpellier", "Nantes", "Nice", "Paris S-G", "Reims",
    "Rennes", "Saint-Étienne", "Strasbourg", "Toulouse", "Troyes",
)  # fmt: skip
"""The clubs of the five big leagues from 2021 to 2025."""
TEAMS: Final[Mapping[str, tuple[str, ...]]] = {"nba": NBA_TEAMS, "soccer": SOCCER_CLUBS}


def team(written: str, sport: str) -> str | None:
    """The full name of a team or club by its name, city or nickname; None if unknown or ambiguous.

    >>> team("lakers", "nba"), team("Arsenal FC", "soccer"), team("koln", "soccer"), team("real", "soccer")
    ('Los Angeles Lakers', 'Arsenal', 'Köln', None)
    """
    query = fold(written) or ""
    for spoken in dict.fromkeys((query, " ".join(w for w in query.split() if w not in _CLUB_WORDS))):
        if not spoken:
            continue
        if spoken in ALIASES[sport]:
            return ALIASES[sport][spoken]
        near = [t for t in TEAMS[sport] if f" {spoken} " in f" {fold(t)} "]
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
    """A company's name without its legal form: "Apple Inc. Common Stock" is "apple". Never empty.

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
_TICKER: Final = re.compile(rf"\W*(?:{_MARK})?({_SYMBOL})(?:\s+(?:stocks?|shares?))?\W*", re.IGNORECASE)
_MARKED: Final = re.compile(rf"{_MARK}({_SYMBOL})(?![\w])", re.IGNORECASE)
_MARK_BEFORE: Final = re.compile(rf"{_MARK}$", re.IGNORECASE)
_BARE: Final = re.compile(rf"(?<![\w$.'-]){_SYMBOL}(?![\w-])")
_OF_SHARES: Final = re.compile(
    r"\b(?:stocks?|shares?|tickers?|dividends?|eps|earnings|p/?e|market cap\w*|traded?|trading|price|"
    r"(?:open|clos)(?:e|ed|ing) (?:at|higher|lower)|"
    r"(?:high|low|open|close)\b.*\b(?:high|low|open|close))\b",
    re.IGNORECASE,
)
# Short words of questions about shares that are no ticker there, though some of them are tickers elsewhere.
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
"""Words of one text that are looked up as tickers at most."""


def ticker(written: str) -> str | None:
    """A ticker as it may be written, in capitals and with Yahoo's hyphen; None for what cannot be one.

    >>> ticker("aapl"), ticker("$TSLA"), ticker("ticker MSFT"), ticker("NYSE: BRK.B"), ticker("msft stock")
    ('AAPL', 'TSLA', 'MSFT', 'BRK-B', 'MSFT')
    >>> ticker("united states steel")
    """
    found = _TICKER.fullmatch(written)
    return None if found is None else found[1].upper().replace(".", "-")


def tickers_in(text: str) -> list[str]:
    """The words of a text that may be tickers, the most certain first.

    Those marked as one ("$TSLA", "ticker MSFT"), then words in capitals in a text that is not all capitals;
    without either, in a text about shares, any short word that has no other meaning there. Only a graph
    knows whether such a ticker exists.

    >>> tickers_in("What did AAPL close at?"), tickers_in("how is auph's eps?"), tickers_in("who is he?")
    (['AAPL'], ['AUPH'], [])
    """
    marked = [m[1] for m in _MARKED.finditer(text)]
    bare = [m[0] for m in _BARE.finditer(text) if len(m[0]) > 1]
    sure = [*marked, *(w for w in bare if w.isupper() and text.upper() != text)]
    found = _symbols(sure) or (_symbols(bare) if _OF_SHARES.search(text) else [])
    return found[:MOST_TICKERS]


def _symbols(words: Sequence[str]) -> list[str]:
    """The words that have no other meaning, each once."""
    return [
        w for w in dict.fromkeys(w.upper().replace(".", "-") for w in words) if w.lower() not in _SHORT_WORDS
    ]


def mark_before(text: str) -> int:
    """The length of the mark at the end of a text that announces a ticker.

    >>> mark_before("what did $"), mark_before("of ticker "), mark_before("of ")
    (1, 7, 0)
    """
    found = _MARK_BEFORE.search(text)
    return 0 if found is None else len(found[0])
