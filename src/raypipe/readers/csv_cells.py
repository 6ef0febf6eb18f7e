"""Cells of CSV files, parted by what the first line says: Excel's `sep=;`, else what it has most of."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from raypipe.readers.rows import LIMITS

_NAMED = re.compile(r"\"?sep=(.)\"?\s*", re.IGNORECASE)


def reader(lines: Iterable[str], separators: str, titled: bool = False) -> Any:
    """The `csv.reader` of these lines; it raises csv.Error. A line `sep=` is a blank row of it.

    Of `separators` the one counts that the first line has most of, outside of quotes; of equals the first.
    `titled`: lines without any may stand above it.
    """
    # The library's own limit is 131,072 characters. It is one for the process, so all set the same.
    csv.field_size_limit(LIMITS.line_bytes)
    given, before, named = iter(lines), list[str](), None
    for first in given:
        named = named or _NAMED.fullmatch(first)
        if first.strip() and not _NAMED.fullmatch(first) and (not titled or set(first) & set(separators)):
            break
        before.append("\n" if _NAMED.fullmatch(first) else first)
    else:
        first = ""
    bare = re.sub(r'"[^"]*"', "", first)
    separator = named[1] if named else max(separators, key=lambda c: (bare.count(c), -separators.index(c)))
    return csv.reader(chain(before, [first], given), delimiter=separator, strict=True)
