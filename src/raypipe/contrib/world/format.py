"""Format of an invented dataset: CRAG's lines in `questions*`. Its reader ignores the graph next to them."""

from raypipe.readers import crag
from raypipe.readers.formats import LineFormat

FORMAT = LineFormat("questions", crag.rows, "crag")
