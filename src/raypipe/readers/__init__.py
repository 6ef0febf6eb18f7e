"""Files of a dataset to records, streamed: `for row in open(paths, "crag", counts)`.

Each format's module opens with one literal record. Memory holds the current line.
"""

from raypipe.readers.formats import FORMATS, Format, files_of, open, reader_id, size
from raypipe.readers.rows import LIMITS, ReadCounts, ReaderLimits, Row, unseen

__all__ = [
    "FORMATS",
    "LIMITS",
    "Format",
    "ReadCounts",
    "ReaderLimits",
    "Row",
    "files_of",
    "open",
    "reader_id",
    "size",
    "unseen",
]
