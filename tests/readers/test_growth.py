"""Reading what a stranger sends takes time that grows with its size, not with its square.

Each case took five to sixty times the limit when it was quadratic, and takes a tenth of it now.
"""

import bz2
import io
import zipfile
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pace import within

from raypipe.core.errors import DataError
from raypipe.core.records import Citation
from raypipe.readers import LIMITS, ReadCounts, files, formats, row_files
from raypipe.readers.documents import docx, docx_parts
from raypipe.readers.documents.page_layout import in_order, laid_out
from raypipe.readers.documents.page_tables import Box, Rule
from raypipe.readers.lines import decode
from raypipe.readers.rows import UnusableLine
from raypipe.store.fields import SourceFields
from raypipe.text.filters import Filters

pytestmark = pytest.mark.slow

FIELDS = 30_000
LOOPS = 40


def one_twice(last):
    fields = ",".join(f'"a{i}":1' for i in range(FIELDS))
    return f'{{{fields},"{last}":1}}'.encode()


@pytest.mark.parametrize("last", [f"a{FIELDS - 1}", f"a{FIELDS - 1}\\u0000"])
def test_the_name_that_stands_twice_in_an_object(last):
    line = one_twice(last)
    with within(LOOPS), pytest.raises(UnusableLine, match=f"duplicate_key: 'a{FIELDS - 1}' occurs twice"):
        decode(line, ReadCounts())


@pytest.mark.parametrize("twice", [True, False])
def test_the_names_of_a_table_in_csv(tmp_path, twice):
    path = tmp_path / "wide.csv"
    names = [f"a{i}" for i in range(FIELDS)]
    path.write_text(",".join([*names, names[-1] if twice else "b"]) + "\n")
    [file] = row_files.find([path])
    expected = pytest.raises(DataError, match=f"found 'a{FIELDS - 1}' twice") if twice else nullcontext()
    with within(LOOPS), expected:
        assert list(row_files.rows(file, ReadCounts())) == []


def test_thousands_of_packed_streams_in_one_file(tmp_path):
    lines = [b"%d %01800x\n" % (i, i * 7919**480) for i in range(2000)]
    path = tmp_path / "x.jsonl.bz2"
    path.write_bytes(b"".join(map(bz2.compress, lines)))
    [found] = files.find([path])
    assert path.stat().st_size > files.SEVERAL, "it is unpacked by its blocks"
    with within(2 * LOOPS):  # each stream begins a table of its own: .4 ms
        assert b"".join(files.stream(found, ReadCounts(), LIMITS)) == b"".join(lines)


def test_the_boxes_of_a_page_of_a_pdf():
    across = [Box(0, y, 100, y + 1) for y in range(5000)]
    with within(LOOPS):
        assert in_order(across) == [[i] for i in reversed(range(5000))]


def test_the_cells_and_lines_of_a_page_of_a_pdf():
    wide = [Box(30 * x, 0, 30 * x + 9, 9) for x in range(5000)]
    rows = [Box(90 * (i % 3), -15 * (i // 3), 90 * (i % 3) + 30, 9 - 15 * (i // 3)) for i in range(2500)]
    lines = [Box(95, -15 * i - 5, 110, 4 - 15 * i) for i in range(2500)]
    mixed = [box for i in range(0, 2499, 3) for box in (*rows[i : i + 3], lines[i // 3])]
    every = [Rule(15 * i, 0, 2200) for i in range(149)]
    for boxes, rules in ((wide, ([], [])), (mixed, ([], [])), (rows, (every[:74], every[:74]))):
        with within(LOOPS):
            laid_out(" ".join("x" * len(boxes)), boxes, lambda i: "x", rules)


def test_the_cells_of_a_row_in_a_docx():
    cell = "<w:tc><w:p><w:r><w:t>x</w:t></w:r></w:p></w:tc>"
    space, body = "http://schemas.openxmlformats.org/wordprocessingml/2006/main", cell * 40_000
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        table = f"<w:tbl><w:tr>{body}</w:tr></w:tbl>"
        archive.writestr(
            docx_parts.MAIN, f'<w:document xmlns:w="{space}"><w:body>{table}</w:body></w:document>'
        )
    with within(LOOPS):
        [(_, text)] = docx.read(out.getvalue())["sections"]
    assert text == f"| {' | '.join(['x'] * 40_000)} |"


def test_row_groups_fill_shards_one_by_one(tmp_path):
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, pa.schema([("question", pa.string())])) as out:
        for i in range(10):
            out.write_table(pa.table({"question": [f"q{i}"] * (i + 1)}))
    size = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    found = formats.cut([path], "rows", 4 * size, ReadCounts())
    spans = [s.span for s in found if s.span]
    assert [s.start for s in spans[1:]] == [s.stop for s in spans[:-1]], "none is left out, none is twice"
    assert (spans[0].start, spans[-1].stop, len(spans)) == (0, 10, 3)
    assert [s.first for s in spans] == [1 + sum(range(1, s.start + 1)) for s in spans]
    meta = pq.read_metadata(path)
    sizes = [meta.row_group(n).column(0).total_compressed_size for n in range(10)]
    assert [s.size for s in found] == [sum(sizes[s.start : s.stop]) for s in spans]


def cited(ids):
    places = (("https://a.example/", id) for id in ids)
    return tuple(Citation("q", i, url, "", id, None, None) for i, (url, id) in enumerate(places))


def test_a_question_with_as_many_sources_as_a_filter_names():
    ids = [f"{i:032x}" for i in range(15_000)]
    with within(LOOPS):
        found = SourceFields.of(()).narrowed(cited(ids), Filters((), tuple(reversed(ids))))
    assert found == cited(ids)


def test_a_page_that_stands_under_thousands_of_addresses():
    page = "0" * 32
    places = tuple(Citation("q", i, f"u{i}", "", page, None, None) for i in range(40_000))
    with within(LOOPS):
        fields = SourceFields.of(places)
        assert fields.urls([page]) == {page: "u0"}
        assert fields.within(Filters(where="url like 'u%9'")).urls([page]) == {page: "u9"}


def test_a_condition_as_long_as_it_may_be():
    where = " or ".join(["url = 'a'"] * 600)
    with within(LOOPS):
        assert SourceFields.of(cited(["0" * 32])).within(Filters(where=where)).ids == ()
