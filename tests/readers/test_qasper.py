"""QASPER's papers: every paragraph one block, every annotator kept, and what odd papers become."""

import gzip
import json
import os
from pathlib import Path

import pytest

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.core.records import paragraph
from raypipe.readers.formats import kind_of
from raypipe.text.blocks import plain_blocks
from raypipe.text.page_parser import fold, storable

DATA = os.environ.get("RAYPIPE_DATA")
given = pytest.mark.skipif(DATA is None, reason="RAYPIPE_DATA is not set")
EMPTY = {
    "unanswerable": False,
    "extractive_spans": [],
    "yes_no": None,
    "free_form_answer": "",
    "evidence": [],
}


def said(**answer):
    return {"answer": EMPTY | answer}


def paper(*qas, **fields):
    sections = [
        {
            "section_name": "Data",
            "paragraphs": ["We use two  corpora.\nBoth are open.", "", "They are small."],
        },
        {"section_name": None, "paragraphs": ["A paragraph of no section."]},
        {"section_name": "Data ::: Size", "paragraphs": ["- 200 rows each"]},
    ]
    whole = {"title": "On Corpora", "abstract": "We look at corpora.", "full_text": sections}
    return (
        whole
        | {"figures_and_tables": [{"file": "1.png", "caption": "Table 1: Sizes."}]}
        | fields
        | {"qas": list(qas)}
    )


def asked(id, *answers, question="Which corpora?"):
    return {"question": question, "question_id": id, "answers": list(answers)}


def read(tmp_path, name="p.json", **papers):
    (tmp_path / name).write_text(json.dumps(papers))
    counts = readers.ReadCounts()
    rows = list(readers.open([tmp_path / name], "qasper", counts))
    left = counts.rows + counts.faults + counts.repeated_rows + counts.empty_documents
    assert counts.lines == left + counts.blank_lines + counts.dropped_rows
    return rows, counts


def paragraphs(row):
    content = row.sources[0].content
    text = fold(content)
    return text, [text[b.start : b.end] for b in plain_blocks(storable(content), titled=True)]


def test_every_paragraph_is_one_block_and_the_layout_names_its_section(tmp_path):
    [row], _ = read(tmp_path, p1=paper())
    text, blocks = paragraphs(row)
    assert blocks == [
        "On Corpora",
        "We look at corpora.",
        "# Data",
        "We use two corpora. Both are open.",
        "They are small.",
        "A paragraph of no section.",
        "# Data ::: Size",
        "- 200 rows each",
        "# Figures and tables",
        "Table 1: Sizes.",
    ]
    marks = {m.label: text[m.start : m.end] for m in row.layout.sections}
    assert list(marks) == ["Data", "Data ::: Size", "Figures and tables"]
    assert marks["Data"].strip() == "# Data We use two corpora. Both are open. They are small."
    assert row.document.id == "p1" and row.layout.url == "https://arxiv.org/abs/p1"
    assert paragraph("We use two  corpora.\nBoth are open.") == blocks[3]
    assert paragraph("FLOAT SELECTED: Table 1: Sizes.") == blocks[-1]


def test_annotators_that_disagree_are_all_kept_in_the_evaluators_order_of_kinds(tmp_path):
    answers = [
        said(unanswerable=True, free_form_answer="never", evidence=["They are small."]),
        said(extractive_spans=["two", "corpora"], free_form_answer="both", evidence=["They are small."]),
        said(free_form_answer="some corpora", yes_no=True),
        said(yes_no=False),
    ]
    (_, row), _ = read(tmp_path, p1=paper(asked("q1", *answers)))
    found = [(a.answer, a.kind, a.evidence) for a in row.gold.annotators]
    assert found == [
        ("Unanswerable", "none", ()),
        ("two, corpora", "extractive", ("They are small.",)),
        ("some corpora", "abstractive", ()),
        ("No", "boolean", ()),
    ]
    assert row.gold.answers == ("Unanswerable", "two, corpora", "some corpora", "No")
    assert row.gold.labels == {"answer_type": "none", "paper": "p1"}
    assert arrow.annotated.records(arrow.annotated.table([row.gold]))[0].annotators == row.gold.annotators


def test_a_question_searches_its_paper_alone(tmp_path):
    (document, row), _ = read(tmp_path, p1=paper(asked("q1", said(yes_no=True))))
    assert row.question.sources() == (document.document.source,)
    assert row.question.citations[0].url == "https://arxiv.org/abs/p1"


def test_a_question_without_answers_has_no_gold(tmp_path):
    (_, row), counts = read(tmp_path, p1=paper(asked("q1")))
    assert row.question.id == "q1" and row.gold is None and counts.rows == 2


def test_a_paper_without_sections_has_its_abstract(tmp_path):
    bare = paper(asked("q1", said(yes_no=True)), full_text=[], figures_and_tables=[])
    (document, row), _ = read(tmp_path, p1=bare)
    assert document.sources[0].content == "On Corpora\n\nWe look at corpora."
    assert document.layout.sections == () and row.question.sources() == (document.document.source,)


def test_a_paper_without_text_is_counted_and_its_questions_have_nothing_to_search(tmp_path):
    bare = paper(
        asked("q1", said(yes_no=True)), title="", abstract=None, full_text=None, figures_and_tables=[]
    )
    [row], counts = read(tmp_path, p1=bare)
    assert row.question.citations == () and counts.empty_documents == 1
    assert counts.questions_without_pages == 1


def test_a_question_that_cannot_be_read_is_a_fault_and_the_others_are_read(tmp_path):
    odd = [asked("q1", said()), asked("", said(yes_no=True)), "no question", asked("q3", 3, "answer")]
    rows, counts = read(tmp_path, p1=paper(*odd, asked("q2", said(yes_no=True))))
    reasons = ["missing_field", "missing_field", "not_object", "not_object"]
    assert [r.faults[0].reason for r in rows if r.faults] == reasons
    assert rows[-1].question.id == "q2" and counts.faults == 4
    assert rows[1].where.endswith("p.json:p1.qas[0]")


def test_an_id_that_comes_twice_is_read_once(tmp_path):
    rows, counts = read(
        tmp_path, p1=paper(asked("q1", said(yes_no=True)), asked("q1", said(yes_no=True)), asked("q1"))
    )
    assert len(rows) == 3 and counts.repeated_rows == 1 and rows[-1].faults[0].reason == "conflicting_id"


def test_a_file_that_is_no_object_of_papers_says_so(tmp_path):
    for text, expected in (("[1]", "paper id -> paper"), ("{", "expected JSON"), ('{"p": 1}', "paper id")):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(DataError, match=expected):
            list(readers.open([tmp_path / "p.json"], "qasper", readers.ReadCounts()))


def test_json_of_papers_is_known_by_its_looks(tmp_path):
    with gzip.open(tmp_path / "p.json.gz", "wt") as out:
        json.dump({"p1": paper()}, out)
    (tmp_path / "rows.json").write_text('[{"question": "a?", "answer": "b"}]')
    assert readers.looks_like([tmp_path / "p.json.gz"]) == "qasper"
    assert readers.looks_like([tmp_path / "rows.json"]) == "rows"
    assert kind_of("qasper") == "qasper"


@given
def test_of_the_given_papers_all_evidence_is_a_block():
    path = Path(DATA) / "qasper/train10_full_papers.json.gz"
    rows = list(readers.open([path], "qasper", readers.ReadCounts()))
    assert sum(r.question is not None for r in rows) == 51
    known = {b for r in rows if r.document for b in paragraphs(r)[1]}
    lost = {
        e
        for r in rows
        if r.gold
        for a in r.gold.annotators
        for e in a.evidence
        if not {paragraph(e), f"# {e}"} & known
    }
    assert not lost
