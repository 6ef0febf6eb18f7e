"""Packed bytes unpacked under limits: gzip, and bz2 whose blocks all cores unpack side by side.

A block of bzip2 starts at any bit with 48 fixed bits, holds at most 900 kB and a checksum of its own, and
knows nothing of the others. Each is wrapped as a stream of one block, which `bz2` unpacks without the
interpreter's lock. What the checksums of all blocks make is compared with the stream's own, so no damage
passes. The bits of a mark stand inside a block by chance once in 2^48: that looks like damage, and such a
stream is read again from its start, in one piece, which decides.

rapidgzip does the same, a little faster; reading a file object that was cut, it has waited without end.
Knows no files.
"""

from __future__ import annotations

import bz2
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.readers.rows import ReaderLimits

CHUNK = 1 << 18  # bytes that are handed to an inflater at a time, at most
PIECE = 1 << 20  # most bytes that one decompression step may give
FIRST_SHARE = 1 << 12
"""Bytes of a packed stream that are unpacked first, then twice as many: a stream costs by its own length,
where thousands of them are in one chunk, too. 64,000 of 37 bytes took 350 s."""
MAGIC = {b"BZh": "bzip2", b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
AGAIN = "Get the file again, and compare its size and digest with the publisher's."
BLOCK, END = 0x314159265359, 0x177245385090
HEAD = 4  # bytes of a stream's header: BZh and a digit
FIRST = 1 << 20  # bytes of a block that a thread unpacks ahead: 900 kB, unless runs of one byte make it more
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


@dataclass(frozen=True, slots=True)
class Bits:
    """Some bits of a stream: those of `value`, `count` of them, leading zeros included."""

    value: int
    count: int

    def before(self, other: Bits) -> Bits:
        return Bits(self.value << other.count | other.value, self.count + other.count)

    def crc(self) -> int:
        """A block's own checksum, which stands behind its mark."""
        return (self.value >> (self.count - 80)) & 0xFFFFFFFF


def _cut(data: bytes | bytearray, start: int, end: int) -> Bits:
    last = (end + 7) // 8
    value = int.from_bytes(data[start // 8 : last]) >> (last * 8 - end)
    count = end - start
    return Bits(value & ((1 << count) - 1), count)


_Unpacking: TypeAlias = tuple[bytes, bz2.BZ2Decompressor]
"""A block on its way: its next bytes, and what unpacks the rest where there is more."""


def _unpacked(head: bytes, block: Bits) -> _Unpacking:
    """Unpacks a block, wrapped as a stream of its own. Raises OSError for bits that are none."""
    whole = block.before(Bits(END, 48)).before(Bits(block.crc(), 32))
    pad = -whole.count % 8
    inflater = bz2.BZ2Decompressor()
    first = inflater.decompress(head + (whole.value << pad).to_bytes((whole.count + pad) // 8), FIRST)
    if inflater.needs_input and not inflater.eof:
        raise OSError("a block ends in the middle")
    return first, inflater


class BlockInflater:
    """Unpacks one stream on the threads of a pool, with the interface of BZ2Decompressor.

    `decompress` raises OSError for a damaged stream. While blocks wait it may return b"" and take more.
    """

    def __init__(self, pool: ThreadPoolExecutor, cores: int) -> None:
        self._pool, self._most = pool, AHEAD * cores
        self._data = bytearray()  # from the start of the block that is not whole yet
        self._head = b""
        self._looked = 0  # bytes of `_data` in which there is no further mark
        self._start: int | None = None  # bit of `_data` at which that block starts; None: no block was found
        self._crc = 0
        self._ended = False
        self._waiting: deque[Future[_Unpacking]] = deque()
        self._open: _Unpacking | None = None  # the block that is being given out
        self.unused_data = b""

    @property
    def eof(self) -> bool:
        return self._ended and not self._waiting and self._open is None

    @property
    def needs_input(self) -> bool:
        full = self._ended or len(self._waiting) >= self._most
        return not (self._open is not None or (self._waiting and full))

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next bytes, at most `max_length`; b"" where more input is needed first."""
        if self._ended:
            self.unused_data += data
        else:
            self._take(data)
        if self._open is None and self._waiting and not self.needs_input:
            self._open = self._waiting.popleft().result()
        if self._open is None:
            return b""
        head, inflater = self._open
        piece, head = head[:max_length] or inflater.decompress(b"", max_length), head[max_length:]
        self._open = (head, inflater) if head or not inflater.eof else None
        return piece

    def _take(self, data: bytes) -> None:
        self._data += data
        if not self._head:
            if len(self._data) < HEAD:
                return
            self._head = bytes(self._data[:HEAD])
            if not (self._head.startswith(b"BZh") and self._head[3:].isdigit() and self._head[3:] != b"0"):
                raise OSError("Invalid data stream")
            self._looked = HEAD
        cut = 0  # bytes that are handed on
        for bit, mark in marks(self._data, self._looked):
            if self._start is None and bit != HEAD * 8:
                break
            if mark == END:
                if len(self._data) * 8 < bit + 80:
                    continue  # looked at again when its checksum is whole
                crc = self._crc if self._start is None else self._with(_cut(self._data, self._start, bit))
                if _cut(self._data, bit + 48, bit + 80).value != crc:
                    raise OSError("the checksum of the stream is wrong")
            if self._start is not None:
                block = _cut(self._data, self._start, bit)
                self._waiting.append(self._pool.submit(_unpacked, self._head, block))
                self._crc = self._with(block)
            self._start, cut = bit, bit // 8
            if mark == END:
                end = (bit + 80 + 7) // 8
                self._ended, self.unused_data = True, bytes(self._data[end:])
                self._data.clear()
                return
        if self._start is None and len(self._data) >= HEAD + 6:
            raise OSError("Invalid data stream")
        # A mark may be cut by the end, and an END needs its checksum: the last 11 bytes are looked at again.
        self._looked = max(len(self._data) - 11, HEAD if self._start is None else self._start // 8 + 1)
        if cut:
            del self._data[:cut]
            self._looked -= cut
            self._start = (self._start or 0) - 8 * cut

    def _with(self, block: Bits) -> int:
        return ((self._crc << 1 | self._crc >> 31) & 0xFFFFFFFF) ^ block.crc()


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


def unpacked(
    name: str,
    packing: str,
    raw: Iterator[bytes],
    limits: ReaderLimits,
    again: Callable[[], Iterator[bytes]] | None = None,
) -> Iterator[bytes]:
    """The bytes of a stream packed as "bz2" or "gz". `again` gives a bz2 stream from its start: with it all
    cores unpack its blocks. Raises DataError, which names the file, for one that is damaged or explodes."""
    new = bz2.BZ2Decompressor if packing == "bz2" else _Gunzip
    if again is None:
        yield from _inflated(name, packing, raw, limits, new)
        return
    given = 0
    with ThreadPoolExecutor(cores(), thread_name_prefix="bz2") as pool:
        try:
            for piece in _inflated(name, packing, raw, limits, lambda: BlockInflater(pool, cores())):
                given += len(piece)
                yield piece
            return
        except _Damaged:
            skipped = 0
    for piece in _inflated(name, packing, again(), limits, new):
        if (skipped := skipped + len(piece)) > given:
            yield piece[max(given - skipped, -len(piece)) :]


def _inflated(
    name: str, packing: str, raw: Iterator[bytes], limits: ReaderLimits, new: Callable[[], _Inflater]
) -> Iterator[bytes]:
    magic = b"BZh" if packing == "bz2" else b"\x1f\x8b"
    inflater: _Inflater | None = None
    streams, taken, given, rest, share = 0, 0, 0, b"", FIRST_SHARE
    for chunk in raw:
        taken += len(chunk)
        rest += chunk
        while rest or (inflater and not inflater.needs_input):
            if inflater is None:
                if packing == "gz" and streams:
                    rest = rest.lstrip(b"\0")  # gzip allows padding behind the last member
                if len(rest) < len(magic):
                    break
                if not rest.startswith(magic):
                    raise _stranger(name, packing, rest, streams)
                inflater, share = new(), FIRST_SHARE
            handed, rest = (rest[:share], rest[share:]) if inflater.needs_input else (b"", rest)
            share = min(2 * share, CHUNK)
            try:
                piece = inflater.decompress(handed, PIECE)
            except (OSError, zlib.error, EOFError) as e:
                raise _Damaged(f"{name}: damaged after {given:,} good bytes ({e}). {AGAIN}") from e
            given += len(piece)
            if given > limits.inflated_bytes or given > max(limits.ratio_free_bytes, taken * limits.ratio):
                raise DataError(
                    f"{name}: {taken:,} bytes unpack to more than {given:,}; expected at most "
                    f"{limits.ratio} times as many and {limits.inflated_bytes:,} in all. This is no dataset."
                )
            if piece:
                yield piece
            if inflater.eof:
                rest, inflater, streams = inflater.unused_data + rest, None, streams + 1
    if rest:
        raise _stranger(name, packing, rest, streams)
    if inflater is not None:
        raise _Damaged(f"{name}: ends in the middle, after {given:,} unpacked bytes. {AGAIN}")


def _stranger(name: str, packing: str, head: bytes, streams: int) -> DataError:
    if streams:
        return DataError(f"{name}: bytes that are not {packing} follow the end of the archive. {AGAIN}")
    found = packing_of(head) or f"neither: {head[:8]!r}"
    return DataError(f"{name}: its name says {packing}, its first bytes {found}. Rename it or get it again.")


def packing_of(head: bytes) -> str | None:
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
