"""Files of a dataset to records, streamed: `for row in open(paths, "crag", counts)`.

Each format's module opens with one literal record. Nothing is held but the line in hand and a digest per id.
"""

from raypipe.readers.formats import FORMATS, Format, files_of, open, size
from raypipe.readers.rows import LIMITS, Counts, Limits, Row, unseen

__all__ = ["FORMATS", "LIMITS", "Counts", "Format", "Limits", "Row", "files_of", "open", "size", "unseen"]
