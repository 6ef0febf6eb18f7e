"""Streams a tar archive: the members' bytes in order, nothing is written to disk.

`tarfile` reads the headers (ustar, pax, GNU). Stricter than it is alone, as it ends silently at a damaged
header or at the end of a cut file: here both raise DataError, and so do names that lead out of the archive,
links and devices.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Self

from raypipe.core.errors import DataError

NAME_BYTES = 1 << 20  # most bytes of a header that holds a long name
PIECE = 1 << 20


class _Stream:
    """A file for `tarfile` that is read forwards. What it asks for is there, or DataError."""

    def __init__(self, name: str, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks = name, chunks
        self._chunk, self._next = b"", 0  # what was read, and the first of its bytes that was not given out
        self._at = 0

    def some(self, most: int) -> bytes:
        """1 to `most` bytes; none at the end."""
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
            _refuse_strange(name, member)
            if member.isreg():
                yield member.name, stream.pieces(member.size)
    except tarfile.TarError as e:
        found = f"found a damaged one or none ({e}). Get it again."
        raise DataError(f"{name}: expected a tar header, {found}") from e
    while rest := stream.some(PIECE):
        if rest.strip(b"\0"):
            raise DataError(f"{name}: bytes follow the end of the tar archive. Get it again.")


def _refuse_strange(name: str, member: tarfile.TarInfo) -> None:
    parts = PurePosixPath(member.name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"{name}: member {member.name!r} leads out of the archive. Do not trust this file.")
    if not (member.isreg() or member.isdir()) or member.issparse():
        found = f"member {member.name!r} is a link, a device or sparse"
        raise DataError(f"{name}: {found}; expected files and folders.")
