"""Files of a dataset to rows of records, streamed: `for row in open(paths, "crag", counts)`.

Each format's module opens with one literal record. Memory holds the current line and a digest per id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from raypipe.core import plugins
from raypipe.core.errors import ConfError, DataError
from raypipe.core.plugins import Registry, is_path, registered
from raypipe.readers import beir, captured, crag, files, lines, oag, qasper, row_files, row_format, warc
from raypipe.readers.files import Input, Span
from raypipe.readers.row_format import RowFormat
from raypipe.readers.rows import LIMITS, DuplicateCheck, ReadCounts, ReaderLimits, Row, Seen, settled

Format: TypeAlias = str | RowFormat
"""A name of FORMATS, or the path of a reader of your own: `mypkg.readers:rows`, a function of one file that
yields a `Row` for each of its questions and documents. `RowFormat` is rows with named fields."""
Paths: TypeAlias = Iterable[str | Path]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A format of JSON lines, each of which is read alone."""

    begin: str  # what the names of files in a folder begin with; files named one by one have any name
    rows: Callable[[Iterable[lines.JsonLine], ReadCounts, Seen], Iterator[Row]]
    kind: str  # of the data: its golds and measures (`metrics.kinds`)


OWN_KIND = "qa"
"""Kind of what other formats read, and of a reader from outside that has no attribute `kind`."""

_READERS: dict[object, Any] = {"qasper": qasper, "oag": oag, "warc": warc}
"""Modules with `files_of` and `rows`, of formats whose files are no JSON lines."""
_KINDS = {"beir": "ranking", "qasper": "qasper", "oag": "ranking"}
FORMATS: Registry[Any] = Registry(
    "readers",
    {
        "crag": LineFormat("", crag.rows, "crag"),
        **dict.fromkeys(("beir", "qasper", "oag", "warc", row_format.NAME)),
        captured.NAME: LineFormat("", captured.rows, OWN_KIND),
    },
    "a reader",
)
"""Name of a format -> its LineFormat; None: it has a module of its own here; a plugin's may be a function of
one file."""


def lined(format: Format) -> LineFormat | None:
    """The format, if it is one of JSON lines."""
    name = format_name(format)
    found = FORMATS.get(name)
    return found if isinstance(found, LineFormat) else None


def reader_path(format: Format) -> str | None:
    """MODULE:NAME of a reader that is a function of one file; None: the format is another."""
    name = format_name(format)
    if is_path(name):
        return name
    added = FORMATS.added(name) if name in FORMATS else None
    return None if added is None or isinstance(FORMATS[name], LineFormat) else str(added.value)


def open(
    paths: Paths, format: Format, counts: ReadCounts, limits: ReaderLimits = LIMITS,
    seen: Seen | None = None, span: Span | None = None,
) -> Iterator[Row]:  # fmt: skip
    """The rows of these files and folders, in order; `counts` grows while they are taken.

    `seen`: what other reads found, and what this one finds; None: it is alone. `span`: of the one file that
    the paths name, this stretch alone (`shards`); None: all of it.

    Raises ConfError for an unknown format and DataError for a file that is missing, or that turns out
    truncated, damaged or mislabelled while it is read. After a DataError keep no row: a checksum comes behind
    its bytes, so rows of a damaged block may have been handed out.
    """
    seen = Seen() if seen is None else seen
    if (rows := _rows(format)) is not None:
        return row_format.open(paths, rows, counts, limits, seen, span)
    if (path := reader_path(format)) is not None:
        return _from_outside(paths, path, counts)
    if format in _READERS:
        rows_of: Iterator[Row] = _READERS[format].rows(paths, counts, limits, seen)
        return rows_of
    if format == "beir":
        corpora, queries, judged = beir.inputs_of(_some(paths), counts)
        corpora, queries = ([replace(i, span=span) for i in found] for found in (corpora, queries))
        return beir.rows(corpora, queries, judged, counts, limits, seen)
    inputs = [replace(i, span=span) for i in inputs_of(paths, format, counts)]
    return _of_lines(format).rows(lines.read(inputs, counts, limits), counts, seen)


def size(paths: Paths, format: Format) -> int:
    return sum(p.stat().st_size for p in files_of(paths, format))


def files_of(paths: Paths, format: Format) -> list[Path]:
    """The files that `open` will read, every part of a split one, in order."""
    if _rows(format) is not None:
        return [f.path for f in row_files.find(paths)]
    if reader_path(format) is not None:
        return files.named_files(paths, lambda p: p.is_file() and p.name[0] != ".", "files to read")
    if format in _READERS:
        found: list[Path] = _READERS[format].files_of(paths)
        return found
    if format == "beir":
        corpora, queries, judged = beir.inputs_of(_some(paths))
        return [part for found in (*corpora, *queries) for part in found.parts] + judged
    return [part for found in inputs_of(paths, format, None) for part in found.parts]


def inputs_of(paths: Paths, format: Format, counts: ReadCounts | None) -> list[Input]:
    """The files of JSON lines that `open` will read; `counts` gets the other files of folders."""
    return files.find(_some(paths), (_of_lines(format).begin,), counts)


def _of_lines(format: Format) -> LineFormat:
    if (found := lined(format)) is None:
        raise ConfError(f"{format!r} is no format: expected one of {', '.join(FORMATS)}, or MODULE:NAME.")
    return found


def _some(paths: Paths) -> list[str | Path]:
    if not (given := list(paths)):
        raise ConfError("No path was given: expected files or folders to read.")
    return given


def reader_id(format: Format) -> str:
    """Names a format's reader: of one from outside its path and its source, of rows the named fields."""
    if isinstance(format, RowFormat):
        return format.id()
    path = reader_path(format)
    return format if path is None else "/".join(_reader(path)[1])


def kind_of(format: Format) -> str:
    """The kind of data that a format reads: its golds and measures (`metrics.kinds`). A reader from outside
    may say it, as an attribute `kind` of its function."""
    if (path := reader_path(format)) is not None:
        return str(getattr(_reader(path)[0], "kind", OWN_KIND))
    found = lined(format)
    return _KINDS.get(format_name(format), OWN_KIND) if found is None else found.kind


def format_name(format: Format) -> str:
    return row_format.NAME if isinstance(format, RowFormat) else format


def referenced(paths: Paths, format: Format) -> list[Path]:
    rows = _rows(format)
    return [] if rows is None else row_format.referenced(paths, rows)


def check(paths: Paths, format: Format) -> None:
    """Raises what can be known before anything is read: a missing file; of rows, a field that is not there,
    and CSV whose lines differ in length."""
    if (rows := _rows(format)) is not None:
        row_format.check(paths, rows)
    else:
        files_of(paths, format)


def looks_like(paths: Paths) -> Format:
    """The format of files by their looks: crag, where nothing else is sure.

    A folder with a plugin's marker is of its format, JSON that begins as a paper is qasper, names that end in
    .warc or .warc.gz are warc, names that start with corpus and queries are beir, and names of OAG-QA's files
    are oag. Files that are no JSON lines are rows, and so are JSON lines without a field that CRAG's alone
    have.
    """
    given = [Path(p) for p in paths]
    marks = {marked(p) for p in given}
    if len(marks) == 1 and (mark := marks.pop()) is not None:
        return mark
    names = [f for p in given for f in (sorted(p.iterdir()) if p.is_dir() else [p]) if f.name[0] != "."]
    if names and all(warc.is_warc(f) for f in names):
        return "warc"
    others = [f for f in names if not beir.is_qrels(f)]
    if names and not others:
        return "beir"
    if others and all(oag.is_oag(f) for f in others):
        return "oag"
    kinds = {row_files.kind_of(f): f for f in reversed(others)}
    if "json" in kinds and qasper.is_qasper(kinds["json"]):
        return "qasper"
    if kinds.keys() & {"json", "csv", "parquet"}:
        return row_format.NAME
    if "jsonl" not in kinds:
        return "crag"
    lined = [f for f in names if row_files.kind_of(f) == "jsonl"]
    if all(f.name.startswith(beir.WANTED) for f in lined):
        return "beir"
    return "crag" if _are_crag(lined) else row_format.NAME


def marked(folder: Path) -> str | None:
    """The format that a plugin's file in a folder tells; None: none is there."""
    markers = registered("markers").items()
    return next((str(found.value) for name, found in markers if (folder / name).is_file()), None)


_OF_CRAG = {"interaction_id", "search_results", "query_time", "static_or_dynamic"}


def _are_crag(files: list[Path]) -> bool:
    """Returns whether the first rows of the first file that has some have one of CRAG's fields, or none has
    any."""
    for file in files:
        try:
            [found] = row_files.find([file])
            first = row_files.first(found)
        except DataError:
            return True  # its reader says what is wrong
        if first:
            return any(_OF_CRAG & row.keys() or type(row.get("row")) is int for row in first)
    return True


def _rows(format: Format) -> RowFormat | None:
    return RowFormat() if format == row_format.NAME else format if isinstance(format, RowFormat) else None


def _reader(format: str) -> tuple[Any, tuple[str, str]]:
    rows, plugin = plugins.load(format, "a reader")
    if not callable(rows):
        raise ConfError(f"{format}: expected a function of a file that yields rows, found {rows!r:.80}")
    return rows, (plugin.path, plugin.source)


def _from_outside(paths: Paths, format: str, counts: ReadCounts) -> Iterator[Row]:
    rows, ids = _reader(format)[0], DuplicateCheck()
    seen = Seen(ids, ids)  # a question and a document have no id in common
    for file in files_of(paths, format):
        counts.files += 1
        for row in rows(file):
            if not isinstance(row, Row):
                raise DataError(f"{format}: expected rows of class readers.Row, found {row!r:.80}")
            counts.lines += 1
            yield from settled(row.where, lambda: row, counts, seen.repeats)  # noqa: B023, called at once
        counts.bytes_read += file.stat().st_size
