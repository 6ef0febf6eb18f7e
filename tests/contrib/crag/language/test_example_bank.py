"""The nearest example, filled in: names, times and numbers in their places, nothing named left out."""

import pytest

from raypipe.contrib.crag.language.example_bank import (
    ExampleBank,
    ExampleGroup,
    mask_question,
    masked,
    nearest,
)
from raypipe.contrib.crag.records import Mention
from raypipe.text.moments import moment

NOW = moment("03/06/2024, 10:00:00 PT")
BANK = ExampleBank(
    (
        ExampleGroup(
            "movie", "get_movie({movie})[year]", ("when did {movie} come out?", "how old is {movie}?")
        ),
        ExampleGroup(
            "movie",
            'get_movie({movie:a})["rating"]\nget_movie({movie:b})["rating"]',
            ("is {movie:a} or {movie:b} rated higher?",),
            "most",
        ),
        ExampleGroup(
            "finance", "get_stock_price({company}, {day})[close]", ("where did {company} end on {day}?",)
        ),
        ExampleGroup(
            "finance",
            "get_stock_dividend({company})\nsort([ge(date, {period.first}), le(date, {period.last})], date)",
            ("what did {company} pay in {period}?",),
        ),
        ExampleGroup("music", "None", ("which song is number {number} this week?",)),
    )
)


def find(text, least=0.5, best=0, **names):
    """The example at `best` scores 1, the others less; names: as written -> kinds."""
    mentions = []
    for written, kinds in names.items():
        name = written.replace("_", " ")
        at = text.index(name)
        mentions.append(Mention((at, at + len(name)), dict.fromkeys(kinds.split(), name.title())))
    scores = [1.0 if i == best else 0.9 - i / 100 for i in range(len(BANK.flat))]
    return nearest(
        mask_question(text, sorted(mentions, key=lambda m: m.span), BANK), BANK, scores, least, NOW
    )


def test_a_question_and_its_example_are_the_same_without_their_names():
    [mention] = [Mention((9, 15), {"movie": "Velora"})]
    assert mask_question("when did velora come out?", [mention], BANK).masked == masked(
        "when did {movie} come out?"
    )


def test_names_of_one_kind_fill_their_places_in_the_order_of_the_question():
    found = find("is low tide or velora rated higher?", best=2, low_tide="movie song", velora="movie")
    assert found.calls == 'get_movie("Low Tide")["rating"]\nget_movie("Velora")["rating"]'
    assert (found.group.rule, found.score) == ("most", 1.0)


def test_an_example_whose_places_are_of_another_kind_gives_way_to_one_that_fits():
    found = find("when did velora come out?", best=3, velora="movie")
    assert found.calls == 'get_movie("Velora")[year]' and found.score < 1


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("where did trnh end on march 4, 2024?", 'get_stock_price("Trnh", "march 4, 2024")[close]'),
        ("where did trnh end on yesterday?", 'get_stock_price("Trnh", "yesterday")[close]'),
        ("where did trnh end on last friday?", 'get_stock_price("Trnh", "last friday")[close]'),
    ],
)
def test_days_are_filled_in_as_they_are_written(text, calls):
    assert find(text, best=3, trnh="company").calls == calls


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("february 2024", "2024-02-01", "2024-02-29"),
        ("the third quarter of 2023", "2023-07-01", "2023-09-30"),
        ("2023", "2023-01-01", "2023-12-31"),
        ("last month", "2024-02-01", "2024-02-29"),
    ],
)
def test_a_period_has_its_first_and_last_day(period, first, last):
    found = find(f"what did trnh pay in {period}?", best=4, trnh="company")
    assert f'ge(date, "{first}"), le(date, "{last}")' in found.calls


@pytest.mark.parametrize(
    ("text", "best", "names", "why"),
    [
        ("when did velora come out in 1999?", 0, {"velora": "movie"}, "the year would be lost"),
        ("when did velora and x y come out?", 0, {"velora": "movie", "x_y": "song"}, "a name too many"),
        ("when did that film come out?", 0, {}, "no name at all"),
        ("where did trnh end in may 2023?", 3, {"trnh": "company"}, "a month is no day"),
    ],
)
def test_no_example_is_filled_in_by_halves(text, best, names, why):
    assert find(text, least=0.95, best=best, **names) is None, why


def test_an_example_that_is_not_near_enough_is_none():
    assert find("when did velora come out?", least=1.01, velora="movie") is None


def test_words_of_the_examples_are_no_names_and_numbers_fill_their_own_places():
    found = find("which song is number 7 this week?", best=5, song="movie")
    assert found.calls == "None" and found.group.domain == "music"


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"calls": "get_movie({film})", "questions": ("of {film}?",)}, "expected a place of"),
        (
            {"calls": "get_movie({movie})", "questions": ("who?",)},
            "is in the calls, but not in",
        ),
        ({"calls": "None", "questions": ()}, "at least one question"),
        ({"calls": "None", "questions": ("who?",), "rule": "guess"}, "rule: expected one of"),
    ],
)
def test_a_broken_example_is_refused(group, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        ExampleGroup(domain="movie", **group)
