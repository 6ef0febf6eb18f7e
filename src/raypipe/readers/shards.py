"""Files of a dataset cut into shards that are read apart, each by another process.

A shard is a file, all parts of a split one, whole lines of JSON lines that are not packed, or row groups of
Parquet. Packed files, archives, WARC and CSV stay whole: where a line of them begins is not known before they
are read. So do QASPER and OAG-QA, whose questions name papers of other files. Read with what the others found
(`rows.Seen`), shards give the rows of one read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from raypipe.readers import beir, files, formats, own_rows, row_files
from raypipe.readers.files import Span
from raypipe.readers.formats import Format, LineFormat
from raypipe.readers.own_rows import RowFormat
from raypipe.readers.rows import LIMITS, ReadCounts, Row, Seen
from raypipe.readers.unpack import PIECE


@dataclass(frozen=True, slots=True)
class Shard:
    paths: tuple[str, ...]  # files; more than one: of BEIR, queries with their judgements
    size: int  # bytes on disk
    span: Span | None = None  # of the one file; None: all of it


def cut(paths: Sequence[Path], format: Format, shard_bytes: int, counts: ReadCounts) -> list[Shard]:
    """The shards of files, in their order; `counts` gets the files of folders that no reader takes.

    Of a file that can be cut a shard has about `shard_bytes`. One shard: the files cannot be read apart.
    """
    name, read = formats.format_name(format), formats.format_of(format)
    if isinstance(read, LineFormat):
        return [s for i in formats.inputs_of(paths, read, counts) for s in _of_lines(i, shard_bytes)]
    if name == "rows":
        return [s for file in row_files.find(paths) for s in _of_rows(file, shard_bytes)]
    if name == "warc":
        return [_whole([file]) for file in formats.files_of(paths, format)]
    if name != "beir":
        return [_whole(formats.files_of(paths, format))]
    corpora, queries, judged = beir.inputs_of(paths, counts)
    rest = [p for i in queries for p in i.parts] + judged
    return [s for i in corpora for s in _of_lines(i, shard_bytes)] + ([_whole(rest)] if rest else [])


def bring_layouts(paths: Sequence[Path], format: Format) -> bool:
    """Returns whether rows of these files may be pages with an address, which the table of layouts has."""
    name = formats.format_name(format)
    if name != "rows":
        return name == "warc"
    own = format if isinstance(format, RowFormat) else RowFormat()
    return any(not m.fields.asks() for m in own_rows.mapped(paths, own))


def read(shard: Shard, format: Format, counts: ReadCounts, seen: Seen) -> Iterator[Row]:
    return formats.open(shard.paths, format, counts, LIMITS, seen, shard.span)


def _whole(paths: Iterable[Path]) -> Shard:
    found = list(paths)
    return Shard(tuple(map(str, found)), sum(p.stat().st_size for p in found))


def _of_rows(file: row_files.RowFile, shard_bytes: int) -> list[Shard]:
    if file.kind == "parquet":
        return _groups(file.path, shard_bytes)
    return _of_lines(file.input, shard_bytes) if file.kind == "jsonl" else [_whole([file.path])]


def _of_lines(source: files.Input, shard_bytes: int) -> list[Shard]:
    """Whole lines, each shard from the first line that begins after the one before is full."""
    if source.tar or source.packing or len(source.parts) > 1:
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


def _groups(path: Path, shard_bytes: int) -> list[Shard]:
    """Row groups, as many as fill a shard."""
    try:
        meta = pq.read_metadata(path)
        groups = [meta.row_group(n) for n in range(meta.num_row_groups)]
        sizes = [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]
        rows = [g.num_rows for g in groups]
    except (OSError, ValueError):
        return [_whole([path])]  # its reader says what is wrong
    shards, start, first = list[Shard](), 0, 1
    filled = taken = 0  # bytes and rows from `start` on
    for n, (size, count) in enumerate(zip(sizes, rows, strict=True), 1):
        filled, taken = filled + size, taken + count
        if n == len(groups) or filled >= shard_bytes:
            shards.append(Shard((str(path),), filled, Span(start, n, first)))
            first, start, filled, taken = first + taken, n, 0, 0
    return shards if len(shards) > 1 else [_whole([path])]
