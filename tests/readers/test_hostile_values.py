"""A single value never ends a read: it is the fault of its row, with its line, and others come."""

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypipe import readers
from raypipe.readers import ReadCounts

DEEP = "[" * 3000 + "]" * 3000
COLUMNS = {  # the value of the first row is one that Python cannot hold, or that no role can have
    "a date beyond the year 9999": pa.array([3_000_000, 1], pa.date32()),
    "a date before the year 1": pa.array([-800_000, 1], pa.date32()),
    "date64": pa.array([3_000_000 * 86_400_000, 0], pa.date64()),
    "a database's infinity": pa.array([2**62, 1], pa.timestamp("us")),
    "seconds": pa.array([2**50, 1], pa.timestamp("s")),
    "nanoseconds": pa.array([2**62, 1], pa.timestamp("ns")),
    "a zone": pa.array([2**62, 1], pa.timestamp("us", "Europe/Berlin")),
    "a zone that is none": pa.array([2**62, 1], pa.timestamp("us", "Mars/Phobos")),
    "a time": pa.array([86_399_999_999_999, 1], pa.time64("ns")),
    "a duration": pa.array([2**62, 1], pa.duration("us")),
    "38 digits": pa.array([Decimal("9" * 38), Decimal(1)], pa.decimal128(38, 0)),
    "76 digits": pa.array([Decimal("9" * 76), Decimal(1)], pa.decimal256(76, 0)),
    "an unsigned integer": pa.array([2**64 - 1, 1], pa.uint64()),
    "a number beyond all": pa.array([float("inf"), 1.0]),
    "no number": pa.array([float("nan"), 1.0]),
    "bytes that are no text": pa.array([b"\xff\xfe", b"ok"]),
    "a text that is no UTF-8": pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfeok")
    ),
    "a dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "lists of dictionaries": pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode()),
    "structs of dictionaries": pa.StructArray.from_arrays(
        [pa.array(["a", "b"]).dictionary_encode()], ["text"]
    ),
    "a map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "true": pa.array([True, False]),
    "null": pa.nulls(2),
    "a list 3,000 deep": pa.array([DEEP, "b"]),
    "a list of nulls": pa.array([[None], ["b"]]),
}
ROLES = ("answer", "contexts", "id", "query_time", "domain", "review")


def counted(path):
    """The rows of a file, after all that is done with it before; each line came out as one thing."""
    readers.check([path], "rows")
    readers.formats.referenced([path], "rows")
    counts = ReadCounts()
    rows = list(readers.open([path], "rows", counts))
    assert counts.lines == 2 and counts.rows + counts.faults + counts.empty_documents == 2
    assert all(fault.detail for row in rows for fault in row.faults)
    return rows


def parquet(path, columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_of_a_question_is_its_rows_fault_or_is_read(tmp_path, name, role):
    rows = counted(parquet(tmp_path / "q.parquet", {"question": ["who?", "why?"], role: COLUMNS[name]}))
    assert [row.where.rpartition(":")[2] for row in rows] == ["1", "2"]


@pytest.mark.parametrize("role", ["text", "html", "modified", "title", "path"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_of_a_document_is_its_rows_fault_or_is_read(tmp_path, name, role):
    texts = {} if role in ("text", "html", "path") else {"text": ["one", "two"]}
    counted(parquet(tmp_path / "d.parquet", {"url": ["u1", "u2"], **texts, role: COLUMNS[name]}))


@pytest.mark.parametrize(
    "name", ["a date beyond the year 9999", "a database's infinity", "seconds", "a zone"]
)
def test_a_date_that_python_lacks_is_named_with_its_column_and_the_other_row_is_read(tmp_path, name):
    bad, good = counted(
        parquet(tmp_path / "q.parquet", {"question": ["who?", "why?"], "when": COLUMNS[name]})
    )
    assert good.question.text == "why?" and bad.question is None
    assert bad.where.endswith("q.parquet:1") and bad.faults[0].detail.startswith("when: OverflowError")


def test_times_of_a_zone_that_this_machine_does_not_know_are_read_in_utc(tmp_path):
    times = pa.array([0, 1_000_000], pa.timestamp("us", "Mars/Phobos"))
    one, two = counted(parquet(tmp_path / "q.parquet", {"question": ["who?", "why?"], "asked_at": times}))
    assert (one.question.asked_at, two.question.asked_at[:19]) == (
        "1970-01-01 00:00:00+00:00",
        "1970-01-01 00:00:01",
    )


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_a_list_3000_deep_is_the_fault_of_its_row_in_every_kind_of_file(tmp_path, ending):
    path, rows = (
        tmp_path / f"q.{ending}",
        [{"question": "who?", "ctxs": DEEP}, {"question": "why?", "ctxs": "a"}],
    )
    if ending == "csv":
        path.write_text(f'question,ctxs\nwho?,"{DEEP}"\nwhy?,a\n')
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(map(json.dumps, rows)).replace(f'"{DEEP}"', DEEP))
    bad, good = counted(path)
    assert bad.faults[0].reason == "too_deep" and good.question.text == "why?"
