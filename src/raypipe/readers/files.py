"""Byte streams of files: chooses files by name, joins split files in order, unpacks under limits.

The name of a file gives its kind, and the first bytes must not contradict the name. The members of a tar
archive are streamed; nothing is written to disk. `tarfile` reads the headers (ustar, pax, GNU), but ends
silently at a damaged header or a cut file. Here these two raise DataError, as do links, devices and names
that lead out of the archive. This module does not interpret the content of files.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Self

from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.readers.rows import ReadCounts, ReaderLimits
from raypipe.readers.unpack import CHUNK, PIECE, packing_of, unpacked

SEVERAL = 1 << 20  # least bytes of a bz2 file for which threads pay off: a second of unpacking
NAME_BYTES = 1 << 20  # most bytes of a tar entry that is no file, such as a header with a long name
NAME = re.compile(r"\A(?P<stem>.+?\.(?P<kind>jsonl|tar)(?:\.(?P<packing>bz2|gz))?)(?:\.part(?P<part>\d+))?")
READABLE = ".jsonl or .tar, with .bz2 or .gz behind it or not, whole or as .part1, .part2, ..."
PACKED = re.compile(r"\.(gz|bz2)$")


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a file, to be read separately: bytes of whole lines, or row groups of Parquet."""

    start: int  # first byte or row group
    stop: int  # end of the range, exclusive
    first: int  # number of the range's first line or row in the file, from 1


@dataclass(frozen=True, slots=True)
class Input:
    name: str  # path as given, without .partN
    parts: tuple[Path, ...]  # files on disk, in order
    kind: str = "jsonl"  # or tar, json, csv, parquet
    packing: str = ""  # "bz2", "gz" or ""
    span: Span | None = None  # range of an unpacked file; None: the whole file


def find(
    paths: Iterable[str | Path], wanted: tuple[str, ...] = ("",), counts: ReadCounts | None = None
) -> list[Input]:
    """Lists the inputs under `paths`, without repeats. A path is a file, a folder, or one part of a split
    file, which stands for all parts. A folder gives its own readable files whose names begin with one of
    `wanted`; its other files are added to `counts`. Raises DataError as `named_files` and `_parts` do."""
    given, inputs = list(map(Path, paths)), dict[str, Input]()
    begins = f"that begin with {' or '.join(wanted)}, " if any(wanted) else ""

    def named(path: Path) -> bool:
        return NAME.fullmatch(path.name) is not None and (path in given or path.name.startswith(wanted))

    for file in named_files(given, named, f"files {begins}named {READABLE}", counts=counts):
        if match := NAME.fullmatch(file.name):
            stem = file.with_name(match["stem"])
            parts = (file,) if match["part"] is None else _parts(stem)
            inputs.setdefault(str(stem), Input(str(stem), parts, match["kind"], match["packing"] or ""))
    return list(inputs.values())


def named_files(
    paths: Iterable[str | Path],
    named: Callable[[Path], bool],
    expected: str,
    below: bool = False,
    counts: ReadCounts | None = None,
) -> list[Path]:
    """Lists the files under `paths` for which `named` is true, without repeats. A folder gives its files in
    name order, and if `below`, those of subfolders; names with a first dot are skipped. Other files are added
    to `counts`. Raises DataError, which says what was `expected`, if a path gives no file."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder. Check the path, or get the data first.")
        inside = [path]
        if path.is_dir():
            entries = path.rglob("*") if below else path.iterdir()
            inside = sorted(p for p in entries if p.is_file() and p.name[0] != ".")
        if not (taken := [p for p in inside if named(p)]):
            among = f" in {len(inside)} files" if path.is_dir() else ""
            raise DataError(f"{path}: expected {expected}, found none{among}")
        if counts:
            counts.other_files += len(inside) - len(taken)
        found |= dict.fromkeys(taken)
    return list(found)


def whole(path: Path, kind: str = "jsonl") -> Input:
    """Makes the input of one file. The file is packed if its name ends in .gz or .bz2."""
    packed = PACKED.search(path.name.lower())
    return Input(str(path), (path,), kind, packed[1] if packed else "")


def content(source: Input, counts: ReadCounts, limits: ReaderLimits, most: int, advice: str = "") -> bytes:
    """Reads all bytes of an input. Raises DataError as `stream` does, and if there are more than `most`."""
    raw = bytearray()
    for piece in stream(source, counts, limits):
        raw += piece
        if len(raw) > most:
            raise DataError(f"{source.name}: expected at most {most:,} bytes of JSON{advice}")
    return bytes(raw)


def stream(source: Input, counts: ReadCounts, limits: ReaderLimits) -> Iterator[bytes]:
    """Yields the bytes of an input, decompressed. Raises DataError if a packed file is truncated, damaged or
    exceeds the limits, if the bytes contradict the name, or if a file cannot be read. Discard the bytes
    yielded before the error, because a checksum follows the bytes that it covers."""
    chunks = _raw(source, counts)
    if source.span is not None and source.span.start:
        return chunks  # the shard with the file's beginning counts the file and checks its first bytes
    counts.files += 1
    if source.packing:
        packed = sum(p.stat().st_size for p in source.parts)
        several = source.packing == "bz2" and cores() > 1 and packed >= SEVERAL
        again = partial(_raw, source, ReadCounts()) if several else None
        chunks = unpacked(source.name, source.packing, chunks, limits, again)

    def agreeing() -> Iterator[bytes]:
        """Checks that the first 512 bytes, the size of a tar header, fit the name; then yields all bytes."""
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= 512:
                break
        packed, is_tar = packing_of(head), source.kind == "tar"
        if packed or (head[257:262] == b"ustar" and not is_tar):
            said, found = "a tar archive" if is_tar else "text", packed or "a tar archive"
            raise DataError(f"{source.name}: expected {said} by its name, found {found} by bytes. Rename it.")
        if head:
            yield head
        yield from chunks

    return agreeing()


def _parts(stem: Path) -> tuple[Path, ...]:
    """Lists the parts of a split file, from 0 or 1 on. Raises DataError for a gap or an incomplete part."""
    files = sorted(p for p in stem.parent.iterdir() if p.name.startswith(f"{stem.name}.part"))
    if unfinished := [p.name for p in files if p.name.endswith(".partial")]:
        raise DataError(f"{stem}: {', '.join(unfinished)} is not whole. Run the download again to finish it.")
    parts = {int(m["part"]): p for p in files if (m := NAME.fullmatch(p.name)) and m["part"]}
    missing = [f"part{n}" for n in range(min(*parts, 1), max(parts) + 1) if n not in parts]
    if missing:
        here, lacking = ", ".join(f"part{n}" for n in sorted(parts)), ", ".join(missing)
        raise DataError(f"{stem}: expected every part in one folder; {lacking} missing, {here} here.")
    return tuple(parts[n] for n in sorted(parts))


def _raw(source: Input, counts: ReadCounts) -> Iterator[bytes]:
    empty = True
    start, stop = (0, sys.maxsize) if source.span is None else (source.span.start, source.span.stop)
    for path in source.parts:
        try:
            with path.open("rb") as file:
                file.seek(start)
                while chunk := file.read(min(CHUNK, stop - file.tell())):
                    empty = False
                    counts.bytes_read += len(chunk)
                    yield chunk
        except OSError as e:
            raise DataError(f"{path}: cannot be read: {e.strerror}.") from e
    counts.empty_files += empty


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parses a header. Raises ReadError if it is damaged, since tarfile would take it for the archive's
        end, which is a block of zeros. Also raises it if an entry that is no file has over NAME_BYTES."""
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if buf.strip(b"\0"):
                raise tarfile.ReadError(str(e)) from e
            raise
        if member.size > NAME_BYTES and not member.isreg():
            raise tarfile.ReadError(f"a tar header of {member.size:,} bytes, at most {NAME_BYTES:,} are read")
        return member


def members(name: str, chunks: Iterator[bytes]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yields (name, pieces of the content) of each file in a tar archive."""
    filled = filter(None, chunks)
    if not (first := next(filled, b"")):
        return  # an empty file, which `stream` has counted
    unread, ended = chain([first], filled), False

    def read(_: int) -> bytes:
        if not (chunk := next(unread, b"")) and not ended:
            raise DataError(f"{name}: ends in the middle of the archive. Get it again.")
        return chunk

    how: Any = {"tarinfo": _Member, "encoding": "utf-8", "errors": "replace"}
    try:
        with tarfile.open(name, "r|", SimpleNamespace(read=read), PIECE, **how) as opened:
            archive: Any = opened
            while (member := archive.next()) is not None:
                archive.members.clear()  # otherwise TarFile keeps every header in memory
                parts = PurePosixPath(member.name.replace("\\", "/"))
                where = f"{name}: member {member.name!r}"
                if parts.is_absolute() or ".." in parts.parts:
                    raise DataError(f"{where} leads out of the archive. Do not trust this file.")
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise DataError(f"{where} is a link, a device or sparse; expected files and folders.")
                if member.isreg():
                    yield member.name, iter(partial(archive.extractfile(member).read, PIECE), b"")
            ended = True
            while rest := archive.fileobj.read(PIECE):
                if rest.strip(b"\0"):
                    raise DataError(f"{name}: bytes follow the end of the tar archive. Get it again.")
    except tarfile.TarError as e:
        raise DataError(
            f"{name}: expected a tar header, found a damaged one or none ({e}). Get it again."
        ) from e
