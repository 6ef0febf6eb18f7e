"""The format of invented data: CRAG's lines, in files next to a graph that is not for reading."""

from raypipe.readers import crag
from raypipe.readers.formats import LineFormat

FORMAT = LineFormat("questions", crag.rows, "crag")
