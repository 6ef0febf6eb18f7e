"""Records as JSON takes them, and values from lines of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(value: Any) -> Any:
    """Dataclasses, mappings, tuples and paths as JSON takes them.

    >>> to_json({"a": (1, None)})
    {'a': [1, None]}
    """
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def json_lines(text: str | bytes) -> list[Any]:
    r"""Returns the values of lines of JSON, without blank lines. A line ends at a line feed and nowhere else.

    Texts are written as they are, so other separators, such as U+2028, may stand inside one. Raises
    ValueError.

    >>> json_lines('["a\u2028b"]\n\n{"c": 1}\n') == [["a\u2028b"], {"c": 1}]
    True
    """
    whole = text.decode() if isinstance(text, bytes) else text
    return [json.loads(line) for line in whole.split("\n") if line.strip()]
