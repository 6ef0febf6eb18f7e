"""Linking: each level with a case, per kind, and names that must not be taken for others."""

import asyncio

import numpy as np
import pytest

from raypipe.contrib.crag.link import Linker, Strictness
from raypipe.contrib.crag.names import fold, typed
from raypipe.contrib.crag.records import MOST_NEAR
from raypipe.contrib.crag.tables import Tables
from raypipe.core.errors import ConfError


@pytest.fixture(scope="module")
def tables():
    t = Tables()
    movies = [
        "The Maze Runner",
        "Maze Runner: The Death Cure",
        "WALL·E",
        "Amélie",
        "Spider-Man: Far From Home",
        "It",
    ]
    t.insert(
        "movie", [{"title": m} for m in movies] + [{"title": "Seven Samurai", "original_title": "七人の侍"}]
    )
    t.insert("artist", [{"name": n} for n in ("Beyoncé", "AC/DC", "The Weeknd", "Earth, Wind & Fire", "???")])
    t.insert(
        "company",
        [
            {"ticker": "AAPL", "name": "Apple Inc. Common Stock"},
            {"ticker": "APLE", "name": "Apple Hospitality REIT Inc. Common Shares"},
            {"ticker": "GOOGL", "name": "Alphabet Inc. Class A Common Stock"},
            {"ticker": "T", "name": "AT&T Inc."},
            {"ticker": "GM", "name": "General Motors Company"},
        ],
    )
    t.insert("nba_game", [{"team_name_home": "Los Angeles Lakers", "team_name_away": "Philadelphia 76ers"}])
    t.insert("team", [{"name": "Los Angeles Lakers", "sport": "nba", "alias": "Purple and Gold"}])
    t.insert("team", [{"name": "Arsenal", "sport": "soccer"}])  # it has no game
    clubs = ("Manchester Utd", "Manchester City", "Paris S-G", "Nott'ham Forest", "M'Gladbach", "Alavés")
    t.insert("soccer_game", [{"team": c} for c in clubs])
    return t


@pytest.fixture(scope="module")
def link(tables):
    linker = Linker(tables)

    def found(written, kind):
        link = asyncio.run(linker.link(written, kind))
        return None if link is None else (link.name, link.level)

    return found


@pytest.mark.parametrize(
    ("written", "kind", "name", "level"),
    [
        ("the maze runner", "movie", "The Maze Runner", "exact"),
        ("wall e", "movie", "WALL·E", "exact"),
        ("AMELIE", "movie", "Amélie", "exact"),
        ("七人の侍", "movie", "Seven Samurai", "exact"),
        ("spiderman far from home", "movie", "Spider-Man: Far From Home", "tokens"),
        ("death cure", "movie", "Maze Runner: The Death Cure", "substring"),
        ("maze runner", "movie", "The Maze Runner", "substring"),
        ("runner maze death", "movie", "Maze Runner: The Death Cure", "tokens"),
        ("beyonce", "artist", "Beyoncé", "exact"),
        ("ac/dc", "artist", "AC/DC", "exact"),
        ("weeknd", "artist", "The Weeknd", "substring"),
        ("earth wind and fire", "artist", "Earth, Wind & Fire", "exact"),
        ("???", "artist", "???", "exact"),
        ("aapl", "company", "AAPL", "exact"),
        ("Apple", "company", "AAPL", "exact"),
        ("apple inc", "company", "AAPL", "exact"),
        ("google", "company", "GOOGL", "exact"),
        ("AT&T", "company", "T", "exact"),
        ("$AAPL", "company", "AAPL", "exact"),
        ("ticker gm", "company", "GM", "exact"),
        ("NASDAQ: AAPL", "company", "AAPL", "exact"),
        ("gm stock", "company", "GM", "exact"),
        ("hospitality apple", "company", "APLE", "tokens"),
        ("the general motors corporation", "company", "GM", "exact"),
        ("lakers", "nba", "Los Angeles Lakers", "substring"),
        ("purple and gold", "nba", "Los Angeles Lakers", "exact"),
        ("sixers", "nba", "Philadelphia 76ers", "exact"),
        ("manchester united", "soccer", "Manchester Utd", "exact"),
        ("PSG", "soccer", "Paris S-G", "exact"),
        ("nottingham forest", "soccer", "Nott'ham Forest", "exact"),
        ("Borussia Mönchengladbach", "soccer", "M'Gladbach", "exact"),
        ("alaves", "soccer", "Alavés", "exact"),
        ("the gunners", "soccer", "Arsenal", "substring"),
        ("Arsenal FC", "soccer", "Arsenal", "substring"),
    ],
)
def test_a_name_is_found_at_its_level(link, written, kind, name, level):
    assert link(written, kind) == (name, level)


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("weeknd the band of nobody at all", "artist"),
        ("is it raining in spain", "movie"),
        ("runner", "song"),
        ("", "movie"),
        ("   ", "company"),
        ("fire water earth", "artist"),
        ("real madrid", "soccer"),
    ],
)
def test_a_name_that_is_not_there_is_none_rather_than_another(link, written, kind):
    assert link(written, kind) is None


@pytest.mark.parametrize(
    ("text", "seen", "name"),
    [
        ("what did AAPL close at?", "AAPL", "AAPL"),
        ("what did $aapl close at?", "$aapl", "AAPL"),
        ("what did ticker GM close at?", "ticker GM", "GM"),
        ("what did nyse: gm close at?", "nyse: gm", "GM"),
        ("what did the stock symbol GM close at?", "stock symbol GM", "GM"),
    ],
)
def test_what_marks_a_ticker_in_a_text_is_part_of_the_name(tables, text, seen, name):
    [mention] = Linker(tables).mentions(text)
    assert (text[slice(*mention.span)], mention.names) == (seen, {"company": name})


def test_of_names_that_overlap_in_a_text_the_longest_counts(tables):
    text = "does General Motors Company make a car for earth, wind & fire, or is general motors in it?"
    seen = [text[slice(*m.span)] for m in Linker(tables).mentions(text)]
    assert seen == ["General Motors Company", "earth, wind & fire", "general motors", "it"]


def test_meaning_links_where_words_do_not_and_only_when_near_enough(tables):
    asked = []

    async def vectors(names):
        asked.append(list(names))
        clown = ("It", "the clown film")
        return np.array([[1.0, 0.0] if n in clown else [0.6, 0.8] for n in names], np.float32)

    strict = Strictness(levels={"movie": ("exact", "embedding")}, least_near=0.9)
    linker = Linker(tables, strict, vectors)
    found = asyncio.run(linker.link("the clown film", "movie"))
    assert (found.name, found.level, found.score) == ("It", "embedding", 1.0)
    far = Linker(tables, Strictness(levels={"movie": ("embedding",)}, least_near=0.9), vectors)
    names = {n for some in asked for n in some}
    assert asyncio.run(linker.link("It", "movie")).level == "exact" and "It" in names
    asked.clear()
    assert asyncio.run(linker.link("the clown film", "song")) is None, "a kind without the level"
    assert asked == []
    assert asyncio.run(Linker(tables, strict).link("the clown film", "movie")) is None, "no vectors, no link"
    assert asyncio.run(far.link("amelie", "movie")).name != "It"


@pytest.mark.slow
def test_too_many_names_to_be_compared_by_meaning_are_refused_and_not_left_out():
    many = Tables()
    many.insert("song", [{"name": f"song {i}"} for i in range(MOST_NEAR + 1)])

    async def vectors(names):
        raise AssertionError("no embedder may be called")

    linker = Linker(many, Strictness(levels={"song": ("exact", "embedding")}), vectors)
    assert asyncio.run(linker.link("song 7", "song")).level == "exact"
    with pytest.raises(ConfError, match="expected at most 50000 names of a kind that is linked by embedding"):
        asyncio.run(linker.link("another", "song"))


def test_levels_are_the_recipes_to_choose(tables):
    exact = Linker(tables, Strictness(levels={"movie": ("exact",)}))
    assert asyncio.run(exact.link("maze runner", "movie")) is None
    loose = Linker(tables, Strictness(levels={"movie": ("tokens",)}, least_shared=0.2))
    assert asyncio.run(loose.link("the death of a runner", "movie")) is not None


def test_a_link_says_what_it_was_and_how_sure(tables):
    link = asyncio.run(Linker(tables).link("Maze  runner", "movie"))
    assert (link.written, link.kind, link.key, link.score) == (
        "Maze  runner",
        "movie",
        "the maze runner",
        pytest.approx(2 / 3),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("13,085", 13085.0),
        (" -2.5 ", -2.5),
        ("1,2", "1 2"),
        ("2001-04-25", "2001 04 25"),
        (7, 7),
        (None, None),
        ("Ærø", "aero"),
    ],
)
def test_facts_are_numbers_where_they_look_like_one(value, expected):
    assert typed(value) == expected
    assert fold(None) is None
