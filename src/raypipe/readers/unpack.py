"""Decompression under limits: gzip in one thread, and large bz2 files block by block on all cores.

A block of bzip2 starts at any bit with a mark of 48 fixed bits. It holds at most 900 kB and its own checksum,
and depends on no other block. Each block is wrapped as a stream of one block, which `bz2` unpacks without the
interpreter's lock. The checksum combined from all blocks must equal that of the stream, so damage is always
detected. By chance, once in 2^48 positions, the bits of a mark occur inside a block; this looks like damage,
too. If anything looks damaged, the file is therefore read again from its start, serially. Only this serial
read decides whether the file is damaged, and reports the fault.

rapidgzip does the same, a little faster, but it has hung on a truncated file object. This module works on
streams of bytes and opens no files.
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

CHUNK = 1 << 18  # most bytes passed to a decompressor at a time
PIECE = 1 << 20  # most bytes that a step unpacks: a block has 900 kB, or more if it repeats one byte
FIRST_SHARE = 1 << 12
"""Bytes of a stream that are unpacked first; each next share is twice as large. A short stream costs only its
own length, even if a chunk holds thousands of them: 64,000 of 37 bytes took 350 s without this."""
MAGIC = {b"BZh": "bzip2", b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
AGAIN = "Get the file again, and compare its size and digest with the publisher's."
BLOCK, END = 0x314159265359, 0x177245385090  # marks that begin a block, and the end of a stream
HEAD = 4  # bytes of a stream's header: BZh and a digit
AHEAD = 8  # blocks per core that wait or are being unpacked while rows are written; a block takes .3 to 1 MB


def _inner(mark: int) -> dict[int, int]:
    """Maps the two bytes after a byte to the bit (0 to 7) of that byte at which the mark begins."""
    return {((mark << 8) >> (shift + 32)) & 0xFFFF: shift for shift in range(8)}


_PAIRS = {**_inner(BLOCK), **_inner(END)}  # two marks at eight bits each give 16 different pairs
_IS_PAIR = np.zeros(1 << 16, bool)
_IS_PAIR[list(_PAIRS)] = True


def marks(data: bytes | bytearray, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields (bit, mark) for each complete mark in `data` that starts at byte `start` or later.

    >>> [(bit, hex(mark)) for bit, mark in marks(bytes.fromhex("005dc914e14240"))]
    [(6, '0x177245385090')]
    """
    flat = np.frombuffer(data, np.uint8)[start + 1 :].astype(np.uint16)
    for at in np.flatnonzero(_IS_PAIR[(flat[:-1] << 8) | flat[1:]]).tolist():
        first = start + at  # offset of the byte before the pair
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
    """Yields each block of bz2 streams as its own stream. Raises OSError for input that looks damaged."""
    data, head, crc = bytearray(), b"", 0
    start, searched = -1, HEAD  # first bit of the current block, or -1; bytes already searched for marks
    for chunk in raw:
        data += chunk
        while len(data) >= HEAD + 6:
            if not head:
                head, crc, start, searched = bytes(data[:HEAD]), 0, -1, HEAD
                if not re.fullmatch(rb"BZh[1-9]", head):
                    raise OSError("no stream begins")
            end = 0
            for bit, mark in marks(data, searched):
                if mark == END and len(data) * 8 < bit + 80:
                    break  # searched again when its checksum is complete
                if start < 0 and bit != HEAD * 8:
                    break
                if start >= 0:
                    value, count = _bits(data, start, bit), bit - start
                    own = (value >> (count - 80)) & 0xFFFFFFFF  # the block's checksum, which follows its mark
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
            # A mark may be incomplete, and an END needs its checksum: the last 11 bytes are searched again.
            searched, cut = max(len(data) - 11, HEAD if start < 0 else start // 8 + 1), max(start, 0) // 8
            del data[:cut]
            start, searched = max(start - 8 * cut, -1), searched - cut
            break
    if head or data:
        raise OSError("a stream ends in the middle")


def by_blocks(raw: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the unpacked bytes of bz2 streams, using all cores. Raises OSError or EOFError if the streams
    look damaged or cut. The streams may still be good: bits inside a block can look like a mark."""

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
    """Decompressor of one gzip member, by zlib, which checks its CRC; has the methods of BZ2Decompressor."""

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
    """Yields the unpacked bytes of a stream whose `packing` is "bz2" or "gz". If `again` is given, all cores
    unpack the blocks of a bz2 stream; if they look damaged, `again` opens it a second time. Raises DataError
    if the stream is damaged, cut, of another kind or over the limits."""
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
                most = f"at most {limits.ratio} times as many and {limits.inflated_bytes:,} in all"
                found = f"{taken:,} bytes unpack to more than {given:,}"
                raise DataError(f"{name}: {found}; expected {most}. This is no dataset.")
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
        found = packing_of(rest) or f"{rest[:8]!r}"
        return DataError(f"{name}: expected {packing} by its name, found {found}. Rename it or get it again.")

    for chunk in raw:
        rest += chunk
        while rest or (inflater and not inflater.needs_input):
            if inflater is None:
                if packing == "gz" and streams:
                    rest = rest.lstrip(b"\0")  # gzip allows padding after the last member
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
