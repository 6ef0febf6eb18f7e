"""Paths to byte streams: chooses files, joins split ones in order, unpacks under limits.

Knows file names, bz2 and gzip, nothing of what is inside: archives are in `tar.py`, lines in `lines.py`.
A name says what a file is, its first bytes must agree, and all short of a whole archive raises DataError.
"""

from __future__ import annotations

import bz2
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.readers.bz2_blocks import BlockInflater
from raypipe.readers.rows import ReadCounts, ReaderLimits

CHUNK = 1 << 18  # bytes read at a time
PIECE = 1 << 20  # most bytes that one decompression step may give
FIRST_SHARE = 1 << 12
"""Bytes of a packed stream that are unpacked first, then twice as many: a stream costs by its own length,
where thousands of them are in one chunk, too. 64,000 of 37 bytes took 350 s."""
SEVERAL = 1 << 20  # bytes of a packed file from which on its blocks are worth threads: a second of unpacking

NAME = re.compile(r"\A(?P<stem>.+?\.(?P<kind>jsonl|tar)(?:\.(?P<packing>bz2|gz))?)(?:\.part(?P<part>\d+))?")
NOTHING = "no such file or folder. Check the path, or get the data first."
READABLE = ".jsonl or .tar, with .bz2 or .gz behind it or not, whole or as .part1, .part2, ..."
PACKED = re.compile(r"\.(gz|bz2)$")
MAGIC = {b"BZh": "bzip2", b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file that is read apart: bytes of whole lines, or row groups of Parquet."""

    start: int  # first byte or row group
    stop: int  # the one behind the last
    first: int  # number of its first line or row in the file, from 1


@dataclass(frozen=True, slots=True)
class Input:
    name: str  # path as given, without .partN
    parts: tuple[Path, ...]  # in order
    tar: bool  # else lines
    packing: str  # "bz2", "gz" or ""
    span: Span | None = None  # of a file that is not packed; None: all of it


def find(
    paths: Iterable[str | Path], wanted: tuple[str, ...] = ("",), counts: ReadCounts | None = None
) -> list[Input]:
    """The inputs that these paths name, each once: a file, any part of a split file, or a folder.

    Of a folder, the readable files whose names begin with one of `wanted` are taken in name order, without
    subfolders."""
    inputs: dict[str, Input] = {}
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.is_file())
            named = [
                p for p in files if NAME.fullmatch(p.name) and p.name[0] != "." and p.name.startswith(wanted)
            ]
            if not named:
                begins = f"that begin with {' or '.join(wanted)}, " if any(wanted) else ""
                raise DataError(
                    f"{path}: expected files {begins}named {READABLE}; found none in {len(files)} files."
                )
            if counts:
                counts.other_files += len(files) - len(named)
        elif path.is_file():
            named = [path]
        else:
            raise DataError(f"{path}: {NOTHING}")
        for file in named:
            found = _input(file)
            inputs.setdefault(found.name, found)
    return list(inputs.values())


def named_files(
    paths: Iterable[str | Path], named: Callable[[Path], bool], expected: str, below: bool = False
) -> list[Path]:
    """The files that these paths name, each once, in order; of a folder those that are `named`, `below`: with
    its subfolders. Raises DataError for a path with no such file."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        require(path)
        inside = [path] if not path.is_dir() else sorted(path.rglob("*") if below else path.iterdir())
        taken = [p for p in inside if named(p) and not p.is_dir()]
        if not taken:
            raise DataError(f"{path}: expected {expected}, found none")
        found |= dict.fromkeys(taken)
    return list(found)


def require(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: {NOTHING}")


def whole(path: Path, span: Span | None = None) -> Input:
    """A file under any name, packed if that ends in .gz or .bz2."""
    packed = PACKED.search(path.name.lower())
    return Input(str(path), (path,), False, packed[1] if packed else "", span)


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
    raw = _raw(source, counts)
    if source.span is not None and source.span.start:
        return raw  # the read of its beginning counts the file, and looks at its first bytes
    counts.files += 1
    if source.packing == "bz2" and cores() > 1 and size([source]) >= SEVERAL:
        raw = _inflate_on_all_cores(raw, source, limits)
    elif source.packing:
        raw = _inflate(raw, source, limits, bz2.BZ2Decompressor if source.packing == "bz2" else _Gunzip)
    return _checked(raw, source)


def _input(path: Path) -> Input:
    match = NAME.fullmatch(path.name)
    if not match:
        raise DataError(f"{path}: expected a name that ends in {READABLE}.")
    stem = path.with_name(match["stem"])
    parts = (path,) if match["part"] is None else _parts(stem)
    return Input(str(stem), parts, match["kind"] == "tar", match["packing"] or "")


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


class _Gunzip:
    """zlib's gzip member, with its CRC, behind the interface of BZ2Decompressor."""

    def __init__(self) -> None:
        self._z = zlib.decompressobj(wbits=31)
        self.needs_input, self.eof, self.unused_data = True, False, b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._z.decompress(self._z.unconsumed_tail + data, max_length)
        self.needs_input = not self._z.unconsumed_tail and len(out) < max_length
        self.eof, self.unused_data = self._z.eof, self._z.unused_data
        return out


_Inflater: TypeAlias = bz2.BZ2Decompressor | _Gunzip | BlockInflater


class _Damaged(DataError):
    """A stream that does not unpack to its end."""


def _inflate_on_all_cores(raw: Iterator[bytes], source: Input, limits: ReaderLimits) -> Iterator[bytes]:
    """As `_inflate`. What cannot be unpacked by its blocks is read again in one piece, which decides."""
    given = 0
    with ThreadPoolExecutor(cores(), thread_name_prefix="bz2") as pool:
        try:
            for piece in _inflate(raw, source, limits, lambda: BlockInflater(pool, cores())):
                given += len(piece)
                yield piece
            return
        except _Damaged:
            pass
    skipped = 0
    for piece in _inflate(_raw(source, ReadCounts()), source, limits, bz2.BZ2Decompressor):
        if (skipped := skipped + len(piece)) > given:
            yield piece[max(given - skipped, -len(piece)) :]


def _inflate(
    raw: Iterator[bytes], source: Input, limits: ReaderLimits, new: Callable[[], _Inflater]
) -> Iterator[bytes]:
    magic = b"BZh" if source.packing == "bz2" else b"\x1f\x8b"
    inflater: _Inflater | None = None
    streams, taken, given, rest, share = 0, 0, 0, b"", FIRST_SHARE
    for chunk in raw:
        taken += len(chunk)
        rest += chunk
        while rest or (inflater and not inflater.needs_input):
            if inflater is None:
                if source.packing == "gz" and streams:
                    rest = rest.lstrip(b"\0")  # gzip allows padding behind the last member
                if len(rest) < len(magic):
                    break
                if not rest.startswith(magic):
                    raise DataError(_stranger(source, rest, streams))
                inflater, share = new(), FIRST_SHARE
            handed, rest = (rest[:share], rest[share:]) if inflater.needs_input else (b"", rest)
            share = min(2 * share, CHUNK)
            try:
                piece = inflater.decompress(handed, PIECE)
            except (OSError, zlib.error, EOFError) as e:
                raise _Damaged(f"{source.name}: damaged after {given:,} good bytes ({e}). {AGAIN}") from e
            given += len(piece)
            if given > limits.inflated_bytes or given > max(limits.ratio_free_bytes, taken * limits.ratio):
                raise DataError(
                    f"{source.name}: {taken:,} bytes unpack to more than {given:,}; expected at most "
                    f"{limits.ratio} times as many and {limits.inflated_bytes:,} in all. This is no dataset."
                )
            if piece:
                yield piece
            if inflater.eof:
                rest, inflater, streams = inflater.unused_data + rest, None, streams + 1
    if rest:
        raise DataError(_stranger(source, rest, streams))
    if inflater is not None:
        raise _Damaged(f"{source.name}: ends in the middle, after {given:,} unpacked bytes. {AGAIN}")


AGAIN = "Get the file again, and compare its size and digest with the publisher's."


def _stranger(source: Input, head: bytes, streams: int) -> str:
    if streams:
        return f"{source.name}: bytes that are not {source.packing} follow the end of the archive. {AGAIN}"
    found, says = _packing(head) or f"neither: {head[:8]!r}", source.packing
    return f"{source.name}: its name says {says}, its first bytes {found}. Rename it or get it again."


def _packing(head: bytes) -> str | None:
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def _checked(chunks: Iterator[bytes], source: Input) -> Iterator[bytes]:
    """The same chunks, of which the first must not contradict the name.

    It is at least one tar header long if there are as many bytes."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 512:
            break
    packed = _packing(head)
    if packed or (head[257:262] == b"ustar" and not source.tar):
        said, found = "a tar archive" if source.tar else "JSON lines", packed or "a tar archive"
        raise DataError(f"{source.name}: its name says {said}, its bytes say {found}. Rename it.")
    if head:
        yield head
    yield from chunks
