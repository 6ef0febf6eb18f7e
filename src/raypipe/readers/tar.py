"""Streams a tar archive: the members' bytes in order, nothing is written to disk.

Knows the ustar, pax and GNU headers that name a file. Stricter than `tarfile`, which ends silently at a
damaged header or at the end of a cut file: here both raise DataError, and so do names that lead out of the
archive, links and devices.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath

from raypipe.core.errors import DataError

BLOCK = 512
NAME_BYTES = 1 << 20  # most bytes of a header that holds a long name
PIECE = 1 << 20


class _Stream:
    def __init__(self, name: str, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks, self._left = name, filter(None, chunks), b""

    def some(self, most: int) -> bytes:
        """1 to `most` bytes; none at the end."""
        left = self._left or next(self._chunks, b"")
        out, self._left = left[:most], left[most:]
        return out

    def pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.some(min(size, PIECE))
            if not piece:
                raise DataError(f"{self.name}: ends in the middle of the archive. Get it again.")
            size -= len(piece)
            yield piece

    def exactly(self, size: int) -> bytes:
        return b"".join(self.pieces(size))


def members(name: str, chunks: Iterator[bytes]) -> Iterator[tuple[str, Iterator[bytes]]]:
    stream = _Stream(name, chunks)
    first = stream.some(1)
    if not first:
        return  # an empty file, which `files` has counted
    block = first + stream.exactly(BLOCK - 1)
    path, size = "", -1  # from an extended header, for the member that follows
    while block.strip(b"\0"):
        try:
            head = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except tarfile.HeaderError as e:
            found = f"found a damaged one or none ({e}). Get it again."
            raise DataError(f"{name}: expected a tar header, {found}") from e
        if head.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            text = _extended(stream, head)
            if head.type == tarfile.XHDTYPE:
                path, size = _pax(name, text, path, size)
            else:
                path = text.rstrip(b"\0").decode("utf-8", "replace")
        elif head.type == tarfile.XGLTYPE:
            _extended(stream, head)
        else:
            path, size = path or head.name, head.size if size < 0 else size
            _refuse_strange(name, path, head)
            if head.isreg():
                content = stream.pieces(size)
                yield path, content
                for _ in content:
                    pass
                stream.exactly(-size % BLOCK)
            path, size = "", -1
        block = stream.exactly(BLOCK)
    while rest := stream.some(PIECE):
        if rest.strip(b"\0"):
            raise DataError(f"{name}: bytes follow the end of the tar archive. Get it again.")


def _extended(stream: _Stream, head: tarfile.TarInfo) -> bytes:
    if head.size > NAME_BYTES:
        raise DataError(
            f"{stream.name}: a tar header of {head.size:,} bytes; at most {NAME_BYTES:,} are read."
        )
    text = stream.exactly(head.size)
    stream.exactly(-head.size % BLOCK)
    return text


def _pax(name: str, text: bytes, path: str, size: int) -> tuple[str, int]:
    """The path and size that pax records ("LENGTH KEY=VALUE\\n") state, else those given."""
    try:
        while text:
            length = int(text[: text.index(b" ")])
            key, _, value = text[text.index(b" ") + 1 : length - 1].partition(b"=")
            if length < 5 or length > len(text):
                raise ValueError(f"length {length}")
            if key == b"path":
                path = value.decode("utf-8", "replace")
            elif key == b"size":
                size = int(value)
            text = text[length:]
    except ValueError as e:
        raise DataError(f"{name}: a damaged pax header ({e}). Get it again.") from e
    return path, size


def _refuse_strange(name: str, path: str, head: tarfile.TarInfo) -> None:
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"{name}: member {path!r} leads out of the archive. Do not trust this file.")
    if not (head.isreg() or head.isdir()) or head.type == tarfile.GNUTYPE_SPARSE:
        raise DataError(f"{name}: member {path!r} is a link, a device or sparse; expected files and folders.")
