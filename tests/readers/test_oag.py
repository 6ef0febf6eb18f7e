"""OAG-QA's files: both spellings, papers before questions, and what bad ones come to."""

import gzip
import json
from dataclasses import asdict

import pytest

from raypipe import readers
from raypipe.core.errors import DataError
from raypipe.core.records import Question
from raypipe.readers.formats import kind_of

PAPERS = {
    "p1": {"title": "Sampling in\ngraph nets", "abstract": "We sample.\nIt scales."},
    "p2": {"title": None, "abstract": "No title here."},
    "p3": {"title": "No abstract", "abstract": None},
    "p4": {"title": None, "abstract": " "},
}
ASKED = {"question": "How do graph nets scale?", "body": "<p>I read</p>", "pids": ["p1", "gone", "p1"]}


def write(folder, papers="pid-to-title-abs-new.json", questions="qa-train.txt", asked=(ASKED,)):
    (folder / papers).write_text(json.dumps(PAPERS, ensure_ascii=False))
    (folder / questions).write_text("".join(json.dumps(a) + "\n" for a in asked))
    return folder


def read(*paths):
    counts = readers.ReadCounts()
    return list(readers.open(paths, "oag", counts)), counts


def faults(rows):
    return [(r.where.rpartition("/")[2], r.faults[0].reason) for r in rows if r.faults]


@pytest.mark.parametrize(
    ("papers", "questions"),
    [
        ("pid-to-title-abs-new.json", "qa-train.txt"),
        ("pid_to_title_abs_update_filter.json", "qa_train.txt"),
    ],
)
def test_both_spellings_give_papers_then_questions_with_pids_as_golds(tmp_path, papers, questions):
    folder = write(tmp_path, papers, questions)
    assert readers.looks_like([folder]) == "oag" and kind_of("oag") == "ranking"
    rows, counts = read(folder)
    documents = {r.document.id: r.sources[0].content for r in rows if r.document}
    assert documents == {
        "p1": "Sampling in graph nets\nWe sample.\nIt scales.",
        "p2": "\nNo title here.",
        "p3": "No abstract\n",
    }
    assert rows[-1].question == Question("qa-train-0000001", ASKED["question"], "<p>I read</p>")
    assert rows[-1].gold.grades == {"p1": 1, "gone": 1} and rows[-1].gold.question == "qa-train-0000001"
    assert counts.unknown_golds == 1, "a pid without a paper counts as relevant and is never found"
    assert (counts.empty_documents, counts.null_fields, counts.rows, counts.faults) == (1, 3, 4, 0)


def test_a_question_without_pids_has_no_gold_and_ids_sort_as_the_lines_stand(tmp_path):
    asked = [{"question": f"What is {n}?", "body": ""} for n in range(12)]
    rows, _ = read(write(tmp_path, questions="qa-test-wo-ans-new.txt", asked=asked))
    found = [r.question for r in rows if r.question]
    assert not any(r.gold for r in rows) and len(found) == 12
    assert [q.id for q in found] == sorted(q.id for q in found)
    assert found[11].id == "qa-test-wo-ans-new-0000012" and found[11].text == "What is 11?"


def test_a_pid_with_two_texts_is_a_fault_and_the_first_is_kept_and_an_equal_one_is_counted(tmp_path):
    write(tmp_path)
    (tmp_path / "pid_to_title_abs_update_filter.json").write_text(
        '{"p1": {"title": "Another", "abstract": "text"}, "p3": {"title": "No abstract", "abstract": null}, '
        '"p9": {"title": "9", "abstract": ""}, "p9": {"title": "Nine", "abstract": ""}}'
    )
    rows, counts = read(tmp_path)
    assert faults(rows) == [
        ("pid_to_title_abs_update_filter.json:p1", "conflicting_id"),
        ("pid_to_title_abs_update_filter.json:p9", "conflicting_id"),
    ]
    assert counts.repeated_rows == 1
    c = asdict(counts)
    parts = ("blank_lines", "rows", "faults", "repeated_rows", "empty_documents")
    assert c["lines"] == sum(c[n] for n in parts)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"body": "x", "pids": []}, "missing_field"),
        ({"question": " ", "body": "x"}, "missing_field"),
        ({"question": "Why?", "body": 3}, "wrong_type"),
        ({"question": "Why?", "pids": "p1"}, "wrong_type"),
        ({"question": "Why?", "pids": ["p1", 7]}, "wrong_type"),
    ],
)
def test_a_bad_line_is_a_fault_and_the_others_are_read(tmp_path, line, reason):
    rows, _ = read(write(tmp_path, asked=[line, ASKED]))
    assert faults(rows) == [("qa-train.txt:1", reason)]
    assert [r.question.id for r in rows if r.question] == ["qa-train-0000002"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"p1": {"title": "a", "abstract": "b"}', "expected '}'"),
        ('{"p1": {"title": "a", "abs', "expected JSON"),
        ('["p1"]', "expected '{'"),
        ('{"p1" 3}', "expected ':'"),
        ("{1: {}}", "expected the id of a paper"),
        ("{} {}", "expected the end"),
        ('{"p1": ' + "[" * 100_000, "nests hundreds deep"),
    ],
)
def test_a_file_of_papers_that_is_not_whole_is_refused_with_the_place(tmp_path, text, said):
    file = write(tmp_path) / "pid-to-title-abs-new.json"
    file.write_text(text)
    with pytest.raises(DataError, match=said) as found:
        read(tmp_path)
    assert str(file) in str(found.value)


def test_a_paper_that_is_no_object_or_has_a_number_for_a_title_is_a_fault(tmp_path):
    file = write(tmp_path) / "pid-to-title-abs-new.json"
    file.write_text(
        '{"p1": null, "p2": {"title": 3, "abstract": "x"}, "p3": {"title": "a\\ud800"}, "p4": {}}'
    )
    rows, counts = read(file)
    assert [reason for _, reason in faults(rows)] == ["not_object", "wrong_type", "surrogate"]
    assert counts.empty_documents == 1


def test_papers_are_read_in_pieces_however_they_are_cut_and_packed(tmp_path):
    papers = {f"p{n}": {"title": f"Größe {n}", "abstract": "ü" * 3000} for n in range(300)}
    file = tmp_path / "pid-to-title-abs-new.json.gz"
    file.write_bytes(gzip.compress(json.dumps(papers, indent=1, ensure_ascii=False).encode()))
    rows, counts = read(file)
    assert [r.document.title for r in rows] == [p["title"] for p in papers.values()]
    assert counts.rows == 300 and counts.faults == 0


def test_other_names_are_refused_and_an_empty_object_has_no_papers(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(DataError, match=r"expected OAG-QA's files"):
            read(path)
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "qa-train.txt")
    (tmp_path / "pid-to-title-abs-new.json").write_text(" {} \n")
    assert read(tmp_path)[0] == []
