"""Results: what API functions return, as an Arrow table, a pandas frame or a table in a notebook.

Knows Arrow; pandas only where it is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import html
import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

SHOWN_ROWS, SHOWN_CHARS = 20, 80  # of a result in a notebook: rows, and characters of a cell


class Result(ABC):
    """Something with rows."""

    __slots__ = ()

    SCHEMA: ClassVar[Mapping[str, str]] = {}
    """Column -> Arrow type, by its alias, for rows that may be none; empty: inferred from the rows."""

    @abstractmethod
    def rows(self) -> Iterable[Mapping[str, Any]]:
        """The rows of the table."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What the command prints with --json."""

    @property
    def title(self) -> str:
        """The line above the table in a notebook."""
        return type(self).__name__

    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        import pyarrow as pa

        if not self.SCHEMA:
            return pa.Table.from_pylist([dict(r) for r in self.rows()])
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.SCHEMA.items()])
        return pa.Table.from_pylist([{name: r[name] for name in self.SCHEMA} for r in self.rows()], schema)

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


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else _plain(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "\u2026"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


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
