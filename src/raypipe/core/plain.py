"""Values from lines of JSON, and values as a person writes them."""

from __future__ import annotations

import json
from typing import Any


def json_lines(text: str | bytes) -> list[Any]:
    r"""Returns the values of lines of JSON, without blank lines. A line ends at a line feed and nowhere else.

    Texts are written as they are, so other separators, such as U+2028, may stand inside one. Raises
    ValueError.

    >>> json_lines('["a\u2028b"]\n\n{"c": 1}\n') == [["a\u2028b"], {"c": 1}]
    True
    """
    whole = text.decode() if isinstance(text, bytes) else text
    return [json.loads(line) for line in whole.split("\n") if line.strip()]


def written(value: Any) -> str:
    """A number, a date or true as a person writes it: 5.0 is 5."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
