"""A bz2 stream that is unpacked by its blocks has the bytes of the library, and no damage passes."""

import bz2

import numpy as np
import pytest

from raypipe.core.errors import DataError
from raypipe.readers import files
from raypipe.readers.rows import LIMITS, ReadCounts
from raypipe.readers.unpack import by_blocks


def words(count, seed=0):
    """Lines of words that pack to a third."""
    rng = np.random.default_rng(seed)
    return b"\n".join(b"%d w%d" % (i, n) for i, n in enumerate(rng.integers(0, 1 << 40, count)))


def unpacked(packed, chunk=10_000):
    """Unpacks the blocks of some streams."""
    return b"".join(by_blocks(packed[at : at + chunk] for at in range(0, len(packed), chunk)))


@pytest.mark.parametrize("level", [1, 2, 9])
@pytest.mark.parametrize("chunk", [1, 7, 10_000, 1 << 20])
def test_the_bytes_are_those_of_the_library(level, chunk):
    data = words(30_000 if chunk > 7 else 300)
    packed = bz2.compress(data, level)
    assert unpacked(packed, chunk) == data
    assert unpacked(packed + bz2.compress(b"") + packed, chunk) == 2 * data
    with pytest.raises(OSError, match=r"a stream ends|no stream begins"):
        unpacked(packed + b"rest", chunk)


def test_an_empty_stream_and_a_run_of_one_byte_are_read_in_pieces():
    assert unpacked(bz2.compress(b"")) == b""
    run = bytes(8 << 20)
    pieces = list(by_blocks([bz2.compress(run)]))
    assert b"".join(pieces) == run and max(map(len, pieces)) <= 1 << 20


def test_a_flipped_bit_anywhere_is_noticed():
    packed = bz2.compress(words(20_000), 1)
    for at in np.linspace(4, len(packed) - 1, 20).astype(int).tolist():
        damaged = bytearray(packed)
        damaged[at] ^= 1 << at % 8
        try:
            data = unpacked(bytes(damaged))
        except (OSError, EOFError):
            continue
        assert at == len(packed) - 1 and data == words(20_000), at  # the last bits only fill the byte


def large(tmp_path, packed):
    """A packed file that is large enough for threads."""
    path = tmp_path / "x.jsonl.bz2"
    path.write_bytes(packed)
    [found] = files.find([path])
    assert path.stat().st_size >= files.SEVERAL
    return found


@pytest.mark.slow
def test_damage_in_a_large_file_is_told_as_in_a_small_one(tmp_path):
    data = np.random.default_rng(1).bytes(3 << 19)
    packed = bz2.compress(b'"' + data.hex().encode() + b'"\n')
    path = large(tmp_path, packed)
    assert b"".join(files.stream(path, ReadCounts(), LIMITS)) == bz2.decompress(packed)
    damaged = bytearray(packed)
    damaged[len(packed) * 2 // 3] ^= 1
    path = large(tmp_path, bytes(damaged))
    given = 0
    with pytest.raises(DataError, match=r"damaged after [0-9,]+ good bytes"):
        for piece in files.stream(path, ReadCounts(), LIMITS):
            given += len(piece)
    assert 0 < given < 2 * len(data)
    with pytest.raises(DataError, match="ends in the middle"):
        list(files.stream(large(tmp_path, packed[:-1000]), ReadCounts(), LIMITS))
