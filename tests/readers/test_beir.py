"""BEIR's files become documents with their sources, and questions over the whole collection."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from raypipe import readers
from raypipe.core.errors import DataError
from raypipe.core.records import Document, Question, source_id
from raypipe.readers import ReadCounts

DOCUMENT = {"_id": "d1", "title": "A title", "text": "A text.", "metadata": {}}
QUERY = {"_id": "1", "text": "a claim"}


def write(folder: Path, name: str, *values: dict[str, Any]) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, values)).encode()))
    return path


def test_a_document_and_its_source_hold_title_and_text(tmp_path):
    (row,) = readers.open([write(tmp_path, "corpus.jsonl.gz", DOCUMENT)], "beir", ReadCounts())
    (source,) = row.sources
    assert (source.kind, source.content) == ("document", "A title\nA text.")
    assert source.id == source_id("document", source.content)
    assert row.document == Document("d1", "A title", source.id)
    assert row.question is None and row.gold is None


def test_a_query_may_search_everything(tmp_path):
    (row,) = readers.open([write(tmp_path, "queries.jsonl.gz", QUERY)], "beir", ReadCounts())
    assert row.question == Question(id="1", text="a claim", citations=None)


def test_equal_texts_share_a_source_and_are_listed_under_each_id(tmp_path):
    path = write(tmp_path, "corpus.jsonl.gz", DOCUMENT, DOCUMENT | {"_id": "d2"}, DOCUMENT)
    counts = ReadCounts()
    rows = list(readers.open([path], "beir", counts))
    assert [r.document.id for r in rows] == ["d1", "d2"]
    assert len({r.document.source for r in rows}) == 1
    assert counts.repeated_rows == 1


def test_a_folder_gives_the_corpus_before_the_queries_and_leaves_the_judgements(tmp_path):
    write(tmp_path, "queries.jsonl.gz", QUERY, DOCUMENT | {"_id": "2"})
    write(tmp_path, "corpus.jsonl.gz", DOCUMENT | {"_id": "1"})
    (tmp_path / "qrels.trec").write_text("1 0 d1 1\n")
    counts = ReadCounts()
    rows = list(readers.open([tmp_path], "beir", counts))
    assert [(r.document or r.question).id for r in rows] == ["1", "1", "2"]
    assert (counts.rows, counts.other_files) == (3, 0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"_id": None}, "no_id"),
        ({"_id": ""}, "no_id"),
        ({"_id": 4983.5}, "wrong_type"),
        ({"title": None}, "wrong_type"),
        ({"text": ["a"]}, "wrong_type"),
        ({"text": "other"}, "conflicting_id"),
    ],
)
def test_a_bad_document_is_a_fault_and_the_others_are_read(tmp_path, bad, reason):
    path = write(tmp_path, "corpus.jsonl.gz", DOCUMENT, DOCUMENT | bad, DOCUMENT | {"_id": "d3"})
    counts = ReadCounts()
    rows = list(readers.open([path], "beir", counts))
    assert [[f.reason for f in r.faults] for r in rows] == [[], [reason], []]
    assert (counts.rows, counts.faults) == (2, 1)


def test_a_document_without_text_or_title_field_or_both(tmp_path):
    missing_text = {"_id": "d2", "title": "A title"}
    blank = {"_id": "d3", "title": "", "text": " "}
    untitled = {"_id": "d4", "text": "words"}
    counts = ReadCounts()
    path = write(tmp_path, "corpus.jsonl.gz", missing_text, blank, untitled)
    rows = list(readers.open([path], "beir", counts))
    assert [f.reason for f in rows[0].faults] == ["missing_field"]
    assert rows[1].sources[0].content == "\nwords"
    assert (len(rows), counts.empty_documents) == (2, 1)


def test_a_blank_query_is_a_fault(tmp_path):
    path = write(tmp_path, "queries.jsonl.gz", QUERY | {"text": " "}, QUERY)
    row, _ = readers.open([path], "beir", ReadCounts())
    assert row.question is None and row.faults[0].reason == "missing_field"


def test_whole_numbers_are_ids_and_a_file_of_which_no_line_can_be_read_is_refused(tmp_path):
    (tmp_path / "qrels.trec").write_text("1 0 4983 1\n")
    write(tmp_path, "queries.jsonl.gz", QUERY | {"_id": 1})
    write(tmp_path, "corpus.jsonl.gz", DOCUMENT | {"_id": 4983})
    document, query = readers.open([tmp_path], "beir", ReadCounts())
    assert (document.document.id, query.question.id, query.gold.grades) == ("4983", "1", {"4983": 1})
    write(tmp_path, "corpus.jsonl.gz", {"id": "1", "text": "a"}, {"id": "2", "text": "b"})
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: none of 2 lines.*\n.*_id: expected text"):
        list(readers.open([tmp_path], "beir", ReadCounts()))


def test_a_file_whose_name_does_not_say_what_it_is_is_refused(tmp_path):
    with pytest.raises(DataError, match="starts with corpus, queries or qrels"):
        readers.open([write(tmp_path, "docs.jsonl.gz", DOCUMENT)], "beir", ReadCounts())
    with pytest.raises(DataError, match=r"expected files that begin with corpus or queries, named \.jsonl"):
        readers.files_of([tmp_path], "beir")


DATA = os.environ.get("RAYPIPE_DATA")


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="RAYPIPE_DATA is not set: no real data here")
def test_scifact_has_5183_documents_and_150_queries():
    counts = ReadCounts()
    rows = list(readers.open([Path(DATA or "", "scifact")], "beir", counts))
    assert sum(r.document is not None for r in rows) == 5183
    assert sum(r.question is not None for r in rows) == 150
    assert counts.faults == 0
