"""CRAG's lines become questions, citations, golds and sources, in both schemas."""

import bz2
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from raypipe import readers
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Citation, Source, source_id
from raypipe.readers import ReadCounts, Row

PAGE = {
    "page_name": "A page",
    "page_url": "http://a.example/",
    "page_snippet": "A snippet",
    "page_result": "<p>text</p>",
    "page_last_modified": "",
}
QUESTION = {
    "interaction_id": "q1",
    "query_time": "02/28/2024, 10:04:54 PT",
    "domain": "open",
    "question_type": "simple",
    "static_or_dynamic": "static",
    "query": "who wrote it?",
    "answer": "someone",
    "split": 1,
    "search_results": [PAGE],
}


def read(folder: Path, values: Iterable[dict[str, Any] | str], format: readers.Format = "crag"):
    path = folder / "questions.jsonl"
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values), encoding="utf-8")
    counts = ReadCounts()
    rows = list(readers.open([path], format, counts))
    accounted = (
        counts.blank_lines + counts.rows + counts.faults + counts.repeated_rows + counts.empty_documents
    )
    assert counts.lines == accounted
    assert counts.rows + counts.faults == len(rows)
    return rows, counts


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in QUESTION.items() if k != name}


def reasons(rows: list[Row]) -> list[str]:
    return ["" if r.question else r.faults[0].reason for r in rows]


def test_a_row_has_everything_that_its_line_adds_to_the_tables(tmp_path):
    (row,), _ = read(tmp_path, [QUESTION])
    page, snippet, name = (
        Source(source_id(kind, text), kind, text)
        for kind, text in (("page", "<p>text</p>"), ("snippet", "A snippet"), ("name", "A page"))
    )
    assert row.where.endswith("questions.jsonl:1")
    assert row.sources == (page, snippet, name)
    assert row.question is not None and row.gold is not None
    assert row.question.citations == (
        Citation("q1", 0, "http://a.example/", "", page.id, snippet.id, name.id),
    )
    assert (row.question.text, row.question.asked_at) == ("who wrote it?", "02/28/2024, 10:04:54 PT")
    assert row.gold.answers == ("someone",)
    labels = {"domain": "open", "question_type": "simple", "static_or_dynamic": "static", "split": "1"}
    assert row.gold.labels == labels


@pytest.mark.parametrize("others", [[], ["x"], ["x", "y y", "x", "someone"]])
def test_both_schemas_give_the_same_rows(tmp_path, others):
    old, _ = read(tmp_path, [QUESTION | {"alternative_answers": json.dumps(others)}])
    new, _ = read(tmp_path, [QUESTION | {"alt_ans": others, "popularity": ""}])
    mixed, _ = read(tmp_path, [QUESTION | {"alt_ans": json.dumps(others)}])
    assert old == new == mixed
    assert old[0].gold.answers == tuple(dict.fromkeys(["someone", *others]))


def test_numbers_as_golds_are_text_and_counted(tmp_path):
    (row,), counts = read(tmp_path, [QUESTION | {"answer": 503, "alt_ans": [5.5, "5"]}])
    assert row.gold.answers == ("503", "5.5", "5")
    assert counts.number_golds == 2


def test_labels_of_invented_worlds_are_text_beside_the_gold(tmp_path):
    extras = {
        "kg_answerable": True,
        "premise_false": False,
        "answer_on_pages": True,
        "template": "movie-year",
        "popularity": "head",
    }
    (row,), _ = read(tmp_path, [QUESTION | extras], "synth")
    expected = extras | {"kg_answerable": "true", "premise_false": "false", "answer_on_pages": "true"}
    assert {k: row.gold.labels[k] for k in extras} == expected


def test_empty_pages_make_no_source_and_are_counted(tmp_path):
    pages = [PAGE | {"page_result": ""}, PAGE | {"page_result": " \n\t"}, PAGE, PAGE | {"page_snippet": ""}]
    (row,), counts = read(tmp_path, [QUESTION | {"search_results": pages}])
    citations = row.question.citations
    assert [c.rank for c in citations] == [0, 1, 2, 3]
    assert [c.page is None for c in citations] == [True, True, False, False]
    assert [c.snippet is None for c in citations] == [False, False, False, True]
    assert len(row.sources) == 3
    assert counts.empty_pages == 2


def test_pdf_bytes_are_a_source_like_any_other_page(tmp_path):
    (row,), _ = read(tmp_path, [QUESTION | {"search_results": [PAGE | {"page_result": "%PDF-1.4 \u0001"}]}])
    assert row.sources[0].content == "%PDF-1.4 \u0001"


def test_a_null_page_is_a_fault_of_the_page_and_the_question_keeps_the_others(tmp_path):
    pages = [PAGE | {"page_result": None}, PAGE]
    (row,), counts = read(tmp_path, [QUESTION | {"search_results": pages}])
    assert [c.page is None for c in row.question.citations] == [True, False]
    assert [f.reason for f in row.faults] == ["null_page"]
    assert (counts.page_faults, counts.empty_pages, counts.faults, counts.rows) == (1, 0, 0, 1)


def test_null_texts_of_a_page_are_empty_and_counted(tmp_path):
    page = PAGE | {"page_last_modified": None, "page_snippet": None}
    (row,), counts = read(tmp_path, [QUESTION | {"search_results": [page]}])
    assert (row.question.citations[0].modified, row.question.citations[0].snippet) == ("", None)
    assert counts.null_fields == 2


@pytest.mark.parametrize("name", ["interaction_id", "query", "query_time", "answer", "search_results"])
def test_a_missing_field_is_named(tmp_path, name):
    rows, _ = read(tmp_path, [without(name), QUESTION])
    assert reasons(rows) == ["missing_field", ""]
    assert rows[0].faults[0].detail.startswith(f"{name}: expected")


@pytest.mark.parametrize("name", PAGE)
def test_a_missing_field_of_a_page_is_named(tmp_path, name):
    page = {k: v for k, v in PAGE.items() if k != name}
    rows, _ = read(tmp_path, [QUESTION | {"search_results": [PAGE, page]}])
    assert reasons(rows) == ["missing_field"]
    assert f"search_results[1].{name}" in rows[0].faults[0].detail


WRONG = [
    {"query": 5},
    {"query": ["a"]},
    {"query": None},
    {"interaction_id": 5.5},
    {"query_time": 1709143494},
    {"answer": None},
    {"answer": ["x"]},
    {"answer": True},
    {"alt_ans": 5},
    {"alt_ans": "x, y"},
    {"alt_ans": '{"a": 1}'},
    {"alt_ans": [None]},
    {"domain": ["open"]},
    {"search_results": None},
    {"search_results": "[]"},
    {"search_results": {"a": 1}},
    {"search_results": ["http://a.example/"]},
    {"search_results": [PAGE | {"page_result": 5}]},
    {"search_results": [PAGE | {"page_url": ["x"]}]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_type_is_named(tmp_path, wrong):
    rows, _ = read(tmp_path, [QUESTION | wrong, QUESTION])
    assert reasons(rows) == ["wrong_type", ""]
    assert next(iter(wrong)) in rows[0].faults[0].detail


@pytest.mark.parametrize("blank", [{"query": ""}, {"query": " "}, {"answer": ""}, {"interaction_id": " "}])
def test_a_blank_text_counts_as_missing(tmp_path, blank):
    assert reasons(read(tmp_path, [QUESTION | blank])[0]) == ["missing_field"]


@pytest.mark.parametrize("id", [None, ""])
def test_a_row_without_id_is_a_fault(tmp_path, id):
    assert reasons(read(tmp_path, [QUESTION | {"interaction_id": id}, QUESTION])[0]) == ["no_id", ""]


def test_a_repeated_row_is_one_row(tmp_path):
    again = dict(reversed(QUESTION.items())) | {"alternative_answers": "[]"}
    rows, counts = read(tmp_path, [QUESTION, again, QUESTION | {"interaction_id": "q2"}])
    assert [r.question.id for r in rows] == ["q1", "q2"]
    assert counts.repeated_rows == 1


@pytest.mark.parametrize(
    "other",
    [
        {"query": "another?"},
        {"answer": "x"},
        {"domain": "movie"},
        {"query_time": ""},
        {"search_results": [PAGE | {"page_result": "<p>other</p>"}]},
        {"search_results": [PAGE, PAGE]},
    ],
    ids=str,
)
def test_other_content_under_the_same_id_is_a_fault_and_the_first_stays(tmp_path, other):
    rows, _ = read(tmp_path, [QUESTION, QUESTION | other])
    assert reasons(rows) == ["", "conflicting_id"]
    assert "questions.jsonl:1; that row is kept" in rows[1].faults[0].detail


def test_a_line_that_is_no_json_costs_only_itself(tmp_path):
    rows, counts = read(tmp_path, [QUESTION, "{broken", "", QUESTION | {"interaction_id": "q2"}])
    assert reasons(rows) == ["", "bad_json", ""]
    assert (counts.rows, counts.faults, counts.blank_lines) == (2, 1, 1)


def test_questions_without_pages_are_named_by_their_row(tmp_path):
    bare = {"row": 7, "query": "who?", "answer": "she", "split": 0}
    rows, counts = read(tmp_path, [bare, bare | {"row": 8, "interaction_id": "q8", "query_time": "t"}])
    assert [(r.question.id, r.question.asked_at, r.question.citations) for r in rows] == [
        ("row-7", "", ()),
        ("q8", "t", ()),
    ]
    assert counts.questions_without_pages == 2


def test_a_folder_of_an_invented_world_is_read_without_its_graph(tmp_path):
    (tmp_path / "kg").mkdir()
    (tmp_path / "kg" / "movies.jsonl").write_text('{"title": "x"}')
    (tmp_path / "world.jsonl").write_text('{"seed": 1}')
    for n in (0, 1):
        line = json.dumps(QUESTION | {"interaction_id": f"q{n}"}).encode()
        (tmp_path / f"questions-{n}.jsonl.bz2").write_bytes(bz2.compress(line))
    counts = ReadCounts()
    rows = list(readers.open([tmp_path], "synth", counts))
    assert [r.question.id for r in rows] == ["q0", "q1"]
    assert counts.other_files == 1


def test_a_source_is_unseen_once(tmp_path):
    rows, _ = read(tmp_path, [QUESTION, QUESTION | {"interaction_id": "q2"}])
    seen: set[str] = set()
    assert [len(readers.unseen(r.sources, seen)) for r in rows] == [3, 0]


def test_rows_come_before_the_file_ends(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(QUESTION | {"interaction_id": f"q{n}"}) for n in range(5000)))
    counts = ReadCounts()
    rows = readers.open([path], "crag", counts)
    next(rows)
    assert counts.lines == 1
    assert counts.bytes_read < path.stat().st_size / 2


def test_a_missing_file_and_an_unknown_format_are_said_at_once(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        readers.open([tmp_path / "x.jsonl"], "crag", ReadCounts())
    with pytest.raises(ConfError, match="'xml' is no format: expected one of crag, beir, qasper"):
        readers.open([tmp_path], "xml", ReadCounts())  # type: ignore[arg-type]
    with pytest.raises(ConfError, match="No path"):
        readers.open([], "crag", ReadCounts())


DATA = os.environ.get("RAYPIPE_DATA")
real = pytest.mark.skipif(not DATA, reason="RAYPIPE_DATA is not set: no real data here")


@real
def test_the_ten_real_rows_have_36_distinct_pages():
    counts = ReadCounts()
    rows = list(readers.open([Path(DATA or "", "crag/dev_data.jsonl.bz2")], "crag", counts))
    distinct = [len({c.page for c in r.question.citations} - {None}) for r in rows]
    assert distinct == [4, 4, 4, 4, 3, 5, 3, 4, 2, 3]
    assert sum(len(r.question.citations) for r in rows) == 50
    seen: set[str] = set()
    pages = [s for r in rows for s in readers.unseen(r.sources, seen) if s.kind == "page"]
    assert len(pages) == 36
    assert (counts.rows, counts.faults, counts.empty_pages) == (10, 0, 3)


@real
def test_all_1371_real_questions_without_pages_load():
    counts = ReadCounts()
    rows = list(readers.open([Path(DATA or "", "crag/questions_split0.jsonl.gz")], "crag", counts))
    assert (len(rows), counts.faults, counts.questions_without_pages) == (1371, 0, 1371)
    assert len({r.question.id for r in rows}) == 1371
    assert counts.number_golds == 1
    assert {r.gold.answers for r in rows if r.question.text.startswith("how many common stocks does")} == {
        ("503",)
    }
