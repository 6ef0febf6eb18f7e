"""The format `rows`: a user's own questions or documents, whatever their fields are called.

`RowFormat(fields)` stands where the name of another format stands; `fields` are those that the user named.
The fields of each file are found in its first rows, before anything is read. Files of rows are in
`row_files`, the names of fields in `field_map`, and what becomes of a row is in `own_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.readers import field_map, own_rows, row_files
from raypipe.readers.documents import DocumentReader
from raypipe.readers.documents.reader import NamedFiles
from raypipe.readers.field_map import FieldMap
from raypipe.readers.files import Span
from raypipe.readers.lines import JsonLine
from raypipe.readers.row_files import RowFile
from raypipe.readers.rows import LIMITS, BadLine, ReadCounts, ReaderLimits, Row, Seen, require_rows

NAME = "rows"


@dataclass(frozen=True, slots=True)
class RowFormat:
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> fields, as named

    def id(self) -> str:
        named = json.dumps({role: list(names) for role, names in sorted(self.fields.items())})
        return f"{NAME} {named}" if self.fields else NAME


@dataclass(frozen=True, slots=True)
class MappedFile:
    file: RowFile
    fields: FieldMap
    first: Sequence[Mapping[str, Any]]  # rows in which the fields were found

    @property
    def folder(self) -> Path:
        """Returns where the paths of its documents begin."""
        return self.file.path.parent

    def columns(self) -> list[str]:
        return field_map.columns(self.first)


def mapped(paths: Iterable[str | Path], format: RowFormat, limits: ReaderLimits = LIMITS) -> list[MappedFile]:
    """The files that paths name, with the fields of each.

    Raises ConfError for a named field that no file has, and DataError for a file that is damaged from its
    beginning or in which no field has a question or a document.
    """
    files = row_files.find(paths)
    first = {f.name: row_files.first(f, limits) for f in files}
    if not any(first.values()):
        counts = ReadCounts()
        lines = (r for f in files for r in row_files.rows(f, counts, limits))
        bad = [BadLine(r.where, r.fault.reason, r.fault.detail) for r in lines if r.fault is not None]
        require_rows(first, counts, bad[:3])
        raise DataError(f"{', '.join(first)}: none of the first {row_files.PEEKED} rows can be read")
    field_map.missing(format.fields, first)
    return [
        MappedFile(f, field_map.find(f.name, first[f.name], format.fields), first[f.name])
        for f in files
        if first[f.name]
    ]


def open(
    paths: Iterable[str | Path], format: RowFormat, counts: ReadCounts, limits: ReaderLimits, seen: Seen,
    span: Span | None = None,
) -> Iterator[Row]:  # fmt: skip
    files = [replace(m, file=replace(m.file, span=span)) for m in mapped(paths, format, limits)]
    for m in files:
        if not m.fields.asks() and "modified" in m.fields.fields:  # a crawl: read twice
            for fetch in own_rows.fetches(row_files.rows(m.file, ReadCounts(), limits), m.fields):
                seen.newest.note(*fetch)
    with closing(DocumentReader()) as documents:
        for m in files:
            plain = row_files.rows(m.file, counts, limits)
            yield from own_rows.rows(plain, m.fields, NamedFiles(m.folder, documents), counts, seen)


def referenced(paths: Iterable[str | Path], format: RowFormat) -> list[Path]:
    """The files that rows name as documents, each once; none where the first rows name none."""
    found: dict[Path, None] = {}
    for m in mapped(paths, format):
        first = (JsonLine("", 0, dict(value)) for value in m.first)
        if any(True for _ in own_rows.paths_in(first, m.fields, m.folder)):
            plain = row_files.rows(m.file, ReadCounts())
            found |= dict.fromkeys(own_rows.paths_in(plain, m.fields, m.folder))
    return list(found)


def check(paths: Iterable[str | Path], format: RowFormat) -> None:
    """Raises what `mapped` raises, and DataError for CSV with a line of another length than its header."""
    for m in mapped(paths, format):
        row_files.require_regular(m.file)
