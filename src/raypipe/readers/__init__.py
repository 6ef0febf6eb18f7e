"""Readers that stream the files of a dataset as records: `for row in open(paths, "crag", counts)`.

The docstring of each format's module shows literal records. JSON files and relevance judgements are held in
memory whole; all other rows are streamed.
"""

from raypipe.readers.formats import (
    Format,
    check,
    files_of,
    format_name,
    looks_like,
    open,
    reader_id,
    referenced,
    size,
)
from raypipe.readers.own_rows import RowFormat
from raypipe.readers.rows import LIMITS, BadLine, ReadCounts, ReaderLimits, Row, require_rows, unseen

__all__ = [
    "LIMITS",
    "BadLine",
    "Format",
    "ReadCounts",
    "ReaderLimits",
    "Row",
    "RowFormat",
    "check",
    "files_of",
    "format_name",
    "looks_like",
    "open",
    "reader_id",
    "referenced",
    "require_rows",
    "size",
    "unseen",
]
