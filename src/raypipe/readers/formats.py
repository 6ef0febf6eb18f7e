"""Table of formats: reads files as rows, whole or cut into shards that are read separately.

A shard is a file, all parts of a split file, a range of lines of unpacked JSON lines, or row groups of
Parquet. Packed files, archives, WARC and CSV are not cut, because the beginnings of their lines are unknown
until they are read. All files of QASPER, of OAG-QA or of a plugin's function are one shard; a question of
OAG-QA may name papers in other files. A shard is read with the ids that it shares with other shards
(`file_read.Seen`), so all shards together give the rows of a single read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import pyarrow.parquet as pq

from raypipe.core import plugins
from raypipe.core.errors import ConfError, DataError
from raypipe.core.plugins import Registry, is_path, registered
from raypipe.readers import beir, crag, files, lines, oag, own_rows, qasper, row_files, warc
from raypipe.readers.file_read import DuplicateCheck, FileRead, Seen
from raypipe.readers.files import Input, Span
from raypipe.readers.own_rows import RowFormat
from raypipe.readers.rows import LIMITS, ReadCounts, ReaderLimits, Row
from raypipe.readers.unpack import PIECE

Format: TypeAlias = str | RowFormat
"""A name of FORMATS, a `RowFormat` (the format `rows` with the user's fields), or the path of your own
reader, such as `mypkg.readers:rows`: a function of one file that yields a `Row` per record."""
Paths: TypeAlias = Iterable[str | Path]

OWN_KIND = "qa"
"""Kind of data of `rows`, `warc`, folders and captured questions, and of plugin readers without `kind`."""


@dataclass(frozen=True, slots=True)
class Shard:
    paths: tuple[str, ...]  # files to read together, such as BEIR's queries with their judgements
    size: int  # bytes on disk
    span: Span | None = None  # range of the only file; None: the files are read whole


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Format of JSON lines in which each line is read on its own."""

    begin: str  # prefix of its files' names in a folder; a file that is given by its own path needs none
    rows: Callable[[Iterable[lines.JsonLine], FileRead], Iterator[Row]]
    kind: str  # kind of the data, which decides on golds and measures (`metrics.kinds`)

    def files_of(self, paths: Paths) -> list[Path]:
        return [part for found in files.find(paths, (self.begin,)) for part in found.parts]

    def read(self, paths: Paths, read: FileRead) -> Iterator[Row]:
        inputs = [replace(i, span=read.span) for i in files.find(paths, (self.begin,), read.counts)]
        return self.rows(lines.read(inputs, read.counts, read.limits), read)

    def shards(self, paths: Paths, shard_bytes: int, counts: ReadCounts) -> list[Shard]:
        return [s for i in files.find(paths, (self.begin,), counts) for s in _cut_lines(i, shard_bytes)]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Format whose own functions find and read its files."""

    files_of: Callable[[Paths], list[Path]]
    read: Callable[[Paths, FileRead], Iterator[Row]]
    kind: str = OWN_KIND
    # function of (paths, bytes of a shard, ReadCounts); None: the files are always read together
    shards: Callable[[Paths, int, ReadCounts], list[Shard]] | None = None


def _of_rows(format: RowFormat) -> FileFormat:
    def shards(paths: Paths, shard_bytes: int, counts: ReadCounts) -> list[Shard]:
        cut = {"parquet": _cut_groups}
        return [s for f in row_files.find(paths) for s in cut.get(f.kind, _cut_lines)(f, shard_bytes)]

    return FileFormat(own_rows.files_of, partial(own_rows.rows, format), OWN_KIND, shards)


def _shards_of_beir(paths: Paths, shard_bytes: int, counts: ReadCounts) -> list[Shard]:
    corpora, queries, judged = beir.inputs_of(paths, counts)
    rest = [p for i in queries for p in i.parts] + judged
    return [s for i in corpora for s in _cut_lines(i, shard_bytes)] + ([_whole(rest)] if rest else [])


FORMATS: Registry[Any] = Registry(
    "readers",
    {
        "crag": LineFormat("", crag.rows, "crag"),
        "beir": FileFormat(beir.files_of, beir.rows, "ranking", _shards_of_beir),
        "qasper": FileFormat(qasper.files_of, qasper.rows, "qasper"),
        "oag": FileFormat(oag.files_of, oag.rows, "ranking"),
        "warc": FileFormat(
            warc.files_of, warc.rows, shards=lambda paths, *_: [_whole([f]) for f in warc.files_of(paths)]
        ),
        own_rows.NAME: _of_rows(RowFormat()),
        crag.CAPTURED: LineFormat("", crag.captured, OWN_KIND),
    },
    "a reader",
)
"""Name -> format. A plugin may add a format, or a function that reads one file."""


def format_of(format: Format) -> LineFormat | FileFormat:
    """Resolves a format to the functions that read it. Raises ConfError if it is unknown or not loadable."""
    if isinstance(format, RowFormat):
        return _of_rows(format)
    if (path := _reader_path(format)) is not None:
        return _from_outside(path)
    if (found := FORMATS.get(format)) is None:
        raise ConfError(f"{format!r} is no format: expected one of {', '.join(FORMATS)}, or MODULE:NAME.")
    return cast(LineFormat | FileFormat, found)


def _reader_path(format: str) -> str | None:
    """Returns the MODULE:NAME of a format that is a function of one file; None for other formats."""
    if is_path(format):
        return format
    added = FORMATS.added(format) if format in FORMATS else None
    return None if added is None or isinstance(FORMATS[format], LineFormat) else str(added.value)


def open(
    paths: Paths,
    format: Format,
    counts: ReadCounts,
    limits: ReaderLimits = LIMITS,
    seen: Seen | None = None,
    span: Span | None = None,
) -> Iterator[Row]:
    """Yields the rows of these files and folders; `counts` grows with each row.

    `seen` holds the ids that other reads share with this read; None means that there is no other read. `span`
    is the range to read of the only file in `paths`; None means that all files are read whole.

    Raises ConfError if no path is given, the format is unknown, or no file has a field that the user named.
    Raises DataError if a file is missing, truncated, damaged or has a wrong suffix. Then discard all yielded
    rows: a checksum follows the bytes that it covers, so some of these rows may be damaged.
    """
    return format_of(format).read(_some(paths), FileRead(counts, limits, seen or Seen(), span))


def size(paths: Paths, format: Format) -> int:
    return sum(p.stat().st_size for p in files_of(paths, format))


def files_of(paths: Paths, format: Format) -> list[Path]:
    """Lists the files of a format under some paths, with every part of a split file. Files that rows name
    are not included (`referenced` lists those)."""
    return format_of(format).files_of(_some(paths))


def _some(paths: Paths) -> list[str | Path]:
    if not (given := list(paths)):
        raise ConfError("No path was given: expected files or folders to read.")
    return given


def reader_id(format: Format) -> str:
    """Returns the identity of a format's reader: the format's name, with the fields that the user named. A
    function (MODULE:NAME) is identified by its path and the digest of its source."""
    if isinstance(format, RowFormat):
        return format.id()
    path = _reader_path(format)
    return format if path is None else _reader(path)[1]


def kind_of(format: Format) -> str:
    """Returns the kind of a format's data, which decides on golds and measures (`metrics.kinds`)."""
    # A folder of documents ("files") has no reader in FORMATS.
    return OWN_KIND if format == "files" else format_of(format).kind


def format_name(format: Format) -> str:
    return own_rows.NAME if isinstance(format, RowFormat) else format


def referenced(paths: Paths, format: Format) -> list[Path]:
    rows = _row_format(format)
    return [] if rows is None else own_rows.referenced(paths, rows)


def check(paths: Paths, format: Format) -> None:
    """Checks files before a read. Raises DataError for a missing file; checks `rows` by `own_rows.check`."""
    if (rows := _row_format(format)) is not None:
        own_rows.check(paths, rows)
    else:
        files_of(paths, format)


def looks_like(paths: Paths) -> Format:
    """Guesses the format of files by names and first rows: the first case that fits, "crag" if none does.

    - All paths are folders with the marker file of one plugin: the plugin's format.
    - All names end in .warc or .warc.gz: "warc".
    - All are relevance judgements: "beir". All other files are named like OAG-QA's: "oag".
    - The first .json file begins like a file of papers: "qasper".
    - There is any other JSON, CSV or Parquet: "rows".
    - All names of JSON lines start with corpus or queries: "beir".
    - The first rows of JSON lines have none of CRAG's fields: "rows".
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
        return own_rows.NAME
    if "jsonl" not in kinds:
        return "crag"
    lined = [f for f in names if row_files.kind_of(f) == "jsonl"]
    if all(f.name.startswith(beir.WANTED) for f in lined):
        return "beir"
    return "crag" if _are_crag(lined) else own_rows.NAME


def marked(folder: Path) -> str | None:
    """Returns the format of the first plugin whose marker file is in a folder, or None."""
    markers = registered("markers").items()
    return next((str(found.value) for name, found in markers if (folder / name).is_file()), None)


_OF_CRAG = {"interaction_id", "search_results", "query_time", "static_or_dynamic"}


def _are_crag(files: list[Path]) -> bool:
    """Returns whether the first rows have a field of CRAG; True if there are none or they are unreadable."""
    for file in files:
        try:
            [found] = row_files.find([file])
            first = row_files.first(found)
        except DataError:
            return True  # the reader of CRAG reports the fault
        if first:
            return any(_OF_CRAG & row.keys() or type(row.get("row")) is int for row in first)
    return True


def _row_format(format: Format) -> RowFormat | None:
    """Returns the RowFormat of the format `rows`; None for other formats."""
    return RowFormat() if format == own_rows.NAME else format if isinstance(format, RowFormat) else None


def _reader(format: str) -> tuple[Any, str]:
    """Loads the function that reads a format. Returns the function and its identity."""
    rows, plugin = plugins.load(format, "a reader")
    if not callable(rows):
        raise ConfError(f"{format}: expected a function of a file that yields rows, found {rows!r:.80}")
    return rows, f"{plugin.path}/{plugin.source}"


def _from_outside(format: str) -> FileFormat:
    def files_of(paths: Paths) -> list[Path]:
        return files.named_files(paths, lambda path: True, "files to read")

    def rows(paths: Paths, read: FileRead) -> Iterator[Row]:
        ids, counts = DuplicateCheck(), read.counts
        read = replace(read, seen=Seen(ids, ids))  # questions and documents share one space of ids
        for file in files_of(paths):
            counts.files += 1
            for row in _given(of_file, format, file):
                if not isinstance(row, Row):
                    raise DataError(f"{format}: expected rows of class readers.Row, found {row!r:.80}")
                counts.lines += 1
                yield from read.settled(row.where, lambda: row)  # noqa: B023, called at once
            counts.bytes_read += file.stat().st_size

    of_file = _reader(format)[0]
    return FileFormat(files_of, rows, str(getattr(of_file, "kind", OWN_KIND)))


def _given(of_file: Callable[[Path], Iterable[Any]], format: str, file: Path) -> Iterator[Any]:
    """Yields what a user's reader yields for a file. Raises DataError if the reader raises."""
    with plugins.own_code("reader", format, str(file), "rows"):
        yield from of_file(file)


def cut(paths: Sequence[Path], format: Format, shard_bytes: int, counts: ReadCounts) -> list[Shard]:
    """Cuts files into shards of about `shard_bytes`. A file that cannot be cut is one shard, and so are files
    that must be read together. For CRAG, BEIR and captured questions, adds other files to `counts`."""
    read = format_of(format)
    return [_whole(read.files_of(paths))] if read.shards is None else read.shards(paths, shard_bytes, counts)


def bring_layouts(paths: Sequence[Path], format: Format) -> bool:
    """Returns whether files may give pages with an address; such a page gets a row in the table `layouts`."""
    own = _row_format(format)
    return format == "warc" if own is None else not all(m.fields.asks() for m in own_rows.mapped(paths, own))


def _whole(paths: Iterable[Path]) -> Shard:
    found = list(paths)
    return Shard(tuple(map(str, found)), sum(p.stat().st_size for p in found))


def _cut_lines(source: Input, shard_bytes: int) -> list[Shard]:
    """Cuts unpacked JSON lines; other inputs are one shard. A shard ends with the line that fills it."""
    if source.kind != "jsonl" or source.packing or len(source.parts) > 1:
        return [_whole(source.parts)]
    path = source.parts[0]
    size = path.stat().st_size
    starts, at, lines, due = [(0, 1)], 0, 0, shard_bytes
    with path.open("rb") as file:
        while size > shard_bytes and (chunk := file.read(PIECE)):
            while (begin := max(0, due - at)) < len(chunk) and (end := chunk.find(b"\n", begin)) >= 0:
                starts.append((at + end + 1, lines + chunk.count(b"\n", 0, end + 1) + 1))
                due = at + end + 1 + shard_bytes
            lines += chunk.count(b"\n")
            at += len(chunk)
    starts = [s for s in starts if s[0] < size or s[0] == 0]
    if len(starts) == 1:
        return [_whole([path])]
    stops = [start for start, _ in starts[1:]] + [size]
    spans = [Span(start, stop, first) for (start, first), stop in zip(starts, stops, strict=True)]
    return [Shard((str(path),), s.stop - s.start, s) for s in spans]


def _cut_groups(source: Input, shard_bytes: int) -> list[Shard]:
    """Cuts a Parquet file into shards. A shard ends with the row group that fills it. An unreadable file is
    one shard."""
    [path] = source.parts
    try:
        meta = pq.read_metadata(path)
        groups = [meta.row_group(n) for n in range(meta.num_row_groups)]
        sizes = [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]
        rows = [g.num_rows for g in groups]
    except (OSError, ValueError):
        return [_whole([path])]  # the reader reports the fault
    shards, start, first = list[Shard](), 0, 1
    filled = taken = 0  # bytes and rows from `start` on
    for n, (size, count) in enumerate(zip(sizes, rows, strict=True), 1):
        filled, taken = filled + size, taken + count
        if n == len(groups) or filled >= shard_bytes:
            shards.append(Shard((str(path),), filled, Span(start, n, first)))
            first, start, filled, taken = first + taken, n, 0, 0
    return shards if len(shards) > 1 else [_whole([path])]
