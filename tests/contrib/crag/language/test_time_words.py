"""Time words against a calendar: (asked at, words, first day, last day)."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.contrib.crag.language.time_words import SUNDAY, add_months, session_before, when
from raypipe.core.errors import DataError
from raypipe.text.moments import moment

TUESDAY = "03/05/2024, 10:00:00 PT"
LATE = "03/05/2024, 23:18:31 PT"


def span(words: str, asked: str = TUESDAY, **more):
    found = when(words, moment(asked), **more)
    assert found is not None and found.kind == "days", words
    return str(found.first) if found.first == found.last else f"{found.first}..{found.last}"


@pytest.mark.parametrize(
    ("asked", "eastern"),
    [
        (TUESDAY, "2024-03-05 13:00:00"),
        (LATE, "2024-03-06 02:18:31"),
        ("02/28/2023, 21:00:00 PT", "2023-03-01 00:00:00"),
        ("02/28/2024, 22:30:00 PT", "2024-02-29 01:30:00"),
        ("12/31/2023, 23:59:59 PT", "2024-01-01 02:59:59"),
        ("2024-03-05 20:59:59", "2024-03-05 23:59:59"),
        ("2024-03-05 02:00:00 ET", "2024-03-05 02:00:00"),
        ("2024-03-05", "2024-03-05 03:00:00"),
    ],
)
def test_a_time_of_asking_has_its_moment_on_the_markets_clock(asked, eastern):
    assert str(moment(asked).eastern) == eastern


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "13/45/2024, 10:00:00 PT",
        "03/05/2024, 23:18:31 XYZ",
        "03/05/2024 PT PT",
        "12/31/9999, 23:00:00 PT",
        "01/01/0001, 00:00:00 PT",
    ],
)
def test_what_is_no_time_of_asking_is_refused_with_the_form_that_is_expected(text):
    with pytest.raises(DataError, match="expected"):
        moment(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("2024", "2024-01-01..2024-12-31"),
        ("2024-02", "2024-02-01..2024-02-29"),
        ("2023-02", "2023-02-01..2023-02-28"),
        ("2024-02-29", "2024-02-29"),
        ("03/04/2024", "2024-03-04"),
        ("March 4, 2024", "2024-03-04"),
        ("4th of march 2024", "2024-03-04"),
        ("Feb 29", "2024-02-29"),
        ("mar 6", "2023-03-06"),
        ("december", "2023-12-01..2023-12-31"),
        ("march", "2024-03-01..2024-03-31"),
        ("last march", "2023-03-01..2023-03-31"),
        ("next january", "2025-01-01..2025-01-31"),
        ("January 2024", "2024-01-01..2024-01-31"),
        ("1990s", "1990-01-01..1999-12-31"),
        ("q1 2024", "2024-01-01..2024-03-31"),
        ("fourth quarter of 2023", "2023-10-01..2023-12-31"),
        ("today", "2024-03-05"),
        ("Yesterday", "2024-03-04"),
        ("the day before yesterday", "2024-03-03"),
        ("tomorrow", "2024-03-06"),
        ("monday", "2024-03-04"),
        ("this tuesday", "2024-03-05"),
        ("recent wednesday", "2024-02-28"),
        ("this friday", "2024-03-01"),
        ("last friday", "2024-03-01"),
        ("last monday", "2024-02-26"),
        ("last tuesday", "2024-02-27"),
        ("next tuesday", "2024-03-12"),
        ("next wednesday", "2024-03-06"),
        ("this week", "2024-03-04..2024-03-10"),
        ("last week", "2024-02-26..2024-03-03"),
        ("last weekend", "2024-03-02..2024-03-03"),
        ("this month", "2024-03-01..2024-03-31"),
        ("last month", "2024-02-01..2024-02-29"),
        ("next month", "2024-04-01..2024-04-30"),
        ("last quarter", "2023-10-01..2023-12-31"),
        ("this quarter", "2024-01-01..2024-03-31"),
        ("this year", "2024-01-01..2024-12-31"),
        ("last year", "2023-01-01..2023-12-31"),
        ("last decade", "2010-01-01..2019-12-31"),
        ("two weeks ago", "2024-02-20"),
        ("3 days ago", "2024-03-02"),
        ("past 7 days", "2024-02-27..2024-03-05"),
        ("a year ago", "2023-03-05"),
    ],
)
def test_words_asked_on_a_tuesday_in_march_of_a_leap_year(words, expected):
    assert span(words) == expected


@pytest.mark.parametrize(
    ("asked", "words", "expected"),
    [
        (LATE, "today", "2024-03-05"),
        (LATE, "yesterday", "2024-03-04"),
        ("03/01/2024, 08:00:00 PT", "yesterday", "2024-02-29"),
        ("03/01/2023, 08:00:00 PT", "yesterday", "2023-02-28"),
        ("01/01/2024, 00:30:00 PT", "yesterday", "2023-12-31"),
        ("01/01/2024, 00:30:00 PT", "last year", "2023-01-01..2023-12-31"),
        ("01/15/2024, 00:30:00 PT", "last month", "2023-12-01..2023-12-31"),
        ("12/31/2023, 23:30:00 PT", "next month", "2024-01-01..2024-01-31"),
        ("12/31/2023, 23:30:00 PT", "this year", "2023-01-01..2023-12-31"),
        ("02/29/2024, 12:00:00 PT", "1 year ago", "2023-02-28"),
        ("03/31/2024, 12:00:00 PT", "a month ago", "2024-02-29"),
        ("03/10/2024, 12:00:00 PT", "this week", "2024-03-04..2024-03-10"),
        ("03/10/2024, 12:00:00 PT", "this sunday", "2024-03-10"),
        ("03/10/2024, 12:00:00 PT", "last sunday", "2024-03-03"),
        ("03/11/2024, 12:00:00 PT", "last friday", "2024-03-08"),
        ("03/05/2100, 12:00:00 PT", "feb 29", "2096-02-29"),
    ],
)
def test_words_hold_across_midnights_month_ends_and_leap_days(asked, words, expected):
    assert span(words, asked) == expected


def test_weeks_of_games_start_on_sunday():
    assert span("last week", "03/10/2024, 12:00:00 PT", week_starts=SUNDAY) == "2024-03-03..2024-03-09"
    assert span("this week", "03/09/2024, 12:00:00 PT", week_starts=SUNDAY) == "2024-03-03..2024-03-09"


@pytest.mark.parametrize("words", ["last trading day", "recent trading day", "most recent day"])
def test_a_trading_day_word_is_the_latest_session_strictly_before_today(words):
    known = [
        date(2024, 2, 15),
        date(2024, 2, 16),
        date(2024, 2, 20),
        date(2024, 2, 21),
    ]  # the 19th: a holiday
    assert span(words, "02/20/2024, 15:00:00 PT", sessions=known) == "2024-02-16"
    assert span(words, "02/19/2024, 15:00:00 PT") == "2024-02-16", "no list: Monday to Friday"
    assert when(words, moment("02/15/2024, 15:00:00 PT"), sessions=known) is None
    assert session_before(date(2024, 3, 3), None) == date(2024, 3, 1)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("latest", "latest"),
        ("most recent", "latest"),
        ("now", "latest"),
        ("ipo", "earliest"),
        ("last time", "last"),
        ("next game", "next"),
    ],
)
def test_words_that_only_the_data_can_date_are_named(words, kind):
    assert when(words, moment(LATE)).kind == kind


NO_TIMES = (
    "",
    "whenever",
    "2024-13",
    "2024-02-30",
    "0000",
    "feb 30",
    "99/99/2024",
    "q5 2024",
    "9999 years ago",
)


@pytest.mark.parametrize("words", NO_TIMES)
def test_words_that_are_no_time_mean_nothing(words):
    assert when(words, moment(TUESDAY)) is None


@given(st.dates(date(1950, 1, 1), date(2090, 1, 1)), st.integers(-300, 300))
def test_adding_months_keeps_the_day_or_takes_the_last_of_the_month(day, months):
    there = add_months(day, months)
    assert (there.year * 12 + there.month) - (day.year * 12 + day.month) == months
    assert there.day == day.day or (there.day < day.day and add_months(there, 0).day >= 28)


@given(st.text(max_size=40))
@pytest.mark.slow
def test_no_text_raises(text):
    when(text, moment(TUESDAY))
