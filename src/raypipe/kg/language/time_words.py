"""Time words relative to the question's time: "last friday", "2024-02", "most recent", "two weeks ago".

Knows calendars. Does not know prices or games: trading days are handed in. Two clocks: calendar words (today,
last week) are the asker's own days, Pacific in CRAG; markets live three hours ahead, on Eastern time, which
may be the next day, month or year already. Pacific and Eastern change their clocks in the same nights, so the
difference is three hours all year but for three hours of two nights.

Readings (db3's, where it had one): "this" and "recent" before a weekday is the latest such day up to today;
"last" before a weekday is that day of the week before, weeks counted from Monday; "last week" of a team's
games counts weeks from Sunday (`week_starts`); a trading-day word is the latest session strictly before
today.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, Literal, TypeAlias

from raypipe.core.errors import DataError

Kind: TypeAlias = Literal["days", "latest", "earliest", "last", "next"]
DAY: Final = timedelta(days=1)
MONDAY, SUNDAY = 0, 6


@dataclass(frozen=True, slots=True)
class Moment:
    local: datetime  # on the asker's clock, without a zone
    eastern: datetime  # the same moment on New York's clock, without a zone

    @classmethod
    def at_noon(cls, year: int, month: int, day: int) -> Moment:
        there = datetime(year, month, day, 12)
        return cls(there, there + timedelta(hours=3))

    @property
    def day(self) -> date:
        return self.local.date()


@dataclass(frozen=True, slots=True)
class When:
    """What a word means: some days, or a moment that only the data can tell."""

    kind: Kind  # latest: up to the minute; earliest: the first there is; last, next: event before, after now
    first: date  # of days, both included; for the other kinds the asker's day
    last: date


_STAMPS: Final = (
    "%m/%d/%Y, %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M",
    "%m/%d/%Y, %H:%M", "%m/%d/%Y", "%Y-%m-%d",
)  # fmt: skip
_AHEAD: Final = {"PT": 0, "PST": 0, "PDT": 0, "ET": 3, "EST": 3, "EDT": 3}  # hours, of Pacific


def moment(text: str) -> Moment:
    """The moment in CRAG's "MM/DD/YYYY, HH:MM:SS PT", or an ISO date, also with a time. No zone: Pacific.

    >>> moment("03/05/2024, 23:18:31 PT").eastern.isoformat(" ")
    '2024-03-06 02:18:31'
    """
    stamp, _, zone = text.strip().rpartition(" ")
    if not stamp or not zone.isalpha():
        stamp, zone = text.strip(), "PT"
    for form in _STAMPS:
        try:
            there = datetime.strptime(stamp, form)
        except ValueError:
            continue
        if not 1000 <= there.year <= 9000:  # so that there are days before and after it
            raise DataError(f"{text!r} is no time of asking: expected a year from 1000 to 9000")
        if zone.upper() not in _AHEAD:
            break
        return Moment(there, there + timedelta(hours=3 - _AHEAD[zone.upper()]))
    raise DataError(
        f"{text!r} is no time of asking: expected MM/DD/YYYY, HH:MM:SS PT, or YYYY-MM-DD HH:MM:SS PT (or ET)"
    )


def when(
    words: str, now: Moment, sessions: Sequence[date] | None = None, week_starts: int = MONDAY
) -> When | None:
    """What the words mean at that moment; None for words that are no time.

    `sessions` are the trading days that are known, ascending; without them every Monday to Friday is one.
    """
    text = " ".join(words.lower().replace("_", " ").replace(",", " ").split()).removeprefix("the ")
    for reader in _READERS:
        try:
            found = reader(text, now, sessions, week_starts)
        except (ValueError, OverflowError):  # a 30th of February, a year 0
            return None
        if found is not None:
            return found
    return None


Reader: TypeAlias = Callable[[str, Moment, "Sequence[date] | None", int], "When | None"]


def days(first: date, last: date | None = None) -> When:
    return When("days", first, first if last is None else last)


def month(year: int, number: int) -> When:
    """A whole month; the number may be 0 or 13 and so on."""
    year, number = year + (number - 1) // 12, (number - 1) % 12 + 1
    return days(date(year, number, 1), date(year, number, calendar.monthrange(year, number)[1]))


def add_months(day: date, months: int) -> date:
    """The same day of another month, or its last: a month after January 31 is the end of February."""
    there = month(day.year, day.month + months)
    return there.first.replace(day=min(day.day, there.last.day))


def session_before(day: date, sessions: Sequence[date] | None) -> date | None:
    """The latest trading day strictly before the day; None if there is none."""
    if sessions is not None:
        return max((s for s in sessions if s < day), default=None)
    there = day - DAY
    while there.weekday() > 4:
        there -= DAY
    return there


_ISO = re.compile(r"(\d{4})(?:[-/](\d{1,2})(?:[-/](\d{1,2}))?)?(?:[ t]00:00(?::00)?(?: [a-z]+)?)?", re.ASCII)
_AMERICAN = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})", re.ASCII)
_DECADE = re.compile(r"(\d{3}0)'?s", re.ASCII)
_QUARTERS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "last": 4}
_QUARTERS |= {"1st": 1, "2nd": 2, "3rd": 3, "4th": 4}
_QUARTER = re.compile(r"(?:q([1-4])(?: of)? (\d{4})|(\d{4})[- ]?q([1-4])|(\w+) quarter of (\d{4}))", re.ASCII)


def _dated(text: str, now: Moment, sessions: object, starts: int) -> When | None:
    if m := _ISO.fullmatch(text):
        year, number, day = (int(g) if g else None for g in m.groups())
        assert year is not None
        if number is None:
            return days(date(year, 1, 1), date(year, 12, 31))
        if not 1 <= number <= 12:
            raise ValueError(number)
        return month(year, number) if day is None else days(date(year, number, day))
    if m := _AMERICAN.fullmatch(text):
        return days(date(int(m[3]), int(m[1]), int(m[2])))
    if m := _DECADE.fullmatch(text):
        return days(date(int(m[1]), 1, 1), date(int(m[1]) + 9, 12, 31))
    if m := _QUARTER.fullmatch(text):
        number = int(m[1] or m[4] or _QUARTERS.get(m[5] or "", 0))
        return _quarter(int(m[2] or m[3] or m[6]), number) if number else None
    return None


def _quarter(year: int, number: int) -> When:
    return days(month(year, 3 * number - 2).first, month(year, 3 * number).last)


_MONTHS = {name.lower(): i for i, name in enumerate(calendar.month_name) if i}
_MONTHS |= {name.lower(): i for i, name in enumerate(calendar.month_abbr) if i} | {"sept": 9}
_NAMED = "|".join(sorted(_MONTHS, key=len, reverse=True))
_LONG = re.compile(rf"({_NAMED})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?: (\d{{4}}))?", re.ASCII)
_BRITISH = re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_NAMED})\.?(?: (\d{{4}}))?", re.ASCII)
_MONTH = re.compile(rf"(?:(last|this|next) )?({_NAMED})\.?(?: (?:of )?(\d{{4}}))?", re.ASCII)


def _written(text: str, now: Moment, sessions: object, starts: int) -> When | None:
    """Dates in words. Without a year: the latest that is not after today."""
    if (m := _LONG.fullmatch(text)) or (b := _BRITISH.fullmatch(text)):
        name, day, year = m.groups() if m else (b[2], b[1], b[3])  # type: ignore[index]
        number = _MONTHS[name]
        if year:
            return days(date(int(year), number, int(day)))
        return days(_latest(number, int(day), now.day))
    if m := _MONTH.fullmatch(text):
        number = _MONTHS[m[2]]
        if m[3]:
            return month(int(m[3]), number)
        if m[1] == "next":
            return month(now.day.year + (number <= now.day.month), number)
        before = number > now.day.month or (m[1] == "last" and number == now.day.month)
        return month(now.day.year - before, number)
    return None


def _latest(number: int, day: int, today: date) -> date:
    for year in range(today.year, today.year - 9, -1):  # eight years may lie between two 29ths of February
        try:
            there = date(year, number, day)
        except ValueError:
            continue
        if there <= today:
            return there
    raise ValueError(f"no day {day} in month {number}")


_NEAR = {"today": 0, "tonight": 0, "yesterday": -1, "tomorrow": 1} | {
    "day before yesterday": -2, "day after tomorrow": 2,
}  # fmt: skip
_SESSION = {"last trading day", "recent trading day", "most recent day", "most recent trading day",
            "previous trading day", "latest trading day", "last session", "last day of trading"}  # fmt: skip
_TOLD: Final[dict[Kind, tuple[str, ...]]] = {
    "latest": ("latest", "most recent", "recent", "now", "right now", "current", "currently",
               "at the moment"),
    "earliest": ("ipo", "at ipo", "earliest", "first day", "first trading day"),
    "last": ("last time", "last game", "last match", "most recent game", "latest game"),
    "next": ("next time", "next game", "next match"),
}  # fmt: skip
"""Moments that only the data can tell."""


def _near(text: str, now: Moment, sessions: Sequence[date] | None, starts: int) -> When | None:
    if text in _NEAR:
        return days(now.day + _NEAR[text] * DAY)
    if text in _SESSION:
        there = session_before(now.day, sessions)
        return None if there is None else days(there)
    kind = next((kind for kind, words in _TOLD.items() if text in words), None)
    return None if kind is None else When(kind, now.day, now.day)


_WEEKDAYS = {name.lower(): i for i, name in enumerate(calendar.day_name)}
_WEEKDAYS |= {name.lower(): i for i, name in enumerate(calendar.day_abbr)}
_WEEKDAYS |= {"tues": 1, "thur": 3, "thurs": 3}
_WEEKDAY = re.compile(rf"(?:(recent|most recent|this|last|past|previous|next) )?({'|'.join(_WEEKDAYS)})")


def _weekday(text: str, now: Moment, sessions: object, starts: int) -> When | None:
    m = _WEEKDAY.fullmatch(text)
    if m is None:
        return None
    wanted, today = _WEEKDAYS[m[2]], now.day
    monday = today - today.weekday() * DAY
    if m[1] in ("last", "previous", "past"):
        return days(monday - 7 * DAY + wanted * DAY)
    if m[1] == "next":
        return days(today + ((wanted - today.weekday() - 1) % 7 + 1) * DAY)
    return days(today - ((today.weekday() - wanted) % 7) * DAY)


_PERIOD = re.compile(r"(this|current|last|previous|past|next) (week|weekend|month|quarter|year|decade)")


def _period(text: str, now: Moment, sessions: object, starts: int) -> When | None:
    m = _PERIOD.fullmatch(text)
    if m is None:
        return None
    step, today = {"this": 0, "current": 0, "next": 1}.get(m[1], -1), now.day
    match m[2]:
        case "week":
            first = today - ((today.weekday() - starts) % 7) * DAY + 7 * step * DAY
            return days(first, first + 6 * DAY)
        case "weekend":  # this one: under way or to come
            saturday = today - today.weekday() * DAY + 5 * DAY + 7 * step * DAY
            return days(saturday, saturday + DAY)
        case "month":
            return month(today.year, today.month + step)
        case "quarter":
            there = today.year * 4 + (today.month - 1) // 3 + step
            return _quarter(there // 4, there % 4 + 1)
        case "year":
            return days(date(today.year + step, 1, 1), date(today.year + step, 12, 31))
        case _:
            first_year = today.year // 10 * 10 + 10 * step
            return days(date(first_year, 1, 1), date(first_year + 9, 12, 31))


_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_COUNTS = {word: i for i, word in enumerate(_NUMBERS.split())}
_COUNTS |= {"a": 1, "an": 1, "couple of": 2, "a couple of": 2}
_COUNT = "|".join([r"\d{1,4}", *sorted(_COUNTS, key=len, reverse=True)])
_AGO = re.compile(rf"({_COUNT}) (day|week|month|year)s? ago", re.ASCII)
_PAST = re.compile(rf"(?:last|past|previous) ({_COUNT}) (day|week|month|year)s", re.ASCII)


def _counted(text: str, now: Moment, sessions: object, starts: int) -> When | None:
    ago = _AGO.fullmatch(text)
    if (m := ago or _PAST.fullmatch(text)) is None:
        return None
    n = int(m[1]) if m[1].isdigit() else _COUNTS[m[1]]
    match m[2]:
        case "day" | "week":
            first = now.day - (7 * n if m[2] == "week" else n) * DAY
        case _:
            first = add_months(now.day, -n * (12 if m[2] == "year" else 1))
    return days(first) if ago else days(first, now.day)


_READERS: Final[tuple[Reader, ...]] = (_dated, _near, _weekday, _period, _counted, _written)
