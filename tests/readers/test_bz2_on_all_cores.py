"""A large bz2 file is unpacked by its blocks: the bytes are the standard library's, and no damage passes."""

import bz2

import numpy as np
import pytest

from raypipe.core.errors import DataError
from raypipe.readers import files
from raypipe.readers.rows import LIMITS, ReadCounts


@pytest.fixture(scope="module")
def data():
    """One line that packs to some 1.6 MB."""
    return b'"' + np.random.default_rng(1).bytes(3 << 19).hex().encode() + b'"\n'


@pytest.fixture(scope="module")
def packed(data):
    return bz2.compress(data)


def found(path, packed):
    """A packed file that is large enough for all cores."""
    path.write_bytes(packed)
    return only(path)


def only(path):
    [found] = files.find([path], lambda name: True)
    assert files.size([found]) >= files.SEVERAL
    return found


def read(source):
    counts = ReadCounts()
    whole = b"".join(files.stream(source, counts, LIMITS))
    return whole, counts.bytes_read


@pytest.mark.parametrize("level", [1, 9])
def test_two_streams_have_the_bytes_of_the_library(tmp_path, data, level):
    twice = bz2.compress(data, level) + bz2.compress(data[:100_000], level)
    assert read(found(tmp_path / "x.jsonl.bz2", twice)) == (data + data[:100_000], len(twice))


def test_parts_are_read_as_one_file_wherever_they_are_cut(tmp_path, data, packed):
    for nth, (start, end) in enumerate([(0, 3), (3, 700_001), (700_001, None)], 1):
        (tmp_path / f"x.jsonl.bz2.part{nth}").write_bytes(packed[start:end])
    assert read(only(tmp_path / "x.jsonl.bz2.part1")) == (data, len(packed))


def test_a_reader_may_stop_in_the_middle(tmp_path, packed):
    pieces = files.stream(found(tmp_path / "x.jsonl.bz2", packed), ReadCounts(), LIMITS)
    assert next(pieces)
    pieces.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_flipped_bit_anywhere_is_damage(tmp_path, data, packed, share):
    damaged = bytearray(packed)
    damaged[4 + int(share * (len(packed) - 12))] ^= 1
    source, given = found(tmp_path / "x.jsonl.bz2", bytes(damaged)), 0
    with pytest.raises(DataError, match=r"damaged after [0-9,]+ good bytes"):
        for piece in files.stream(source, ReadCounts(), LIMITS):
            given += len(piece)
    assert given <= len(data)


def test_an_end_that_is_missing_and_bytes_behind_it_are_told_apart(tmp_path, packed):
    with pytest.raises(DataError, match="ends in the middle"):
        read(found(tmp_path / "cut.jsonl.bz2", packed[:-1000]))
    with pytest.raises(DataError, match="bytes that are not bz2 follow"):
        read(found(tmp_path / "more.jsonl.bz2", packed + b"rest"))
    with pytest.raises(DataError, match=r"its name says bz2, its first bytes .*Rename it"):
        read(found(tmp_path / "other.jsonl.bz2", b"neither" + packed))


def test_a_file_that_explodes_is_refused_by_its_ratio(tmp_path):
    run = bz2.compress(bytes(900_000 * 50))
    with pytest.raises(DataError, match="This is no dataset"):
        for _ in files.stream(found(tmp_path / "x.jsonl.bz2", run * 25_000), ReadCounts(), LIMITS):
            pass
