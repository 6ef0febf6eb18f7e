"""Whole files that cannot be trusted stop the reading with a message; odd but sound ones are read."""

import bz2
import gzip
import io
import tarfile
import zlib
from pathlib import Path

import pytest

from raypipe import readers
from raypipe.core.errors import DataError
from raypipe.readers import ReadCounts, ReaderLimits, files, lines

LINES = b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'
VALUES = [{"a": 1}, {"a": 2}, {"a": 3}]
SMALL = ReaderLimits(line_bytes=1 << 20, inflated_bytes=8 << 20, ratio=50, ratio_free_bytes=1 << 20)


def values(*paths: Path, counts: ReadCounts | None = None, limits: ReaderLimits = SMALL) -> list[object]:
    found = files.find(paths)
    return [line.value for line in lines.read(found, counts or ReadCounts(), limits)]


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def tar_of(members: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def noise(size: int) -> bytes:
    """Lines of JSON that do not compress well."""
    seed, out = 1, []
    while sum(map(len, out[-1:])) + 40 * len(out) < size:
        seed = seed * 6364136223846793005 % (1 << 64)
        out.append(b'{"a": "%016x%016x"}\n' % (seed, seed * 31 % (1 << 64)))
    return b"".join(out)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.jsonl", bytes), ("x.jsonl.bz2", bz2.compress), ("x.jsonl.gz", gzip.compress)],
)
def test_plain_bz2_and_gz_lines_are_the_same(tmp_path, name, pack):
    assert values(write(tmp_path, name, pack(LINES))) == VALUES


@pytest.mark.parametrize("pack", [bz2.compress, gzip.compress])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_archive_stops_the_reading(tmp_path, pack, share):
    whole = pack(noise(300_000))
    name = "x.jsonl.bz2" if pack is bz2.compress else "x.jsonl.gz"
    path = write(tmp_path, name, whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="ends in the middle"):
        values(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_flipped_bit_stops_the_reading(tmp_path, share):
    for name, pack in (("x.jsonl.bz2", bz2.compress), ("x.jsonl.gz", gzip.compress)):
        damaged = bytearray(pack(noise(300_000)))
        damaged[int(len(damaged) * share)] ^= 0x10
        with pytest.raises(DataError, match=r"damaged|follow the end|ends in the middle"):
            values(write(tmp_path, name, bytes(damaged)))


def test_a_wrong_gzip_checksum_stops_the_reading(tmp_path):
    damaged = bytearray(gzip.compress(LINES))
    damaged[-8] ^= 1
    with pytest.raises(DataError, match="incorrect data check"):
        values(write(tmp_path, "x.jsonl.gz", bytes(damaged)))


@pytest.mark.parametrize("garbage", [b"x", b"<html>", b"BZx", b"\0\0\0\0"])
def test_bytes_behind_a_bz2_stop_the_reading(tmp_path, garbage):
    with pytest.raises(DataError, match="follow the end"):
        values(write(tmp_path, "x.jsonl.bz2", bz2.compress(LINES) + garbage))


def test_gzip_may_be_padded_with_zeros_and_nothing_else(tmp_path):
    assert values(write(tmp_path, "x.jsonl.gz", gzip.compress(LINES) + bytes(700))) == VALUES
    with pytest.raises(DataError, match="follow the end"):
        values(write(tmp_path, "y.jsonl.gz", gzip.compress(LINES) + bytes(700) + b"x"))


def test_a_bz2_bomb_stops_under_the_cap(tmp_path):
    bomb = bz2.compress(b" " * (64 << 20))
    assert len(bomb) < 200
    with pytest.raises(DataError, match="This is no dataset"):
        values(write(tmp_path, "x.jsonl.bz2", bomb))


def test_a_gzip_bomb_stops_under_the_cap(tmp_path):
    bomb = gzip.compress(b" " * (64 << 20))
    with pytest.raises(DataError, match="This is no dataset"):
        values(write(tmp_path, "x.jsonl.gz", bomb))


@pytest.mark.slow
def test_a_slow_bomb_stops_at_the_byte_cap(tmp_path):
    pack = zlib.compressobj(0, wbits=31)  # stored: ratio 1
    content = pack.compress(noise(9 << 20)) + pack.flush()
    with pytest.raises(DataError, match="8,388,608 in all"):
        values(write(tmp_path, "x.jsonl.gz", content))


def test_a_small_file_of_equal_rows_is_no_bomb(tmp_path):
    content = b'{"a": 1}\n' * 50_000
    packed = bz2.compress(content)
    assert len(content) > SMALL.ratio * len(packed)
    assert len(values(write(tmp_path, "x.jsonl.bz2", packed))) == 50_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.bz2", LINES),
        ("x.jsonl.bz2", gzip.compress(LINES)),
        ("x.jsonl.gz", bz2.compress(LINES)),
        ("x.jsonl", bz2.compress(LINES)),
        ("x.jsonl", gzip.compress(LINES)),
        ("x.jsonl", b"\xfd7zXZ\0..."),
        ("x.jsonl", tar_of({"a.jsonl": LINES})),
        ("x.jsonl.bz2", bz2.compress(tar_of({"a.jsonl": LINES}))),
        ("x.jsonl.bz2", bz2.compress(gzip.compress(LINES))),
        ("x.tar", LINES * 40),
        ("x.tar", bz2.compress(LINES)),
        ("x.tar.bz2", bz2.compress(LINES * 40)),
    ],
)
def test_a_name_that_contradicts_the_bytes_stops_the_reading(tmp_path, name, content):
    with pytest.raises(DataError, match=name):
        values(write(tmp_path, name, content))


def test_many_bz2_streams_in_one_file_are_read_as_one(tmp_path):
    packed = bz2.compress(LINES[:13]) + bz2.compress(b"") + bz2.compress(LINES[13:])
    assert values(write(tmp_path, "x.jsonl.bz2", packed)) == VALUES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b""),
        ("x.jsonl.bz2", b""),
        ("x.jsonl.bz2", bz2.compress(b"")),
        ("x.jsonl.gz", gzip.compress(b"")),
        ("x.tar", tar_of({})),
        ("x.tar.bz2", bz2.compress(tar_of({"a.jsonl": b""}))),
    ],
)
def test_an_empty_file_has_no_rows(tmp_path, name, content):
    counts = ReadCounts()
    assert values(write(tmp_path, name, content), counts=counts) == []
    assert counts.empty_files == (not content)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_gives_the_lines_of_its_members_in_order(tmp_path, format):
    deep = "d" * 90 + "/" + "e" * (140 if format != tarfile.USTAR_FORMAT else 60) + ".jsonl"
    members = {
        deep: LINES[:9],
        "d/b.jsonl": LINES[9:18],
        "._b.jsonl": b"\0\1",
        "c.jsonl": LINES[18:],
        "LIES": b"no",
    }
    counts = ReadCounts()
    path = write(tmp_path, "x.tar.bz2", bz2.compress(tar_of(members, format)))
    found = list(lines.read(files.find([path]), counts, SMALL))
    assert [line.value for line in found] == VALUES
    assert found[0].where == f"{path}/{deep}:1"
    assert counts.other_files == 2


def test_a_tar_without_lines_says_so(tmp_path):
    with pytest.raises(DataError, match=r"expected \.jsonl files in the archive; found 1"):
        values(write(tmp_path, "x.tar", tar_of({"a.csv": b"1,2"})))


@pytest.mark.parametrize("name", ["../x.jsonl", "a/../../x.jsonl", "/etc/x.jsonl", "..\\x.jsonl"])
def test_a_tar_member_that_leads_out_of_the_archive_stops_the_reading(tmp_path, name):
    with pytest.raises(DataError, match="leads out of the archive"):
        values(write(tmp_path, "x.tar", tar_of({name: LINES})))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_in_a_tar_stops_the_reading(tmp_path, kind):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("x.jsonl")
        info.type, info.linkname = kind, "y.jsonl"
        tar.addfile(info)
    with pytest.raises(DataError, match="link, a device"):
        values(write(tmp_path, "x.tar", out.getvalue()))


@pytest.mark.parametrize("cut", [300, 512, 700, 1024, 1536, 1900])
def test_a_tar_that_was_cut_anywhere_stops_the_reading(tmp_path, cut):
    whole = tar_of({"a.jsonl": LINES, "b.jsonl": LINES}, tarfile.USTAR_FORMAT)
    with pytest.raises(DataError, match="ends in the middle"):
        values(write(tmp_path, "x.tar", whole[:cut]))


def test_a_damaged_header_between_members_stops_the_reading(tmp_path):
    damaged = bytearray(tar_of({"a.jsonl": LINES, "b.jsonl": LINES}, tarfile.USTAR_FORMAT))
    damaged[1024] ^= 1
    with pytest.raises(DataError, match="expected a tar header"):
        values(write(tmp_path, "x.tar", bytes(damaged)))


def test_a_long_name_of_a_tar_without_its_member_or_of_megabytes_stops_the_reading(tmp_path):
    named = tar_of({"d" * 300 + ".jsonl": LINES})  # a header for the name, the name, a header, the content
    with pytest.raises(DataError, match="expected a tar header"):
        values(write(tmp_path, "x.tar", named[:1024] + bytes(10_240)))
    with pytest.raises(DataError, match="a tar header of 2,0"):
        values(write(tmp_path, "x.tar", tar_of({"d" * 2_000_000 + ".jsonl": LINES})))


def test_bytes_behind_a_tar_stop_the_reading(tmp_path):
    with pytest.raises(DataError, match="bytes follow the end"):
        values(write(tmp_path, "x.tar", tar_of({"a.jsonl": LINES}) + b"x"))


@pytest.mark.parametrize("first", [0, 1])
def test_split_parts_are_put_together_in_numeric_order_whichever_is_named(tmp_path, first):
    packed = bz2.compress(tar_of({"a.jsonl": noise(60_000), "b.jsonl": LINES}))
    step = len(packed) // 11
    parts = [
        write(tmp_path, f"x.tar.bz2.part{first + i}", packed[i * step : (i + 1) * step if i < 11 else None])
        for i in range(12)
    ]
    whole = values(write(tmp_path, "y.tar.bz2", packed))
    assert whole[-3:] == VALUES
    counts = ReadCounts()
    assert values(parts[7], counts=counts) == whole
    assert (counts.files, counts.bytes_read) == (1, len(packed))
    assert readers.files_of([parts[7]], "crag") == parts
    assert values(*parts) == whole
    (tmp_path / "y.tar.bz2").unlink()
    assert values(tmp_path) == whole


@pytest.mark.parametrize("gone", [1, 2])
def test_a_missing_part_is_named(tmp_path, gone):
    for n in {1, 2, 3} - {gone}:
        write(tmp_path, f"x.tar.bz2.part{n}", b"BZh")
    with pytest.raises(DataError, match=f"part{gone} missing, part"):
        values(tmp_path)


def test_a_missing_last_part_stops_the_reading(tmp_path):
    packed = bz2.compress(tar_of({"a.jsonl": LINES}))
    write(tmp_path, "x.tar.bz2.part0", packed[:100])
    with pytest.raises(DataError, match="ends in the middle"):
        values(tmp_path)


def test_a_part_whose_download_is_not_finished_is_named(tmp_path):
    write(tmp_path, "x.tar.bz2.part1", b"BZh")
    write(tmp_path, "x.tar.bz2.part2.partial", b"")
    with pytest.raises(DataError, match=r"part2\.partial is not whole"):
        values(tmp_path)


def test_a_folder_gives_its_readable_files_in_name_order(tmp_path):
    (tmp_path / "kg").mkdir()
    write(tmp_path, "b.jsonl", LINES[9:])
    write(tmp_path, "a.jsonl.gz", gzip.compress(LINES[:9]))
    write(tmp_path, "README.md", b"words")
    assert values(tmp_path) == VALUES


def test_what_is_not_there_or_not_readable_is_said(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        values(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=r"expected files named \.jsonl or \.tar"):
        values(tmp_path)
    with pytest.raises(DataError, match=r"x\.csv: expected files named"):
        values(write(tmp_path, "x.csv", b""))


def test_bytes_read_reach_the_size_said_before(tmp_path):
    write(tmp_path, "a.jsonl", b"\n" * 900)
    write(tmp_path, "b.jsonl.gz", gzip.compress(b"\n"))
    counts = ReadCounts()
    assert list(readers.open([tmp_path], "crag", counts)) == []
    assert counts.bytes_read == readers.size([tmp_path], "crag") > 900
