"""Blocks of a bz2 file, unpacked side by side by rapidgzip: on two cores in some half of the time of `bz2`.

Knows a file's parts and nothing of what is inside.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

CHUNK = 1 << 18  # bytes read at a time


class BlocksDamaged(Exception):
    """A file that does not unpack by its blocks, or has bytes behind its end."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def unpacked_blocks(parts: tuple[Path, ...], most: int) -> Iterator[tuple[bytes, int]]:
    """Pieces of at most `most` bytes, each with the packed bytes up to its block. Raises BlocksDamaged."""
    from rapidgzip import IndexedBzip2File

    try:
        with (
            io.BufferedReader(_Joined(parts), CHUNK) as packed,
            IndexedBzip2File(packed, parallelization=cores()) as blocks,
        ):
            while piece := blocks.read(most):
                yield piece, -(-blocks.tell_compressed() // 8)
            end, whole = -(-blocks.tell_compressed() // 8), packed.seek(0, io.SEEK_END)
    except Exception as e:  # what its C++ throws is a RuntimeError, a ValueError or another
        raise BlocksDamaged(str(e)) from e
    if end != whole:
        raise BlocksDamaged(f"{whole - end} bytes behind the end")


class _Joined(io.RawIOBase):
    """The parts of a split file, read as one."""

    def __init__(self, parts: tuple[Path, ...]) -> None:
        self._files = [part.open("rb") for part in parts]
        self._ends = list(accumulate(part.stat().st_size for part in parts))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._ends[-1])[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        nth = bisect_right(self._ends, self._at)
        if nth == len(self._files):
            return 0
        self._files[nth].seek(self._at - (self._ends[nth - 1] if nth else 0))
        taken = self._files[nth].readinto(buffer)
        self._at += taken
        return taken

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()
