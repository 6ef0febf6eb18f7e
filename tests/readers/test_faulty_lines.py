"""A line that cannot be used has its own reason, and every other line is read."""

import json
import tracemalloc
from pathlib import Path

import pytest

from raypipe.readers import LIMITS, ReadCounts, ReaderLimits, files, lines
from raypipe.readers.lines import JsonLine

GOOD = b'{"a": "first"}\n'
LAST = b'{"a": "last"}'


def read(folder: Path, content: bytes, limits: ReaderLimits = LIMITS) -> tuple[list[JsonLine], ReadCounts]:
    path = folder / "x.jsonl"
    path.write_bytes(content)
    counts = ReadCounts()
    return list(lines.read(files.find([path]), counts, limits)), counts


FAULTY = {
    "bad_json": [
        b"not json",
        b'{"a": 1,}',
        b'{"a": "unterminated',
        b'{"a": 1} {"a": 2}',
        b'{"a": "tab\there"}',
    ],
    "not_utf8": [b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', '{"a": "é"}'.encode("latin-1")],
    "surrogate": [rb'{"a": "\ud800"}', rb'{"a": ["x", {"b": "\uDC00\uD800"}]}', rb'{"\udfff": 1}'],
    "nul": [b'{"a": "\0"}', b"\0\0\0"],
    "too_deep": [b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 100_000],
    "nan": [b'{"a": NaN}', b'{"a": [-Infinity]}', b'{"a": 1e999}'],
    "big_integer": [
        b'{"a": 123456789012345678901234567890}',
        b'{"a": -' + b"1" * 5000 + b"}",
        b'{"a": 9223372036854775808}',
    ],
    "duplicate_key": [
        b'{"a": 1, "a": 1}',
        b'{"a": [{"b": 1, "c": 2, "b": 3}]}',
        rb'{"a": 1, "a\u0000": 2}',
    ],
    "not_object": [b"[1, 2]", b'"text"', b"3", b"null", b"true"],
}


@pytest.mark.parametrize(("reason", "bad"), [(r, b) for r, bad in FAULTY.items() for b in bad])
def test_a_bad_line_has_its_reason_and_the_others_are_read(tmp_path, reason, bad):
    found, counts = read(tmp_path, GOOD + bad + b"\n" + LAST)
    assert [line.number for line in found] == [1, 2, 3]
    assert [line.value for line in found] == [{"a": "first"}, None, {"a": "last"}]
    fault = found[1].fault
    assert fault is not None and (fault.step, fault.reason, fault.transient) == ("read", reason, False)
    assert 0 < len(fault.detail) < 200
    assert counts.lines == 3


def test_a_line_over_the_cap_is_a_fault_and_is_not_held(tmp_path):
    path = tmp_path / "x.jsonl"
    with path.open("wb") as out:
        out.write(GOOD)
        for _ in range(200):
            out.write(b"x" * (1 << 18))
        out.write(b"\n" + LAST)
    tracemalloc.start()
    found = list(lines.read(files.find([path]), ReadCounts(), ReaderLimits(line_bytes=1 << 20)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.value for line in found] == [{"a": "first"}, None, {"a": "last"}]
    assert found[1].fault is not None and found[1].fault.reason == "too_long"
    assert "52,428,800" in found[1].fault.detail
    assert peak < 4 << 20


def test_a_line_of_exactly_the_cap_is_read(tmp_path):
    found, _ = read(tmp_path, GOOD + LAST, ReaderLimits(line_bytes=len(GOOD) - 1))
    assert [line.fault for line in found] == [None, None]
    found, _ = read(tmp_path, GOOD + LAST, ReaderLimits(line_bytes=len(GOOD) - 2))
    assert [line.fault is None for line in found] == [False, True]


def test_marks_carriage_returns_and_blank_lines_are_normalised_and_counted(tmp_path):
    found, counts = read(tmp_path, b"\xef\xbb\xbf" + b'{"a": 1}\r\n\r\n  \n\n{"a": 2}\r\n')
    assert [(line.number, line.value) for line in found] == [(1, {"a": 1}), (5, {"a": 2})]
    assert (counts.byte_order_marks, counts.crlf_lines, counts.blank_lines, counts.lines) == (1, 3, 3, 5)


def test_escaped_nul_is_taken_out_and_counted(tmp_path):
    found, counts = read(tmp_path, rb'{"a": "x\u0000y", "b": ["\u0000"]}' + b"\n" + rb'{"a": "x\\u0000y"}')
    assert [line.value for line in found] == [{"a": "xy", "b": [""]}, {"a": r"x\u0000y"}]
    assert counts.nul_lines == 1


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\u00a0", "\x7f"])
def test_only_a_newline_ends_a_line(tmp_path, mark):
    found, _ = read(tmp_path, json.dumps({"a": f"x{mark}y"}, ensure_ascii=False).encode() + b"\n" + LAST)
    assert [line.value for line in found] == [{"a": f"x{mark}y"}, {"a": "last"}]


def test_whole_surrogate_pairs_and_64_bit_integers_are_fine(tmp_path):
    found, _ = read(
        tmp_path, rb'{"a": "\ud83d\ude00", "b": [9223372036854775807, -9223372036854775808, 0.5]}'
    )
    assert found[0].value == {"a": "😀", "b": [2**63 - 1, -(2**63), 0.5]}


@pytest.mark.parametrize("size", [1, 7, 262_143, 262_144, 262_145, 600_000])
def test_lines_are_whole_wherever_the_chunks_end(tmp_path, size):
    line = json.dumps({"a": "x" * size}).encode()
    found, _ = read(tmp_path, b"\n".join([line] * 3))
    assert [line.value for line in found] == [{"a": "x" * size}] * 3
