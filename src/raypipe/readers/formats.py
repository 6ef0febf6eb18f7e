"""Files of a dataset to rows of records, streamed: `for row in open(paths, "crag", counts)`.

Each format's module opens with one literal record. Memory holds the current line and a digest per id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from raypipe.core.errors import ConfError, DataError
from raypipe.readers import beir, crag, files, lines
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
    "size",
    "unseen",
]

Format: TypeAlias = Literal["crag", "beir", "synth"]
FORMATS: tuple[Format, ...] = get_args(Format)

# The files read from a folder of each format; files named one by one are read under any name, except that
# BEIR's are told apart by name.
_WANTED: dict[Format, tuple[str, ...]] = {
    "crag": ("",),
    "beir": ("corpus", "queries"),
    "synth": ("questions",),  # CRAG's format; the knowledge graph next to it is not for reading
}


def open(
    paths: Iterable[str | Path], format: Format, counts: ReadCounts, limits: ReaderLimits = LIMITS
) -> Iterator[Row]:
    """The rows of these files and folders, in order; `counts` grows while they are taken.

    Raises ConfError for an unknown format and DataError for a file that is missing, or that turns out
    truncated, damaged or mislabelled while it is read. After a DataError keep no row: a checksum comes behind
    its bytes, so rows of a damaged block may have been handed out.
    """
    inputs = _find(paths, format, counts)
    if format != "beir":
        return crag.rows(lines.read(inputs, counts, limits), counts)
    return _beir(inputs, counts, limits)


def size(paths: Iterable[str | Path], format: Format) -> int:
    """Bytes on disk that `open` will read: `counts.bytes_read / size(...)` is the progress."""
    return files.size(_find(paths, format, None))


def files_of(paths: Iterable[str | Path], format: Format) -> list[Path]:
    """The files that `open` will read, every part of a split one, in order."""
    return [part for found in _find(paths, format, None) for part in found.parts]


def _find(paths: Iterable[str | Path], format: Format, counts: ReadCounts | None) -> list[files.Input]:
    if format not in FORMATS:
        raise ConfError(f"{format!r} is no format: expected one of {', '.join(FORMATS)}.")
    found = files.find(paths, lambda name: name.startswith(_WANTED[format]), counts)
    if not found:
        raise ConfError("No path was given: expected files or folders to read.")
    if format == "beir":
        for file in found:
            if not Path(file.name).name.startswith(_WANTED["beir"]):
                raise DataError(f"{file.name}: expected a name that starts with corpus or queries.")
    return found


def _beir(inputs: list[files.Input], counts: ReadCounts, limits: ReaderLimits) -> Iterator[Row]:
    corpora = [i for i in inputs if Path(i.name).name.startswith("corpus")]
    questions = [i for i in inputs if i not in corpora]
    yield from beir.documents(lines.read(corpora, counts, limits), counts)
    yield from beir.queries(lines.read(questions, counts, limits), counts)
