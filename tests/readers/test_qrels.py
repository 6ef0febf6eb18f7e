"""Relevance judgements next to BEIR's files."""

import gzip
import json

import pytest

from raypipe import readers
from raypipe.core.errors import DataError
from raypipe.readers.formats import kind_of

BEIR = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n\nq2\td3\t1\n"
TREC = "q1 0 d1 2\nq1 0 d2 0\nq2 0 d3 1\n"
GRADES = {"q1": {"d1": 2, "d2": 0}, "q2": {"d3": 1}}


@pytest.fixture
def folder(tmp_path):
    corpus = [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in (1, 2, 3)]
    queries = [{"_id": f"q{i}", "text": f"what is {i}?"} for i in (1, 2, 3)]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return tmp_path


def grades(paths):
    counts = readers.ReadCounts()
    rows = list(readers.open(paths, "beir", counts))
    return {r.gold.question: dict(r.gold.grades) for r in rows if r.gold}, counts


def test_a_folder_of_beir_brings_the_judgements_of_its_test_split(folder):
    (folder / "qrels").mkdir()
    (folder / "qrels/test.tsv").write_text(BEIR)
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq3\td1\t1\n")
    found, counts = grades([folder])
    assert found == GRADES and counts.judgements == 3 and counts.rows == 6
    assert [p.name for p in readers.files_of([folder], "beir")][-1] == "test.tsv"


@pytest.mark.parametrize(
    ("name", "text"), [("qrels.trec", TREC), ("qrels.tsv", BEIR), ("qrels.txt.gz", TREC)]
)
def test_a_file_of_judgements_is_known_by_its_name(folder, name, text):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert grades([folder])[0] == GRADES
    assert grades([folder / "corpus.jsonl", folder / "queries.jsonl", path])[0] == GRADES
    alone, counts = grades([path])  # the queries were read before
    assert alone == GRADES and counts.rows == 0


def test_other_splits_are_named_to_choose_from(folder):
    (folder / "qrels").mkdir()
    for name in ("dev.tsv", "train.tsv"):
        (folder / "qrels" / name).write_text(BEIR)
    with pytest.raises(DataError, match=r"expected test\.tsv, found dev\.tsv, train\.tsv"):
        grades([folder])
    assert (
        grades([*(folder / f"{n}.jsonl" for n in ("corpus", "queries")), folder / "qrels/dev.tsv"])[0]
        == GRADES
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 d1\n", r"qrels\.trec:1: expected 'query 0 document relevance', found 'q1 0 d1'"),
        ("q1 0 d1 yes\n", r"qrels\.trec:1: expected a whole number as grade, found 'yes'"),
        ("q1 0 d1 1\nq1 0 d1 2\n", r"qrels\.trec:2: document 'd1' has two grades for query 'q1'"),
        (b"q1 0 \xff 1\n", r"qrels\.trec:1: expected UTF-8"),
    ],
)
def test_a_line_that_is_no_judgement_is_named(folder, text, message):
    (folder / "qrels.trec").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        grades([folder])


def test_a_format_has_a_kind():
    kinds = [kind_of(f) for f in ("crag", "synth", "beir", "rows", "files")]
    assert kinds == ["crag", "crag", "ranking", "qa", "qa"]
