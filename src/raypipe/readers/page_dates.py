"""The moment at which a page was fetched or changed, read from whatever form its date has.

Forms: ISO 8601 and what databases print of it, the dates of HTTP, mail and `Date.toString()`, CRAG's
"MM/DD/YYYY, HH:MM:SS PT", seconds, milli-, micro- and nanoseconds since 1970, `/Date(...)/` and MongoDB's
`$date`. A date that could be two days, such as 05/03/2024, is refused: an older page must not win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from typing import Any, Final

from dateutil import parser

from raypipe.readers.rows import UnusableLine

_HOURS: Final[Mapping[str, float]] = {
    "UT": 0,
    "UTC": 0,
    "GMT": 0,
    "Z": 0,
    "WET": 0,
    "WEST": 1,
    "CET": 1,
    "CEST": 2,
    "EET": 2,
    "EEST": 3,
    "MSK": 3,
    "JST": 9,
    "ET": -5,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PT": -8,
    "PST": -8,
    "PDT": -7,
}
"""Zone -> hours ahead of UTC. PT and ET are taken without summer time: an hour at most."""
_SINCE_1970 = re.compile(
    r"(?:/Date\()?(-?[0-9]{9,11}|[0-9]{13}|[0-9]{16}|[0-9]{19})(?:\.[0-9]+)?(?:[+-][0-9]{4})?(?:\)/)?"
)
_HTTP = re.compile(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|[+-]\d{4})", re.ASCII)
_MONTH_FIRST = re.compile(  # ISO, and as the United States write it
    r"\A(?:\d{4}|\d{1,2}/\d{1,2}/\d{4}(?:,| .*[AP]\.?M\b))", re.I
)
_DAY_FIRST = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
_PLAIN = (  # what is put in other words before it is read
    (re.compile(r"(?<!\s)\s*+[(\[][^()\[\]]*+[)\]]$"), ""),  # (Coordinated Universal Time), [Europe/Berlin]
    (re.compile(r"\b(?:GMT|UTC)(?=[+-]\d)"), ""),
    (re.compile(r"([+-]\d\d:?\d\d) [A-Z]{3,4}$"), r"\1"),  # +0000 UTC
    (re.compile(r"^(\d{1,2})/([A-Za-z]{3})/(\d{4}):"), r"\1 \2 \3 "),  # of a server's log
    (re.compile(r"^(\d{1,2}-[A-Za-z]{3}-\d{2,4} \d\d)\.(\d\d)\.(\d\d)"), r"\1:\2:\3"),  # Oracle's
    (re.compile("\u2212"), "-"),
)
LONGEST = 80  # characters of a date
_BEGIN = datetime(1, 1, 1, tzinfo=UTC)


def order_of(date: Any, name: str) -> str:
    """A text for each date, whose order is the order of time; "" for none. `name`: of its field.

    A date without a zone is taken as UTC. Raises UnusableLine, which names the field, for what is no date.

    >>> order_of("Wed, 06 Mar 2024 03:19:02 GMT", "modified") < order_of("2024-03-06 05:00+01:00", "modified")
    True
    """
    while isinstance(date, Mapping) and len(date) == 1 and str(next(iter(date))).startswith("$"):
        date = next(iter(date.values()))
    text = "" if date is None or date != date else str(date).strip()
    if not text:
        return ""
    try:
        moment = _moment(text)
        ahead = moment.replace(tzinfo=moment.tzinfo or UTC) - _BEGIN
    except (ValueError, OverflowError, ArithmeticError, LookupError, TypeError, AttributeError) as e:
        why = f"{name}: expected a date, such as 2024-03-05T23:18:31Z; found {text[:LONGEST]!r}"
        raise UnusableLine("wrong_type", why) from e
    return f"{ahead // timedelta(microseconds=1):020d}"


def _moment(text: str) -> datetime:
    if len(text) > LONGEST:
        raise ValueError(text)
    if number := _SINCE_1970.fullmatch(text):
        digits = number[1]
        scale = 10 ** max(len(digits) - 10, 0) if len(digits) > 11 else 1
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(digits) * 1_000_000 // scale)
    if not text.isdigit() or len(text) == 8:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass  # most forms are none of ISO 8601's
    if _HTTP.fullmatch(text):
        return parsedate_to_datetime(text)  # 3 us, the general way 140
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    sure = True if _DAY_FIRST.match(text) else False if _MONTH_FIRST.match(text) else None
    # read twice, so that a year that is lacking, or a day that may be a month, gives two dates
    orders = (sure, sure) if sure is not None else (False, True)

    def zone(
        name: str | None, offset: int | None
    ) -> tzinfo | None:  # KeyError: a name that is none of `_HOURS`
        seconds = offset if offset is not None or name is None else 3600 * _HOURS[name.upper()]
        return None if seconds is None else timezone(timedelta(seconds=seconds))

    one, other = (
        parser.parse(text, default=datetime(year, 1, 1), dayfirst=first, tzinfos=zone)
        for year, first in enumerate(orders, 1)
    )
    if one != other:
        raise ValueError(text)
    moment: datetime = one
    return moment
