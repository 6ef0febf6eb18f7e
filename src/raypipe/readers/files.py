"""Paths to byte streams: chooses files, joins split ones in order, unpacks under limits.

Knows file names and tar archives, nothing of what is inside. A name says what a file is, its first bytes
must agree, and all short of a whole archive raises DataError. The members of an archive are streamed; nothing
is written to disk. `tarfile` reads the headers (ustar, pax, GNU), and ends silently at a damaged one or at
the end of a cut file: here both raise DataError, and so do names that lead out, links and devices.
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
from typing import Any, Self

from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.readers.rows import ReadCounts, ReaderLimits, Span
from raypipe.readers.unpack import CHUNK, PIECE, packing_of, unpacked

SEVERAL = 1 << 20  # bytes of a packed file from which on its blocks are worth threads: a second of unpacking

NAME_BYTES = 1 << 20  # most bytes of the header of a tar archive that holds a long name
NAME = re.compile(r"\A(?P<stem>.+?\.(?P<kind>jsonl|tar)(?:\.(?P<packing>bz2|gz))?)(?:\.part(?P<part>\d+))?")
READABLE = ".jsonl or .tar, with .bz2 or .gz behind it or not, whole or as .part1, .part2, ..."
PACKED = re.compile(r"\.(gz|bz2)$")


@dataclass(frozen=True, slots=True)
class Input:
    name: str  # path as given, without .partN
    parts: tuple[Path, ...]  # in order
    kind: str = "jsonl"  # or tar, json, csv, parquet
    packing: str = ""  # "bz2", "gz" or ""
    span: Span | None = None  # of a file that is not packed; None: all of it


def find(
    paths: Iterable[str | Path], wanted: tuple[str, ...] = ("",), counts: ReadCounts | None = None
) -> list[Input]:
    """The inputs that these paths name, each once: a file, any part of a split file, or a folder.

    Of a folder, the readable files whose names begin with one of `wanted` are taken in name order, without
    subfolders."""
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
    """Lists the files behind `paths`, in order, without repeats. A folder gives its visible files for which
    `named` is true; `below` includes subfolders. Files that are left out are added to `counts`. Raises
    DataError if a path has no such file."""
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
    """A file under any name, packed if that ends in .gz or .bz2."""
    packed = PACKED.search(path.name.lower())
    return Input(str(path), (path,), kind, packed[1] if packed else "")


def content(source: Input, counts: ReadCounts, limits: ReaderLimits, most: int, advice: str = "") -> bytes:
    """All bytes of an input. Raises DataError as `stream` does, and for more than `most`."""
    raw = bytearray()
    for piece in stream(source, counts, limits):
        raw += piece
        if len(raw) > most:
            raise DataError(f"{source.name}: expected at most {most:,} bytes of JSON{advice}")
    return bytes(raw)


def size(inputs: Iterable[Input]) -> int:
    return sum(p.stat().st_size for i in inputs for p in i.parts)


def stream(source: Input, counts: ReadCounts, limits: ReaderLimits) -> Iterator[bytes]:
    """The bytes of an input, decompressed. Raises DataError for a truncated, damaged, mislabelled or
    exploding file; drop the bytes yielded before, because a checksum comes after the bytes it covers."""
    chunks = _raw(source, counts)
    if source.span is not None and source.span.start:
        return chunks  # the read of its beginning counts the file, and looks at its first bytes
    counts.files += 1
    if source.packing:
        several = source.packing == "bz2" and cores() > 1 and size([source]) >= SEVERAL
        again = partial(_raw, source, ReadCounts()) if several else None
        chunks = unpacked(source.name, source.packing, chunks, limits, again)

    def agreeing() -> Iterator[bytes]:
        """The same, of which the first, one tar header long at least, must not contradict the name."""
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= 512:
                break
        packed, is_tar = packing_of(head), source.kind == "tar"
        if packed or (head[257:262] == b"ustar" and not is_tar):
            said, found = "a tar archive" if is_tar else "JSON lines", packed or "a tar archive"
            raise DataError(f"{source.name}: its name says {said}, its bytes say {found}. Rename it.")
        if head:
            yield head
        yield from chunks

    return agreeing()


def _parts(stem: Path) -> tuple[Path, ...]:
    """All parts of a split file, which are counted from 0 or from 1."""
    files = sorted(p for p in stem.parent.iterdir() if p.name.startswith(f"{stem.name}.part"))
    if unfinished := [p.name for p in files if p.name.endswith(".partial")]:
        raise DataError(f"{stem}: {', '.join(unfinished)} is not whole. Run the download again to finish it.")
    parts = {int(m["part"]): p for p in files if (m := NAME.fullmatch(p.name)) and m["part"]}
    missing = [f"part{n}" for n in range(min(*parts, 1), max(parts) + 1) if n not in parts]
    if missing:
        have = ", ".join(f"part{n}" for n in sorted(parts))
        lacking = ", ".join(missing)
        raise DataError(f"{stem}: expected every part in one folder; {lacking} missing, {have} here.")
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


class _Stream:
    """A file for `tarfile` that is read forwards. What it asks for is there, or DataError."""

    def __init__(self, name: str, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks = name, chunks
        self._chunk, self._next = b"", 0  # what was read, and the first of its bytes that was not given out
        self._at = 0

    def some(self, most: int) -> bytes:
        """Reads between 1 and `most` bytes. Returns b"" at the end."""
        if self._next == len(self._chunk):
            self._chunk, self._next = next(self._chunks, b""), 0
        out = self._chunk[self._next : self._next + most]
        self._next += len(out)
        self._at += len(out)
        return out

    def pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.some(min(size, PIECE))
            if not piece:
                raise DataError(f"{self.name}: ends in the middle of the archive. Get it again.")
            size -= len(piece)
            yield piece

    def read(self, size: int) -> bytes:
        if size > NAME_BYTES:
            raise DataError(f"{self.name}: a tar header of {size:,} bytes; at most {NAME_BYTES:,} are read.")
        return b"".join(self.pieces(size))

    def tell(self) -> int:
        return self._at

    def seek(self, to: int) -> None:
        for _ in self.pieces(to - self._at):
            pass


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """A header. `TarFile` takes a HeaderError for the end, which only a block of zeros is."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as e:
            if buf.strip(b"\0"):
                raise tarfile.ReadError(str(e)) from e
            raise


def members(name: str, chunks: Iterator[bytes]) -> Iterator[tuple[str, Iterator[bytes]]]:
    filled = filter(None, chunks)
    if not (first := next(filled, b"")):
        return  # an empty file, which `files` has counted
    stream: Any = _Stream(name, chain([first], filled))
    try:
        archive: Any = tarfile.TarFile(name, "r", stream, None, _Member, encoding="utf-8", errors="replace")
        while (member := archive.next()) is not None:
            archive.members.clear()  # it keeps all of them
            parts = PurePosixPath(member.name.replace("\\", "/"))
            if parts.is_absolute() or ".." in parts.parts:
                strange = f"member {member.name!r} leads out of the archive. Do not trust this file."
                raise DataError(f"{name}: {strange}")
            if not (member.isreg() or member.isdir()) or member.issparse():
                found = f"member {member.name!r} is a link, a device or sparse"
                raise DataError(f"{name}: {found}; expected files and folders.")
            if member.isreg():
                yield member.name, stream.pieces(member.size)
    except tarfile.TarError as e:
        found = f"found a damaged one or none ({e}). Get it again."
        raise DataError(f"{name}: expected a tar header, {found}") from e
    while rest := stream.some(PIECE):
        if rest.strip(b"\0"):
            raise DataError(f"{name}: bytes follow the end of the tar archive. Get it again.")
