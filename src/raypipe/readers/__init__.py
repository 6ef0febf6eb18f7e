"""Files of a dataset to records, streamed: `for row in open(paths, "crag", counts)`.

Each format's module opens with one literal record. Memory holds the current line.
"""

from raypipe.readers.formats import FORMATS, Format, files_of, kind_of, open, reader_id, size
from raypipe.readers.rows import LIMITS, BadLine, ReadCounts, ReaderLimits, Row, require_rows, unseen

__all__ = [
    "FORMATS",
    "LIMITS",
    "BadLine",
    "Format",
    "ReadCounts",
    "ReaderLimits",
    "Row",
    "files_of",
    "kind_of",
    "open",
    "reader_id",
    "require_rows",
    "size",
    "unseen",
]
