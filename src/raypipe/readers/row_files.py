"""Reader of files of rows (JSON lines, JSON, CSV, Parquet) as plain values.

`for row in rows(file, counts): row.where, row.value` streams them. A row's value maps field names to Python
values of JSON or Parquet. This module does not interpret the fields.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError
from raypipe.readers import files, lines
from raypipe.readers.documents.text_files import csv_reader
from raypipe.readers.files import Input
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import LIMITS, ReadCounts, ReaderLimits, UnusableLine, blamed, kind

ENDINGS = {  # kind -> endings of its files
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
}
READABLE = "jsonl, json, csv and tsv (with .gz or .bz2 behind it or not) and parquet"
PEEKED = 50  # first rows of a file, from which the meaning of its fields is inferred
BATCH = 16  # rows of a table converted to Python values at a time: a row may hold fifty pages
JSON_BYTES = 256 << 20  # most unpacked bytes of a file that is one JSON value; it is read whole
GROUP_BYTES = 4 << 30  # most uncompressed bytes of a row group of Parquet; a group is read whole


def kind_of(path: Path) -> str | None:
    """Returns the kind that a file's name gives: jsonl, json, csv or parquet; None for other names."""
    name = files.PACKED.sub("", path.name.lower())
    return next((kind for kind, endings in ENDINGS.items() if name.endswith(endings)), None)


def find(paths: Iterable[str | Path]) -> list[Input]:
    """Lists the files of rows under `paths`, without repeats; a folder's files in name order, without
    subfolders. Raises DataError if a path gives no such file."""
    named = files.named_files(paths, lambda path: kind_of(path) is not None, f"files of rows ({READABLE})")
    return [files.whole(path, kind_of(path) or "") for path in named]


def rows(file: Input, counts: ReadCounts, limits: ReaderLimits = LIMITS) -> Iterator[JsonLine]:
    """Yields the rows of a file, in order. An unusable row, such as a ragged CSV line, has a fault. Raises
    DataError if the file is truncated, damaged or mislabelled; then discard its earlier rows."""
    if file.kind == "jsonl":
        return lines.read([file], counts, limits)
    return {"json": _json, "csv": _csv, "parquet": _table_rows}[file.kind](file, counts, limits)


def first(file: Input, limits: ReaderLimits = LIMITS) -> list[Mapping[str, Any]]:
    found = (r.value for r in rows(file, ReadCounts(), limits))
    return [value for value in islice(found, PEEKED) if value is not None]


def _json(file: Input, counts: ReadCounts, limits: ReaderLimits) -> Iterator[JsonLine]:
    """Reads a list of objects, an object with exactly one such list, SQuAD's nested form, or JSON lines."""
    advice = " in one value. Write JSON lines, an object a line, which are read one by one (.jsonl)."
    raw = files.content(file, counts, limits, JSON_BYTES, advice).removeprefix(codecs.BOM_UTF8)
    try:
        found = _objects(file, lines.parse(raw))
    except UnusableLine as e:
        first, _, more = raw.strip().partition(b"\n")
        try:
            lines.decode(first if more else b"", ReadCounts())
        except UnusableLine:
            raise DataError(f"{file.name}: expected JSON: {e.fault.detail}") from e
        # JSON lines in a file named .json
        counts.files, counts.bytes_read = counts.files - 1, counts.bytes_read - file.parts[0].stat().st_size
        yield from lines.read([file], counts, limits)
        return
    for number, value in enumerate(found, 1):
        counts.lines += 1
        yield _line(file, number, value, counts)


def _objects(file: Input, tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        inner = {k: v for k, v in tree.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
        if len(inner) != 1:
            many = f"{len(inner)} lists of objects: {', '.join(inner)}" if inner else "an object without one"
            raise DataError(f"{file.name}: expected a list of objects, one a row; found {many}")
        tree = next(iter(inner.values()))
    if not isinstance(tree, list):
        raise DataError(f"{file.name}: expected a list of objects, one a row; found one value")
    first = tree[0] if tree else None
    if not (isinstance(first, dict) and isinstance(first.get("paragraphs"), list)):
        return tree
    articles = (article for article in tree if isinstance(article, dict))  # of SQuAD's nested form
    return [
        {"title": article.get("title"), "context": paragraph.get("context"), **qa}
        for article in articles
        for paragraph in article.get("paragraphs", ())
        for qa in paragraph.get("qas", ())
    ]


def _line(file: Input, number: int, value: Any, counts: ReadCounts) -> JsonLine:
    try:
        with blamed():
            if isinstance(value, UnusableLine):
                raise value
            if not isinstance(value, dict):
                raise UnusableLine("not_object", f"expected an object, found {kind(value)}")
            cleaned = lines.without_nul(value)
            counts.nul_lines += cleaned != value
    except UnusableLine as e:
        return JsonLine(file.name, number, None, e.fault)
    return JsonLine(file.name, number, cleaned)


def _csv(file: Input, counts: ReadCounts, limits: ReaderLimits) -> Iterator[JsonLine]:
    texts = (f"{text}\n" for _, text in lines.texts(file, counts, limits))
    table = csv_reader(texts, ",\t;")
    delimiter = table.dialect.delimiter
    names = [c.strip() for c in next(filter(None, table), [])]
    twice = lines.repeated(names)
    if twice is not None or not any(names):
        said = f"{twice!r} twice" if any(names) else "none"
        raise DataError(f"{file.name}:1: expected the names of the fields in its first line, found {said}.")
    try:
        for cells in table:
            counts.lines += 1
            if not cells:
                counts.blank_lines += 1
                continue
            if any(cells[len(names) :]):
                expected = f"expected at most {len(names)} cells ({', '.join(names)[:120]})"
                mend = f"Put a cell with a {delimiter!r} or a line break in quotation marks."
                detail = f"{expected}, found {len(cells)} ({cells[0][:60]!r}, ...). {mend}"
                yield _line(file, table.line_num, UnusableLine("ragged_rows", detail), counts)
                continue
            row = zip_longest(names, cells[: len(names)], fillvalue="")  # missing last cells are empty
            yield JsonLine(file.name, table.line_num, dict(row))
    except csv.Error as e:
        where = f"{file.name}:{table.line_num}"
        raise DataError(f"{where}: expected CSV: {e}. Is a quotation mark not closed?") from e


def _table_rows(file: Input, counts: ReadCounts, limits: ReaderLimits) -> Iterator[JsonLine]:
    begins = file.span is None or not file.span.start  # the shard with the file's beginning counts the file
    counts.files += begins
    size = file.parts[0].stat().st_size
    counts.empty_files += begins and size == 0
    number = file.span.first - 1 if file.span else 0
    groups = None if file.span is None else list(range(file.span.start, file.span.stop))
    try:
        with pq.ParquetFile(file.parts[0]) as opened:
            for group in range(opened.metadata.num_row_groups):
                if (held := opened.metadata.row_group(group).total_byte_size) > GROUP_BYTES:
                    expected = f"expected at most {GROUP_BYTES:,}. Write smaller row groups"
                    raise DataError(f"{file.name}: row group {group} has {held:,} bytes; {expected}.")
            for batch in opened.iter_batches(batch_size=BATCH, row_groups=groups):
                for value in _values(batch):
                    number += 1
                    counts.lines += 1
                    yield _line(file, number, value, counts)
    except (pa.ArrowException, OSError) as e:
        found = f"expected Parquet, found a damaged file or another kind: {str(e)[:200].rstrip('.')}"
        raise DataError(f"{file.name}: {found}. Get or write the file again.") from e
    counts.bytes_read += size if begins else 0


def _values(batch: pa.RecordBatch) -> list[Any]:
    """Converts the rows of a batch to Python. An UnusableLine replaces a row that Python cannot hold."""
    try:
        values: list[Any] = batch.to_pylist()
        return values
    except Exception:  # such as a date after the year 9999: convert row by row, 3 times slower, to find it
        for place, column in enumerate(batch.schema):
            if pa.types.is_timestamp(column.type) and column.type.tz is not None:
                try:
                    pa.scalar(0, column.type).as_py()
                except (pa.ArrowException, LookupError, ValueError):  # a time zone unknown to this machine
                    times = batch[place].cast(pa.timestamp(column.type.unit, "UTC"))
                    batch = batch.set_column(place, column.name, times)
        return [_value(batch.slice(row, 1)) for row in range(len(batch))]


def _value(row: pa.RecordBatch) -> Any:
    found = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            with blamed():
                found[name] = column[0].as_py()
        except UnusableLine as e:
            return UnusableLine(e.fault.reason, f"{name}: {e.fault.detail}")
    return found
