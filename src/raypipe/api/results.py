"""Results: what API functions return, as an Arrow table or a pandas frame.

Knows Arrow; pandas only where it is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from raypipe.core.errors import ConfError, FieldsRefused
from raypipe.core.plain import to_json
from raypipe.runs.report import JSON_FORMAT

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """Something with rows. What a subclass does not say: its JSON has its fields, and its rows are the
    records of one of them."""

    SCHEMA = ""
    """Columns of the table, each NAME=PATH:TYPE: its place in a row (its name), and its type as Arrow
    calls it (string); "": as the rows have them."""
    ROWS = ""
    """The field whose records are the rows, or a path to it with dots; "": one row, the JSON."""
    FLAT = ""
    """The field in whose place its own fields stand in the JSON; "": none."""
    HIDDEN = ""
    """Fields that the JSON has not."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """The rows of the table."""
        found = (at(self, self.ROWS) or ()) if self.ROWS else [self.to_json()]
        columns = [(name, path or name) for name, path, _ in self.columns()]
        return [{n: to_json(at(r, p)) for n, p in columns} if columns else to_json(r) for r in found]

    def to_json(self) -> dict[str, Any]:
        """What the command prints with --json."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.HIDDEN.split()}
        flat = to_json(found.pop(self.FLAT, {}))
        return as_json(**found, **flat)

    def columns(self) -> list[tuple[str, str, str]]:
        """Of each column: its name, its place in a row or "", its Arrow type or ""."""
        return _COLUMN.findall(self.SCHEMA)

    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        import pyarrow as pa

        if not self.SCHEMA:
            return pa.Table.from_pylist([dict(r) for r in self.rows()])
        types = [(name, pa.type_for_alias(kind or "string")) for name, _, kind in self.columns()]
        return pa.Table.from_pylist([{n: r[n] for n, _ in types} for r in self.rows()], pa.schema(types))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame. Raises ConfError where pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise ConfError("to_pandas: pandas is not installed: pip install pandas, or use .table()")
        return self.table().to_pandas()


_COLUMN = re.compile(r"(\w+)(?:=([\w.]+))?(?::(\w+))?")


def at(record: Any, path: str) -> Any:
    """What a path with dots leads to: fields, keys, numbers of items; None, where a part of it is None.

    >>> at({"score": {"p": [0.5, 0.1]}, "seen": None}, "score.p.1"), at({"seen": None}, "seen.p")
    (0.1, None)
    """
    for part in path.split("."):
        if isinstance(record, Mapping):
            record = record[part]
        elif part.isdigit():
            record = record[int(part)]
        elif record is not None:
            record = getattr(record, part)
    return record


def as_json(**values: Any) -> dict[str, Any]:
    """A JSON object that says its format."""
    return {"format": JSON_FORMAT, **to_json(values)}


def outside_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Calls it in a thread of its own where an event loop runs, as in a notebook: it starts its own loop.
    Calls it again, so that recipes are read again, where a server refuses fields of its chats."""

    def adapted(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in ("the recipe's server", "the judge's"):
            with suppress(FieldsRefused):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return adapted(*args, **kwargs)
        with ThreadPoolExecutor(1) as one:
            return one.submit(adapted, *args, **kwargs).result()

    return call
