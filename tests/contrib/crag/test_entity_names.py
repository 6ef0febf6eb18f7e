"""Names as they are written: what may be a ticker, and which team is meant."""

import pytest

from raypipe.contrib.crag.names import MOST_TICKERS, fold, known_names, team, ticker, tickers_in


@pytest.mark.parametrize(
    ("written", "symbol"),
    [
        ("msft", "MSFT"),
        ("$tsla", "TSLA"),
        ("ticker symbol MSFT", "MSFT"),
        ("(NASDAQ: AAPL)", "AAPL"),
        ("brk.b", "BRK-B"),
        ("aapl shares", "AAPL"),
        ("alphabet", None),
        ("exxon mobil", None),
        ("tickers", None),
        ("$5", None),
        ("", None),
    ],
)
def test_a_written_name_is_a_ticker_or_none(written, symbol):
    assert ticker(written) == symbol


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("What did AAPL close at?", ["AAPL"]),
        ("how did $TSLA do?", ["TSLA"]),
        ("what is the ticker msft worth?", ["MSFT"]),
        ("who runs the company with the ticker symbol GM?", ["GM"]),
        ("what's auph's earnings per share?", ["AUPH"]),
        ("which company have larger market cap, rbc or rng?", ["RBC", "RNG"]),
        ("what were the low and high prices of leco on the most recent trading day?", ["LECO"]),
        ("can you tell me the p/e ratio of brk.b?", ["BRK-B"]),
        ("by how much did the high of sbie exceed its low on october 16, 2023?", ["SBIE"]),
        ("list the days on which mac gained from open to close.", ["LIST", "MAC"]),
        ("what is the symbol of the constellation that includes altair?", []),
        ("what is the ex-dividend date of microsoft?", []),
        ("who was the first actor to play a villain?", []),
        ("WHO WAS THE FIRST ACTOR?", []),
        ("", []),
    ],
)
def test_words_of_a_question_that_may_be_tickers_are_few(text, symbols):
    assert tickers_in(text) == symbols


def test_where_something_is_marked_or_in_capitals_no_other_word_is_a_ticker():
    quiet = " ".join(f"q{c}z" for c in "abcdefgh")
    assert tickers_in(f"price of {quiet} or LOUD or $mark?") == ["MARK", "LOUD"]
    assert len(tickers_in(f"price of {quiet}")) == MOST_TICKERS


@pytest.mark.parametrize(
    ("written", "sport", "name"),
    [
        ("lakers", "nba", "Los Angeles Lakers"),
        ("Sixers", "nba", "Philadelphia 76ers"),
        ("boston", "nba", "Boston Celtics"),
        ("golden state warriors", "nba", "Golden State Warriors"),
        ("zedaby blizzards", "nba", None),
        ("gunners", "soccer", "Arsenal"),
        ("the gunners", "soccer", "Arsenal"),
        ("Everton FC", "soccer", "Everton"),
        ("FC Köln", "soccer", "Köln"),
        ("st pauli", "soccer", "St. Pauli"),
        ("milan", "soccer", "Milan"),
        ("manchester", "soccer", None),
        ("fc", "soccer", None),
        ("", "soccer", None),
    ],
)
def test_a_team_is_meant_by_its_name_city_or_nickname(written, sport, name):
    assert team(written, sport) == name


@pytest.mark.parametrize("sport", ["nba", "soccer"])
def test_an_alias_names_a_team_that_there_is_and_is_written_as_names_are_compared(sport):
    teams, aliases = known_names()["teams"][sport], known_names()["aliases"][sport]
    assert set(aliases.values()) <= set(teams)
    assert all(fold(alias) == alias for alias in aliases)
    assert len(set(teams)) == len(teams)
