"""Time at which a question was asked, parsed from text, in the time zones Pacific and Eastern.

Both zones change their clocks in the same nights. The difference between them is taken as three hours. This
is wrong only in two nights of a year, for three hours each.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from raypipe.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Moment:
    local: datetime  # time in the asker's zone, stored without a zone
    eastern: datetime  # the same moment in Eastern time (New York), stored without a zone

    @classmethod
    def at_noon(cls, year: int, month: int, day: int) -> Moment:
        there = datetime(year, month, day, 12)
        return cls(there, there + timedelta(hours=3))

    @property
    def day(self) -> date:
        return self.local.date()


_STAMPS: Final = (
    "%m/%d/%Y, %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%m/%d/%Y, %H:%M",
    "%m/%d/%Y",
    "%Y-%m-%d",
)
_AHEAD: Final = {"PT": 0, "PST": 0, "PDT": 0, "ET": 3, "EST": 3, "EDT": 3}  # hours ahead of Pacific time


def moment(text: str) -> Moment:
    """Parses CRAG's "MM/DD/YYYY, HH:MM:SS PT" or an ISO date, each with or without a time.

    Without a zone, Pacific time is assumed; without a time, midnight. Raises DataError if the text has
    another form or zone, or a year outside 1000 to 9000.

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
        if not 1000 <= there.year <= 9000:  # so that earlier and later days exist as dates
            raise DataError(f"{text!r} is no time of asking: expected a year from 1000 to 9000")
        if zone.upper() not in _AHEAD:
            break
        return Moment(there, there + timedelta(hours=3 - _AHEAD[zone.upper()]))
    forms = "MM/DD/YYYY, HH:MM:SS PT, or YYYY-MM-DD HH:MM:SS PT (or ET)"
    raise DataError(f"{text!r} is no time of asking: expected {forms}")
