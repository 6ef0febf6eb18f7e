"""Fields of documents, from front matter, columns of rows and names of folders.

    ---
    team: hr
    date: 2025-03-01
    ---

A field is a text, a number, a boolean or a day, and is stored as text. Objects are skipped. Lists are
skipped, too, except a list of one value in front matter (the YAML above). A field's name is in lower case;
`_` replaces characters that are no letters or digits.

Dates are read in many forms: ISO 8601 and its variants in databases, the dates of HTTP, mail and
`Date.toString()`, CRAG's "MM/DD/YYYY, HH:MM:SS PT", seconds, milli-, micro- and nanoseconds since 1970,
`/Date(...)/` and MongoDB's `$date`. An ambiguous date, such as 05/03/2024, is refused, because a wrong
reading could let an older page replace a newer one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from email.utils import parsedate_to_datetime
from pathlib import PurePosixPath
from typing import Any, Final

import yaml
from dateutil import parser

from raypipe.core.textfile import written
from raypipe.readers.rows import UnusableLine
from raypipe.text.filters import field_name

MOST: Final = 100  # most fields of a document
MAX_CHARS: Final = 1_000  # most characters of a value; a longer value is left out
FRONT_CHARS: Final = 20_000  # most characters of front matter
PLACE: Final = frozenset({"url", "host", "folder"})
"""Fields for a document's address or folder; its own fields with these names are ignored."""
_FRONT = re.compile(r"\A---[ \t]*+\n(.*?)^(?:---|\.\.\.)[ \t]*+(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(  # a line `name: ...`; neither an address nor a time
    r"^[^\w\n]*+[^\W\d][\w -]*+[\"']?[ \t]*+:(?!//|(?<=\d:)\d)", re.MULTILINE
)
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ][0-9]{2}:[0-9]{2}\S*")


def fields_of(values: Mapping[Any, Any]) -> dict[str, str]:
    """Returns the values that can be fields, by field name. If a name repeats, its first value wins.

    Left out are a `date` that cannot be read, empty values, values longer than MAX_CHARS, the names in PLACE
    (url, host, folder), and all fields after the first MOST.

    >>> fields_of({"Team": "hr", "Year": 2024, "pinned": True, "tags": ["a"], "date": "5 March 2025"})
    {'date': '2025-03-05', 'pinned': 'true', 'team': 'hr', 'year': '2024'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        key, text = _key(name), _text(value)
        if key == "date" and text:
            text = _day(text)
        if key and key not in PLACE and text and len(text) <= MAX_CHARS and len(found) < MOST:
            found.setdefault(key, text)
    return dict(sorted(found.items()))


def _key(name: Any) -> str:
    return field_name(str(name)[:MAX_CHARS])[:64]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, datetime | date):
        return value.isoformat()[:10]
    if isinstance(value, Decimal):
        value = format(value, "f")
    if not isinstance(value, str | int | float):
        return ""
    text = "".join(c if c.isprintable() else " " for c in written(value)).strip()
    return time[1] if (time := _TIME.fullmatch(text)) else text


def _day(text: str) -> str:
    with suppress(UnusableLine):
        moment = int(order_of(text, "date"))  # microseconds since the year 1
        return date.fromordinal(1 + moment // 86_400_000_000).isoformat()
    return ""


def front_matter(text: str) -> tuple[dict[str, str], tuple[str, ...], str]:
    """Splits a text into the fields of its front matter, skipped names, and the rest of the text.

    Front matter is text between a first line `---` and a later `---` or `...`: a YAML mapping, or text with a
    line `name: ...`. Any other text is returned whole, without fields. A list of one value counts as the
    value. Names are skipped if their values cannot be fields. Raises UnusableLine if front matter is no
    mapping, or is not closed and line 2 is `name: ...`, since a text must not be searched without its fields.

    >>> front_matter("---\\nteam: [hr]\\ntags: [a, b]\\n---\\n# Leave\\n")
    ({'team': 'hr'}, ('tags',), '# Leave\\n')
    """
    line, why = 1, f"found no line --- that closes it in the first {FRONT_CHARS:,} characters"
    if found := _FRONT.match(text, 0, FRONT_CHARS):
        try:
            tree = yaml.load(found[1], Loader=yaml.CSafeLoader)
            if isinstance(tree, dict):
                values = {n: v[0] if isinstance(v, list) and len(v) == 1 else v for n, v in tree.items()}
                fields = fields_of(values)
                skipped = [str(n) for n, v in values.items() if v and _key(n) not in fields]
                return fields, tuple(skipped), text[found.end() :]
            why = f"found a {type(tree).__name__}"
        except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: a number of too many digits
            line = mark.line + 2 if (mark := getattr(e, "problem_mark", None)) else 1
            why = f"found {found[0].splitlines()[line - 1][:80]!r}: {getattr(e, 'problem', None) or e}"[:300]
    first, _, rest = text[:FRONT_CHARS].partition("\n")
    if first.rstrip(" \t") != "---" or not (_NAMED.search(found[1]) if found else _NAMED.match(rest)):
        return {}, (), text
    mend = "Put a value with `: ` or `#` into quotes; if the first line is a rule, write it as ***"
    expected = "expected front matter, a YAML mapping between two lines ---"
    raise UnusableLine("front_matter", f"line {line}: {expected}, {why}. {mend}")


def of_path(name: str) -> dict[str, str]:
    """Reads fields from the folders of a path that are named FIELD=VALUE.

    >>> of_path("team=hr/year=2024/plan.pdf")
    {'team': 'hr', 'year': '2024'}
    """
    return fields_of(dict(part.split("=", 1) for part in PurePosixPath(name).parts[:-1] if "=" in part))


_ZONES: Final[Mapping[int, str]] = {
    0: "UT UTC GMT Z WET",
    1: "WEST CET",
    2: "CEST EET",
    3: "EEST MSK",
    9: "JST",
    -4: "EDT",
    -5: "ET EST CDT",
    -6: "CST MDT",
    -7: "MST PDT",
    -8: "PT PST",
}
_HOURS: Final[Mapping[str, int]] = {z: hours for hours, zones in _ZONES.items() for z in zones.split()}
"""Time zone -> hours ahead of UTC. PT and ET ignore summer time, an error of at most an hour."""
_SINCE_1970 = re.compile(
    r"(?:/Date\()?(-?[0-9]{9,11}|[0-9]{13}|[0-9]{16}|[0-9]{19})(?:\.[0-9]+)?(?:[+-][0-9]{4})?(?:\)/)?"
)
_HTTP = re.compile(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|[+-]\d{4})", re.ASCII)
_MONTH_FIRST = re.compile(  # dates with the year first, and US dates: with a comma, or with AM or PM
    r"\A(?:\d{4}|\d{1,2}/\d{1,2}/\d{4}(?:,| .*[AP]\.?M\b))", re.I
)
_DAY_FIRST = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
_PLAIN_DATE = (  # (pattern, replacement), applied before a date is parsed
    (re.compile(r"(?<!\s)\s*+[(\[][^()\[\]]*+[)\]]$"), ""),  # (Coordinated Universal Time), [Europe/Berlin]
    (re.compile(r"\b(?:GMT|UTC)(?=[+-]\d)"), ""),
    (re.compile(r"([+-]\d\d:?\d\d) [A-Z]{3,4}$"), r"\1"),  # +0000 UTC
    (re.compile(r"^(\d{1,2})/([A-Za-z]{3})/(\d{4}):"), r"\1 \2 \3 "),  # a server's log
    (re.compile(r"^(\d{1,2}-[A-Za-z]{3}-\d{2,4} \d\d)\.(\d\d)\.(\d\d)"), r"\1:\2:\3"),  # Oracle's
    (re.compile("\u2212"), "-"),
)
DATE_CHARS = 80  # most characters of a date
_BEGIN = datetime(1, 1, 1, tzinfo=UTC)


def order_of(when: Any, name: str) -> str:
    """Converts a date to a text that sorts by time; an empty value gives "".

    The text has 20 digits, microseconds since the year 1. A date without a time zone is taken as UTC. Raises
    UnusableLine, with the field `name` in its message, if the value is no date, is ambiguous or lacks a year.

    >>> order_of("Wed, 06 Mar 2024 03:19:02 GMT", "modified") < order_of("2024-03-06 05:00+01:00", "modified")
    True
    """
    while isinstance(when, Mapping) and len(when) == 1 and str(next(iter(when))).startswith("$"):
        when = next(iter(when.values()))
    text = "" if when is None or when != when else str(when).strip()
    if not text:
        return ""
    try:
        moment = _moment(text)
        ahead = moment.replace(tzinfo=moment.tzinfo or UTC) - _BEGIN
    except (ValueError, OverflowError, ArithmeticError, LookupError, TypeError, AttributeError) as e:
        why = f"{name}: expected a date, such as 2024-03-05T23:18:31Z; found {text[:DATE_CHARS]!r}"
        raise UnusableLine("wrong_type", why) from e
    return f"{ahead // timedelta(microseconds=1):020d}"


def _moment(text: str) -> datetime:
    if len(text) > DATE_CHARS:
        raise ValueError(text)
    if number := _SINCE_1970.fullmatch(text):
        digits = number[1]
        scale = 10 ** max(len(digits) - 10, 0) if len(digits) > 11 else 1
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(digits) * 1_000_000 // scale)
    if not text.isdigit() or len(text) == 8:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass  # most forms of dates are not ISO 8601
    if _HTTP.fullmatch(text):
        return parsedate_to_datetime(text)  # 3 us; the general parser takes 140
    for pattern, plain in _PLAIN_DATE:
        text = pattern.sub(plain, text)
    day_first = True if _DAY_FIRST.match(text) else False if _MONTH_FIRST.match(text) else None
    # Parsed with two default years and, if unclear, both orders of day and month. An ambiguous date, or one
    # without a year, gives two results.
    orders = (day_first, day_first) if day_first is not None else (False, True)

    def zone(name: str | None, offset: int | None) -> tzinfo | None:  # KeyError: an unknown name
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
