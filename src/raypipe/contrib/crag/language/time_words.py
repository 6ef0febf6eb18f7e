"""Time words relative to the question's time: "last friday", "2024-02", "most recent", "two weeks ago".

Meanings depend on calendars only; callers pass trading days. There are two clocks. Calendar words (today,
last week) mean the asker's own days, which are Pacific in CRAG. Markets are three hours ahead, on Eastern
time, where the next day, month or year may already have begun. Both zones change their clocks in the same
nights: the difference is always three hours, except for three hours of two nights in a year.

Readings, which are db3's if it had one:

- "this" and "recent" before a weekday: the latest such day up to today;
- "last" before a weekday: that day of the week before, with weeks from Monday;
- "last week" of a team's games: weeks from Sunday (`week_starts`);
- a trading-day word: the latest session strictly before today.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Literal, TypeAlias

from raypipe.text.moments import Moment

Kind: TypeAlias = Literal["days", "latest", "earliest", "last", "next"]
DAY: Final = timedelta(days=1)
MONDAY, SUNDAY = 0, 6


@dataclass(frozen=True, slots=True)
class When:
    """Meaning of time words: a range of days, or a moment that only the data can tell."""

    kind: Kind  # latest: up to the minute; earliest: first record; last, next: event before, after now
    first: date  # first and last day, both included; for other kinds, the asker's day
    last: date


def when(
    words: str, now: Moment, sessions: Sequence[date] | None = None, week_starts: int = MONDAY
) -> When | None:
    """Returns the meaning of time words at a moment; None if the words are no time.

    `sessions` are the known trading days, ascending; without them all days from Monday to Friday are.
    """
    text = " ".join(words.lower().replace("_", " ").replace(",", " ").split()).removeprefix("the ")
    if text in _NEAR:
        return days(now.day + _NEAR[text] * DAY)
    if _SESSION.fullmatch(text):
        session = session_before(now.day, sessions)
        return None if session is None else days(session)
    for kind, pattern in _TOLD.items():
        if pattern.fullmatch(text):
            return When(kind, now.day, now.day)
    for form, meant in _FORMS:
        if m := form.fullmatch(text):
            try:
                return meant(m, now.day, week_starts)
            except (ValueError, OverflowError):  # a 30th of February, a year 0
                return None
    return None


def days(first: date, last: date | None = None) -> When:
    return When("days", first, first if last is None else last)


def month(year: int, number: int) -> When:
    """Returns a whole month. `number` may lie outside 1..12: 13 is January of the next year."""
    year, number = year + (number - 1) // 12, (number - 1) % 12 + 1
    return days(date(year, number, 1), date(year, number, calendar.monthrange(year, number)[1]))


def add_months(day: date, months: int) -> date:
    """Shifts a day by months, at most to the month's end: a month after January 31 is February's last day."""
    target = month(day.year, day.month + months)
    return target.first.replace(day=min(day.day, target.last.day))


def session_before(day: date, sessions: Sequence[date] | None) -> date | None:
    """Returns the latest trading day strictly before `day`; None if there is none."""
    if sessions is not None:
        return max((s for s in sessions if s < day), default=None)
    session = day - DAY
    while session.weekday() > 4:
        session -= DAY
    return session


_NEAR = {"today": 0, "tonight": 0, "yesterday": -1, "tomorrow": 1}
_NEAR |= {"day before yesterday": -2, "day after tomorrow": 2}
_SESSION = re.compile(
    r"(?:last|(?:most )?recent|previous|latest) trading day|most recent day|last session|last day of trading"
)
_TOLD: Final[dict[Kind, re.Pattern[str]]] = {
    "latest": re.compile(r"latest|(?:most )?recent|(?:right )?now|current(?:ly)?|at the moment"),
    "earliest": re.compile(r"(?:at )?ipo|earliest|first (?:trading )?day"),
    "last": re.compile(r"last (?:time|game|match)|(?:most recent|latest) game"),
    "next": re.compile(r"next (?:time|game|match)"),
}
"""Kind of moment that only the data can tell -> its words."""


def _iso(m: re.Match[str], today: date, starts: int) -> When:
    year, number, day = (int(g or 0) for g in m.groups())
    if m[2] is None:
        return _years(year)
    if not 1 <= number <= 12:
        raise ValueError(number)
    return month(year, number) if m[3] is None else days(date(year, number, day))


def _years(first: int, count: int = 1) -> When:
    return days(date(first, 1, 1), date(first + count - 1, 12, 31))


_QUARTERS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "last": 4}
_QUARTERS |= {"1st": 1, "2nd": 2, "3rd": 3, "4th": 4}


def _of_year(m: re.Match[str], today: date, starts: int) -> When | None:
    number = int(m[1] or m[4] or _QUARTERS.get(m[5] or "", 0))
    return _quarter(int(m[2] or m[3] or m[6]), number) if number else None


def _quarter(year: int, number: int) -> When:
    return days(month(year, 3 * number - 2).first, month(year, 3 * number).last)


_MONTHS = {name.lower(): i for i, name in enumerate(calendar.month_name) if i}
_MONTHS |= {name.lower(): i for i, name in enumerate(calendar.month_abbr) if i} | {"sept": 9}
_NAMED = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"


def _written(m: re.Match[str], today: date, starts: int) -> When:
    """Reads a day in words. Without a year it is the latest such day up to today."""
    number, day = _MONTHS[m["month"]], int(m["day"].rstrip("dhnrst"))
    if m["year"]:
        return days(date(int(m["year"]), number, day))
    for year in range(today.year, today.year - 9, -1):  # eight years may lie between two 29ths of February
        try:
            latest = date(year, number, day)
        except ValueError:
            continue
        if latest <= today:
            return days(latest)
    raise ValueError(f"no day {day} in month {number}")


def _month(m: re.Match[str], today: date, starts: int) -> When:
    """Reads a month. Without a year it is the latest that has begun; "last" and "next" exclude this month."""
    number = _MONTHS[m[2]]
    if m[3]:
        return month(int(m[3]), number)
    if m[1] == "next":
        return month(today.year + (number <= today.month), number)
    before = number > today.month or (m[1] == "last" and number == today.month)
    return month(today.year - before, number)


_WEEKDAYS = {name.lower(): i for i, name in enumerate(calendar.day_name)}
_WEEKDAYS |= {name.lower(): i for i, name in enumerate(calendar.day_abbr)}
_WEEKDAYS |= {"tues": 1, "thur": 3, "thurs": 3}


def _weekday(m: re.Match[str], today: date, starts: int) -> When:
    away = _WEEKDAYS[m[2]] - today.weekday()
    if m[1] in ("last", "previous", "past"):
        return days(today + (away - 7) * DAY)
    return days(today + ((away - 1) % 7 + 1 if m[1] == "next" else -(-away % 7)) * DAY)


def _period(m: re.Match[str], today: date, starts: int) -> When:
    step = {"this": 0, "current": 0, "next": 1}.get(m[1], -1)
    match m[2]:
        case "week":
            first = today - ((today.weekday() - starts) % 7) * DAY + 7 * step * DAY
            return days(first, first + 6 * DAY)
        case "weekend":  # "this weekend" has begun or is to come
            saturday = today + (5 - today.weekday() + 7 * step) * DAY
            return days(saturday, saturday + DAY)
        case "month":
            return month(today.year, today.month + step)
        case "quarter":
            quarter = today.year * 4 + (today.month - 1) // 3 + step
            return _quarter(quarter // 4, quarter % 4 + 1)
        case "year":
            return _years(today.year + step)
        case _:
            return _years(today.year // 10 * 10 + 10 * step, 10)


_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_COUNTS = {word: i for i, word in enumerate(_NUMBERS.split())}
_COUNTS |= {"a": 1, "an": 1, "couple of": 2, "a couple of": 2}
_COUNT = "|".join([r"\d{1,4}", *sorted(_COUNTS, key=len, reverse=True)])


def _ago(m: re.Match[str], today: date, starts: int) -> When:
    n = int(m[1]) if m[1].isdigit() else _COUNTS[m[1]]
    if m[2] in ("day", "week"):
        return days(today - (7 * n if m[2] == "week" else n) * DAY)
    return days(add_months(today, -n * (12 if m[2] == "year" else 1)))


_FORMS: Final = [
    (re.compile(rf"\A(?:{form})", re.ASCII), meant)
    for form, meant in (
        (r"(\d{4})(?:[-/](\d{1,2})(?:[-/](\d{1,2}))?)?(?:[ t]00:00(?::00)?(?: [a-z]+)?)?", _iso),
        (r"(\d{1,2})/(\d{1,2})/(\d{4})", lambda m, *_: days(date(int(m[3]), int(m[1]), int(m[2])))),
        (r"(?:q([1-4])(?: of)? (\d{4})|(\d{4})[- ]?q([1-4])|(\w+) quarter of (\d{4}))", _of_year),
        (rf"(?:(recent|most recent|this|last|past|previous|next) )?({'|'.join(_WEEKDAYS)})", _weekday),
        (r"(this|current|last|previous|past|next) (week|weekend|month|quarter|year|decade)", _period),
        (rf"({_COUNT}) (day|week|month|year)s? ago", _ago),
        (
            rf"(?:last|past|previous) ({_COUNT}) (day|week|month|year)s",
            lambda m, today, starts: days(_ago(m, today, starts).first, today),
        ),
        (rf"(?P<month>{_NAMED})\.? (?P<day>{_DAY})(?: (?P<year>\d{{4}}))?", _written),
        (rf"(?P<day>{_DAY})(?: of)? (?P<month>{_NAMED})\.?(?: (?P<year>\d{{4}}))?", _written),
        (rf"(?:(last|this|next) )?({_NAMED})\.?(?: (?:of )?(\d{{4}}))?", _month),
        (r"(\d{3}0)'?s", lambda m, *_: _years(int(m[1]), 10)),
    )
]
"""Pattern -> function that gives its meaning for a day of asking and the first day of the week. It raises
ValueError if a day does not exist."""
