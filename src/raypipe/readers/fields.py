"""Fields of documents as files give them: front matter, columns of rows, names of folders.

    ---
    team: hr
    date: 2025-03-01
    ---

A field is a text, a number, true or false, or a day, and is kept as text; lists and objects are none. Its
name is in small letters, with `_` for what is no letter or digit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from raypipe.core.textfile import written
from raypipe.readers.page_dates import order_of
from raypipe.readers.rows import UnusableLine
from raypipe.text.filters import field_name

MOST: Final = 100  # fields of a document
MAX_CHARS: Final = 1_000  # of a value
FRONT_CHARS: Final = 20_000  # of front matter
PLACE: Final = frozenset({"url", "host", "folder"})
"""Fields that say where a document stands: no document can say otherwise."""
_FRONT = re.compile(r"\A---[ \t]*+\n(.*?)^(?:---|\.\.\.)[ \t]*+(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ][0-9]{2}:[0-9]{2}\S*")


def fields_of(values: Mapping[Any, Any]) -> dict[str, str]:
    """The fields among some values, by name. Of two with one name the first counts. A `date` that is none is
    left out, as are values that are longer than MAX_CHARS.

    >>> fields_of({"Team": "hr", "Year": 2024, "pinned": True, "tags": ["a"], "date": "5 March 2025"})
    {'date': '2025-03-05', 'pinned': 'true', 'team': 'hr', 'year': '2024'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        key, text = field_name(str(name)[:MAX_CHARS])[:64], _text(value)
        if key == "date" and text:
            text = _day(text)
        if key and key not in PLACE and text and len(text) <= MAX_CHARS and len(found) < MOST:
            found.setdefault(key, text)
    return dict(sorted(found.items()))


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


def front_matter(text: str) -> tuple[dict[str, str], str]:
    """The fields of the YAML between `---` at the begin of a text, and the text behind it; none and the whole
    text where there is no mapping.

    >>> front_matter("---\\nteam: hr\\n---\\n# Leave\\n")
    ({'team': 'hr'}, '# Leave\\n')
    """
    found = _FRONT.match(text, 0, FRONT_CHARS)
    try:  # a number may have more digits than Python writes
        tree = yaml.load(found[1], Loader=yaml.CSafeLoader) if found else None
        return (fields_of(tree), text[found.end() :]) if found and isinstance(tree, dict) else ({}, text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text


def of_path(name: str) -> dict[str, str]:
    """The fields of folders that are named FIELD=VALUE.

    >>> of_path("team=hr/year=2024/plan.pdf")
    {'team': 'hr', 'year': '2024'}
    """
    return fields_of(dict(part.split("=", 1) for part in PurePosixPath(name).parts[:-1] if "=" in part))
