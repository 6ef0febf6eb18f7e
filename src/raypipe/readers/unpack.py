"""Packed bytes unpacked under limits: gzip, and bz2 whose blocks all cores unpack side by side.

A block of bzip2 starts at any bit with 48 fixed bits, holds at most 900 kB and a checksum of its own, and
knows nothing of the others. Each is wrapped as a stream of one block, which `bz2` unpacks without the
interpreter's lock. What the checksums of all blocks make is compared with the stream's own, so no damage
passes. The bits of a mark stand inside a block by chance once in 2^48: that looks like damage. What looks
like it is read again from its start, in one piece, which decides and says what is wrong.

rapidgzip does the same, a little faster; reading a file object that was cut, it has waited without end.
Knows no files.
"""

from __future__ import annotations

import bz2
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.readers.rows import ReaderLimits

CHUNK = 1 << 18  # bytes that are handed to an inflater at a time, at most
PIECE = (
    1 << 20
)  # most bytes that one decompression step may give: a block has 900 kB, unless it is all one byte
FIRST_SHARE = 1 << 12
"""Bytes of a packed stream that are unpacked first, then twice as many: a stream costs by its own length,
where thousands of them are in one chunk, too. 64,000 of 37 bytes took 350 s."""
MAGIC = {b"BZh": "bzip2", b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
AGAIN = "Get the file again, and compare its size and digest with the publisher's."
BLOCK, END = 0x314159265359, 0x177245385090
HEAD = 4  # bytes of a stream's header: BZh and a digit
AHEAD = 2  # blocks for each core that wait or are unpacked; one takes .3 to 1 MB


def _inner(mark: int) -> dict[int, int]:
    """For each shift of a mark in bytes, its second and third byte, which it fills wholly -> the shift."""
    return {((mark << 8) >> (shift + 32)) & 0xFFFF: shift for shift in range(8)}


_PAIRS = {**_inner(BLOCK), **_inner(END)}  # no two marks and shifts have the same two bytes
_IS_PAIR = np.zeros(1 << 16, bool)
_IS_PAIR[list(_PAIRS)] = True


def marks(data: bytes | bytearray, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields the (bit, mark) of each mark that lies whole in `data` and starts at byte `start` or later.

    >>> [(bit, hex(mark)) for bit, mark in marks(bytes.fromhex("005dc914e14240"))]
    [(6, '0x177245385090')]
    """
    flat = np.frombuffer(data, np.uint8)[start + 1 :].astype(np.uint16)
    for at in np.flatnonzero(_IS_PAIR[(flat[:-1] << 8) | flat[1:]]).tolist():
        first = start + at  # the byte before the two
        bits = int.from_bytes(bytes(data[first : first + 7]).ljust(7, b"\0"))
        shift = _PAIRS[(bits >> 32) & 0xFFFF]
        mark = (bits >> (8 - shift)) & 0xFFFFFFFFFFFF
        if mark in (BLOCK, END) and len(data) * 8 >= first * 8 + shift + 48:
            yield first * 8 + shift, mark


def _bits(data: bytes | bytearray, start: int, end: int) -> int:
    last = (end + 7) // 8
    value = int.from_bytes(data[start // 8 : last]) >> (last * 8 - end)
    return value & ((1 << (end - start)) - 1)


def _blocks(raw: Iterable[bytes]) -> Iterator[bytes]:
    """Yields each block of bz2 streams as a stream of its own. Raises OSError for anything but whole ones."""
    data, head, crc = bytearray(), b"", 0
    start, looked = -1, HEAD  # the bit at which the block begins, -1: none has; bytes without a further mark
    for chunk in raw:
        data += chunk
        while len(data) >= HEAD + 6:
            if not head:
                head, crc, start, looked = bytes(data[:HEAD]), 0, -1, HEAD
                if not re.fullmatch(rb"BZh[1-9]", head):
                    raise OSError("no stream begins")
            end = 0
            for bit, mark in marks(data, looked):
                if mark == END and len(data) * 8 < bit + 80:
                    break  # looked at again when its checksum is whole
                if start < 0 and bit != HEAD * 8:
                    break
                if start >= 0:
                    value, count = _bits(data, start, bit), bit - start
                    own = (value >> (count - 80)) & 0xFFFFFFFF  # the block's checksum, behind its mark
                    crc = ((crc << 1 | crc >> 31) & 0xFFFFFFFF) ^ own
                    pad = -count % 8
                    whole = ((value << 48 | END) << 32 | own) << pad
                    yield head + whole.to_bytes((count + 80 + pad) // 8)
                start = bit
                if mark == END:
                    end = (bit + 80 + 7) // 8
                    break
            if end:
                if _bits(data, start + 48, start + 80) != crc:
                    raise OSError("the checksum of the stream is wrong")
                del data[:end]
                head = b""
                continue
            if start < 0 and len(data) >= HEAD + 10:
                raise OSError("no block begins")
            # A mark may be cut, and an END needs its checksum: the last 11 bytes are looked at again.
            looked, cut = max(len(data) - 11, HEAD if start < 0 else start // 8 + 1), max(start, 0) // 8
            del data[:cut]
            start, looked = max(start - 8 * cut, -1), looked - cut
            break
    if head or data:
        raise OSError("a stream ends in the middle")


def by_blocks(raw: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of bz2 streams, whose blocks all cores unpack. Raises OSError or EOFError for anything but
    whole streams, which may be none of their doing."""

    def unpack(block: bytes) -> tuple[bytes, bz2.BZ2Decompressor]:
        inflater = bz2.BZ2Decompressor()
        return inflater.decompress(block, PIECE), inflater

    def pieces(unpacking: Future[tuple[bytes, bz2.BZ2Decompressor]]) -> Iterator[bytes]:
        piece, inflater = unpacking.result()
        yield piece
        while not inflater.eof:
            if inflater.needs_input:
                raise OSError("a block ends in the middle")
            yield inflater.decompress(b"", PIECE)

    waiting = deque[Future[tuple[bytes, bz2.BZ2Decompressor]]]()
    with ThreadPoolExecutor(cores(), thread_name_prefix="bz2") as pool:
        for block in _blocks(raw):
            waiting.append(pool.submit(unpack, block))
            if len(waiting) > AHEAD * cores():
                yield from pieces(waiting.popleft())
        while waiting:
            yield from pieces(waiting.popleft())


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


_Inflater: TypeAlias = bz2.BZ2Decompressor | _Gunzip


def unpacked(
    name: str,
    packing: str,
    raw: Iterator[bytes],
    limits: ReaderLimits,
    again: Callable[[], Iterator[bytes]] | None = None,
) -> Iterator[bytes]:
    """The bytes of a stream packed as "bz2" or "gz". `again` gives a bz2 stream from its start: with it all
    cores unpack its blocks. Raises DataError, which names the file, for one that is damaged or explodes."""
    taken = given = 0

    def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal taken
        for chunk in chunks:
            taken += len(chunk)
            yield chunk

    def bounded(pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal given
        for piece in pieces:
            given += len(piece)
            if given > limits.inflated_bytes or given > max(limits.ratio_free_bytes, taken * limits.ratio):
                raise DataError(
                    f"{name}: {taken:,} bytes unpack to more than {given:,}; expected at most "
                    f"{limits.ratio} times as many and {limits.inflated_bytes:,} in all. This is no dataset."
                )
            yield piece

    if again is not None:
        with suppress(OSError, EOFError):
            yield from bounded(by_blocks(counted(raw)))
            return
        raw = again()
    before, taken, given = given, 0, 0
    for piece in bounded(_inflated(name, packing, counted(raw))):
        if given > before:
            yield piece[max(before - given, -len(piece)) :]


def _inflated(name: str, packing: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    magic, new = (b"BZh", bz2.BZ2Decompressor) if packing == "bz2" else (b"\x1f\x8b", _Gunzip)
    inflater: _Inflater | None = None
    streams, given, rest, share = 0, 0, b"", FIRST_SHARE

    def stranger() -> DataError:
        if streams:
            return DataError(f"{name}: bytes that are not {packing} follow the end of the archive. {AGAIN}")
        found = packing_of(rest) or f"neither: {rest[:8]!r}"
        why = f"its name says {packing}, its first bytes {found}. Rename it or get it again."
        return DataError(f"{name}: {why}")

    for chunk in raw:
        rest += chunk
        while rest or (inflater and not inflater.needs_input):
            if inflater is None:
                if packing == "gz" and streams:
                    rest = rest.lstrip(b"\0")  # gzip allows padding behind the last member
                if len(rest) < len(magic):
                    break
                if not rest.startswith(magic):
                    raise stranger()
                inflater, share = new(), FIRST_SHARE
            handed, rest = (rest[:share], rest[share:]) if inflater.needs_input else (b"", rest)
            share = min(2 * share, CHUNK)
            try:
                piece = inflater.decompress(handed, PIECE)
            except (OSError, zlib.error, EOFError) as e:
                raise DataError(f"{name}: damaged after {given:,} good bytes ({e}). {AGAIN}") from e
            if piece:
                given += len(piece)
                yield piece
            if inflater.eof:
                rest, inflater, streams = inflater.unused_data + rest, None, streams + 1
    if rest:
        raise stranger()
    if inflater is not None:
        raise DataError(f"{name}: ends in the middle, after {given:,} unpacked bytes. {AGAIN}")


def packing_of(head: bytes) -> str | None:
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
