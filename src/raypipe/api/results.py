"""Results of API functions: a record that --json prints, and rows as an Arrow table or a pandas frame. Arrow
and pandas are imported only to build these."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic_core import to_jsonable_python

from raypipe.core.errors import ConfError, FieldsRefused
from raypipe.runs.run_parts import JSON_FORMAT

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Base of all results. By default the JSON has all fields, and the table has one row, the result."""

    _rows: ClassVar[str] = ""
    _record: ClassVar[str] = ""

    def __init_subclass__(cls, rows: str = "", record: str = "") -> None:
        """Declares the field that holds a subclass's rows (records or mappings), by its name or a dotted
        path. `record` is the field that --json prints; "" means the whole result."""
        # A dataclass with slots is created twice, the second time without these arguments.
        cls._rows, cls._record = rows or cls._rows, record or cls._record

    def rows(self) -> Sequence[Any]:
        """Returns the rows of the table: records of the annotated class, or mappings."""
        found: Sequence[Any] = attrgetter(self._rows)(self) if self._rows else (self,)
        return found

    def record(self) -> Any:
        """Returns the record that --json prints, before the number of its format is added."""
        return getattr(self, self._record) if self._record else self

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object that --json prints."""
        return {"format": JSON_FORMAT, **to_jsonable_python(self.record())}

    def table(self) -> pa.Table:
        """Returns the rows as an Arrow table. A nested field of a record becomes a column FIELD.FIELD."""
        import pyarrow as pa

        kept = self.rows()
        rows = [row if isinstance(row, Mapping) else to_jsonable_python(row) for row in kept]
        of: Any = get_type_hints(type(self).rows)["return"] if not self._rows else type(self)
        for name in self._rows.split(".") if self._rows else ():
            of = get_type_hints(of)[name]
        of = type(kept[0]) if kept else get_args(of)[0]
        if not is_dataclass(of):
            names = dict.fromkeys(name for row in rows for name in row)
            return pa.table({name: [row.get(name) for row in rows] for name in names})
        kind = _arrow(of)  # type: ignore[arg-type]  # a class is hashable
        made = pa.Table.from_pylist([_cells(row, kind) for row in rows], pa.schema(list(kind)))
        while any(pa.types.is_struct(field.type) for field in made.schema):
            made = made.flatten()
        return made

    def to_pandas(self) -> Any:
        """Returns the rows as a pandas DataFrame. Raises ConfError if pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise ConfError("to_pandas: pandas is not installed: pip install pandas, or use .table()")
        return self.table().to_pandas()

    def __repr__(self) -> str:
        """Describes the result in one line."""
        return f"{type(self).__name__} of {len(self.rows())} rows: .table(), .to_pandas(), .to_dict()"

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the line of `repr` and, if pandas is installed, the table."""
        shown = importlib.util.find_spec("pandas") is not None
        return f"<p>{escape(repr(self))}</p>{self.to_pandas()._repr_html_() if shown else ''}"


def _cells(value: Any, kind: pa.DataType | None) -> Any:
    """Converts a JSON value for the pyarrow type `kind`; a mapping, for example, becomes a list of pairs."""
    import pyarrow as pa

    if value is None or kind is None:
        return value
    if pa.types.is_map(kind):
        return [(key, _cells(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: _cells(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_cells(item, kind.value_type) for item in value]
    return value if pa.types.is_primitive(kind) else str(value)


@functools.cache
def _arrow(hint: Any) -> pa.DataType:
    """Returns the Arrow type of a field; text if there is no closer type."""
    import pyarrow as pa

    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return pa.struct([(name, _arrow(of)) for name, of in get_type_hints(hint).items()])
    if type(None) in args:
        return _arrow(next(a for a in args if a is not type(None)))
    if origin is tuple:
        return pa.list_(_arrow(args[0]))
    if origin is Mapping:
        return pa.map_(pa.string(), _arrow(args[1]))
    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}.get(hint, pa.string())


def outside_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function that starts an event loop, so that it runs in a new thread if a loop already runs,
    as in a notebook. If a server refuses fields of chats, it is called again without them, at most twice."""

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
