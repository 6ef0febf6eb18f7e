"""Results: what API functions return, as an Arrow table, a pandas frame or a table in a notebook.

Knows Arrow; pandas only where it is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import html
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from raypipe.core.errors import ConfError
from raypipe.core.plain import to_json
from raypipe.report.report import JSON_FORMAT

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

SHOWN_ROWS, SHOWN_CHARS = 20, 80  # of a result in a notebook: rows, and characters of a cell


@dataclass(frozen=True, slots=True)
class Result:
    """Something with rows. What a subclass does not say: its JSON has its fields, and its rows are the
    records of one of them."""

    SCHEMA = ""
    """Columns of the table, each name or name:type as Arrow calls it (string); "": as the rows have them."""
    ROWS = ""
    """The field whose records are the rows, or a path to it with dots; "": one row, the JSON."""
    JSON = ""
    """The field whose record is the JSON; "": the result itself."""
    TITLE = ""
    """The title, a format of the result and of the number of its rows; "": the name of its class."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """The rows of the table."""
        return to_json(attrgetter(self.ROWS)(self)) if self.ROWS else [self.to_json()]

    def to_json(self) -> dict[str, Any]:
        """What the command prints with --json."""
        whole = getattr(self, self.JSON) if self.JSON else self
        return as_json(**{f.name: getattr(whole, f.name) for f in fields(whole)})

    @property
    def title(self) -> str:
        """The line above the table in a notebook."""
        rows = len(list(self.rows())) if "{1}" in self.TITLE else 0
        return self.TITLE.format(self, rows) or type(self).__name__

    def columns(self) -> dict[str, str]:
        """Column -> Arrow type, by its alias."""
        return {n: kind or "string" for n, _, kind in (c.partition(":") for c in self.SCHEMA.split())}

    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        import pyarrow as pa

        if not self.SCHEMA:
            return pa.Table.from_pylist([dict(r) for r in self.rows()])
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.columns().items()])
        return pa.Table.from_pylist([{name: r[name] for name in schema.names} for r in self.rows()], schema)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame. Raises ConfError where pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise ConfError("to_pandas: pandas is not installed: pip install pandas, or use .table()")
        return self.table().to_pandas()

    def _repr_html_(self) -> str:
        """The first rows as an HTML table. Texts are escaped: they come from data."""
        table = self.table()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
        lines = (
            "".join(f"<td>{html.escape(_cell(row[name]))}</td>" for name in table.column_names)
            for row in islice(table.to_pylist(), SHOWN_ROWS)
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        more = table.num_rows - SHOWN_ROWS
        rest = f"<p>{more} more rows: .table() has all</p>" if more > 0 else ""
        return f"<p><b>{html.escape(self.title)}</b></p><table><tr>{head}</tr>{body}</table>{rest}"


def as_json(**values: Any) -> dict[str, Any]:
    """A JSON object that says its format."""
    return {"format": JSON_FORMAT, **to_json(values)}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "\u2026"


def outside_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Calls it in a thread of its own where an event loop runs, as in a notebook: it starts its own loop."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function(*args, **kwargs)
        with ThreadPoolExecutor(1) as one:
            return one.submit(function, *args, **kwargs).result()

    return call
