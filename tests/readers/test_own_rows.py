"""Rows of a user's own become questions, golds, documents and sources, whatever file and fields they have."""

import csv
import gzip
import json
from pathlib import Path

import papers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypipe import readers
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Turn
from raypipe.readers import ReadCounts, RowFormat
from raypipe.readers.documents.reader import read_by
from raypipe.readers.field_map import parse
from raypipe.readers.row_files import find, rows

ROW = {
    "question": "who directed velora?",
    "answers": ["Anna Lindqvist", "A. Lindqvist"],
    "ctxs": [{"title": "Velora", "text": "Velora was directed by Anna Lindqvist."}],
}


def read(path, fields=None, counts=None):
    """The rows of a file or folder, once it passed the checks that a run makes before its work."""
    format = RowFormat(parse(fields)) if fields else "rows"
    readers.check([path], format)
    return list(readers.open([path], format, counts or ReadCounts()))


def lines(folder, *rows, name="q.jsonl"):
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def table(folder, *rows):
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "q.parquet")
    return folder / "q.parquet"


def cells(folder, *rows, name="q.csv", delimiter=","):
    with (folder / name).open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return folder / name


def as_list(folder, *rows):
    (folder / "q.json").write_text(json.dumps(rows, indent=1))
    return folder / "q.json"


def packed(folder, *rows):
    (folder / "q.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return folder / "q.jsonl.gz"


def misnamed(folder, *rows):
    return lines(folder, *rows, name="q.json")


@pytest.mark.parametrize("write", [lines, table, as_list, packed, misnamed])
def test_equal_rows_are_equal_records_in_every_kind_of_file(tmp_path, write):
    first, second = read(write(tmp_path, ROW, ROW | {"question": "and who wrote it?", "answers": []}))
    assert first.question.text == "who directed velora?"
    assert first.gold.answers == ("Anna Lindqvist", "A. Lindqvist")
    (source,) = first.sources
    assert (source.kind, source.content) == ("document", "Velora\nVelora was directed by Anna Lindqvist.")
    assert [c.page for c in first.question.citations] == [source.id]
    assert second.gold is None, "a question without answers has no gold"
    assert first.question.id != second.question.id


def test_cells_of_csv_hold_text_or_a_list_as_json(tmp_path):
    path = cells(
        tmp_path,
        ["QID", "Question", "Gold Answers", "context"],
        ["007", "who?", '["Anna", "A."]', "line one\nline two, with a comma"],
        ["8", "where?", "Oslo", ""],
    )
    first, second = read(path)
    assert (first.question.id, first.gold.answers) == ("007", ("Anna", "A."))
    assert first.sources[0].content == "line one\nline two, with a comma"
    assert (second.gold.answers, second.question.citations) == (("Oslo",), ())


@pytest.mark.parametrize(("name", "delimiter"), [("q.tsv", "\t"), ("q.csv", ";")])
def test_tabs_and_semicolons_part_cells_too(tmp_path, name, delimiter):
    rows = ["question", "answer"], ["a, b; c?", "1,5"]
    (row,) = read(cells(tmp_path, *rows, name=name, delimiter=delimiter))
    assert (row.question.text, row.gold.answers) == ("a, b; c?", ("1,5",))
    rows = ["question", "all, of, it; or; a\tpart\tof\tit"], ["who?", "x"]
    (row,) = read(cells(tmp_path, *rows, name=name, delimiter=delimiter))
    assert row.question.text == "who?", "what stands in quotation marks parts no names"


def test_fields_that_common_names_do_not_find_are_named(tmp_path):
    path = lines(
        tmp_path,
        {"nr": 3, "frage": "wer?", "gold": {"werte": ["Anna"]}, "belege": [{"kopf": "T", "inhalt": "x y"}]},
    )
    fields = "query=frage,answer=gold.werte,id=nr,documents=belege,title=kopf,text=inhalt"
    (row,) = read(path, fields)
    assert (row.question.id, row.question.text, row.gold.answers) == ("3", "wer?", ("Anna",))
    assert row.sources[0].content == "T\nx y"


def test_a_right_answer_is_taken_before_what_a_system_said(tmp_path):
    (row,) = read(lines(tmp_path, {"user_input": "q?", "answer": "said", "ground_truth": "right"}))
    assert row.gold.answers == ("right",)


@pytest.mark.parametrize(
    ("answer", "golds"),
    [
        ("Anna", ("Anna",)),
        (5.0, ("5",)),
        (True, ("yes",)),
        (["Anna", None, " ", "Anna", 3], ("Anna", "3")),
        ({"text": ["Anna"], "answer_start": [4]}, ("Anna",)),
        ({"value": "Anna", "aliases": ["A."], "type": "x"}, ("Anna", "A.")),
        ([{"text": "Anna"}, {"text": "A."}], ("Anna", "A.")),
    ],
)
def test_the_forms_that_answers_have_in_public_data_are_read(tmp_path, answer, golds):
    (row,) = read(lines(tmp_path, {"question": "q?", "answer": answer}))
    assert row.gold.answers == golds


def test_aliases_add_to_an_answer(tmp_path):
    (row,) = read(lines(tmp_path, {"question": "q?", "answer": "Anna", "aliases": ["A."]}))
    assert row.gold.answers == ("Anna", "A.")
    (row,) = read(lines(tmp_path, {"q": "q?", "a": "Anna", "b": "A."}), "query=q,answer=a+b")
    assert row.gold.answers == ("Anna", "A.")


@pytest.mark.parametrize(
    ("documents", "contents"),
    [
        ("one text", ["one text"]),
        (["one", "two"], ["one", "two"]),
        ([["Title", ["One.", " Two."]]], ["Title\nOne. Two."]),
        ({"title": ["A", "B"], "sentences": [["a."], ["b.", "c."]]}, ["A\na.", "B\nb. c."]),
        ({"passage_text": ["x", "y"], "is_selected": [0, 1]}, ["x", "y"]),
        ([{"page_content": "x", "metadata": {}}], ["x"]),
    ],
)
def test_the_forms_that_documents_have_in_public_data_are_read(tmp_path, documents, contents):
    (row,) = read(lines(tmp_path, {"question": "q?", "context": documents}))
    assert [s.content for s in row.sources] == contents
    assert len(row.question.citations) == len(contents)


def test_html_is_a_page_with_its_title_as_in_crag(tmp_path):
    page = {"url": "https://a.example/", "title": "A", "html": "<p>x</p>"}
    (row,) = read(lines(tmp_path, {"question": "q?", "documents": [page, "<!doctype html><p>y</p>"]}))
    assert [(s.kind, s.content) for s in row.sources] == [
        ("page", "<p>x</p>"),
        ("name", "A"),
        ("page", "<!doctype html><p>y</p>"),
    ]
    assert row.question.citations[0].url == "https://a.example/"


def test_paths_are_read_from_the_folder_of_the_data_and_from_nowhere_else(tmp_path):
    data = tmp_path / "data"
    (data / "pages").mkdir(parents=True)
    (data / "pages/a.html").write_text("<p>x</p>")
    (data / "pages/b.txt").write_text("plain")
    (tmp_path / "secret.txt").write_text("secret")
    (data / "pages/link.txt").symlink_to(tmp_path / "secret.txt")
    named = ["pages/a.html", {"path": "pages/b.txt"}, "../secret.txt", "pages/link.txt", "pages/none.md"]
    (row,) = read(lines(data, {"question": "q?", "documents": named}))
    assert [(s.kind, s.content) for s in row.sources] == [("page", "<p>x</p>"), ("document", "plain")]
    assert [f.reason for f in row.faults] == ["no_file"] * 3
    assert row.question.citations[0].url == "pages/a.html"


@pytest.mark.slow
def test_a_pdf_and_a_docx_that_rows_name_are_read_as_in_a_folder(tmp_path):
    (tmp_path / "a b.pdf").write_bytes(
        papers.two_pages_and_a_bad_one(papers.said_page("Velora is a film of 1994."))
    )
    (tmp_path / "b.docx").write_bytes(papers.docx(papers.par(papers.run("Velora has a sequel."))))
    (tmp_path / "cut.pdf").write_bytes(b"%PDF-1.7 and nothing else")
    (row,) = read(lines(tmp_path, {"question": "q?", "documents": ["a b.pdf", "b.docx", "cut.pdf"]}))
    pdf, docx = row.sources
    assert pdf.content.count("Velora is a film of 1994.") == 2 and "sequel" in docx.content
    assert [c.url for c in row.question.citations] == ["a%20b.pdf", "b.docx"]
    assert [f.reason for f in row.faults] == ["bad_page", "broken"]
    assert [f.detail.partition(": ")[2][:12] for f in row.faults] == ["'a b.pdf', p", "'cut.pdf': e"]
    (row,) = read(lines(tmp_path, {"path": "a b.pdf", "id": "d"}))
    assert (row.document.title, row.layout.source, row.layout.url) == ("a b", pdf.id, "a%20b.pdf")
    assert [p.label for p in row.layout.pages] == ["1", "2", "3"]
    assert [f.reason for f in row.faults] == ["bad_page"]
    assert read_by(tmp_path / "a b.pdf").startswith("pdf/") and read_by(tmp_path / "a.txt") is None


def test_the_bytes_of_named_files_are_part_of_the_data(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    path = lines(tmp_path, {"question": "q?", "documents": ["a.txt"]})
    assert readers.referenced([path], "rows") == [tmp_path / "a.txt"]
    assert readers.referenced([lines(tmp_path, ROW)], "rows") == []
    texts = ({"text": f"t{n}", "path": None} for n in range(60))
    assert readers.referenced([lines(tmp_path, *texts, {"path": "a.txt"})], "rows") == [tmp_path / "a.txt"]


def test_a_question_without_a_field_of_documents_may_search_everything(tmp_path):
    asked, bare = read(lines(tmp_path, {"question": "q?"})), ReadCounts()
    assert asked[0].question.citations is None
    (row,) = read(lines(tmp_path, {"question": "q?", "documents": []}), counts=bare)
    assert (row.question.citations, bare.questions_without_pages) == ((), 1)


def test_rows_without_a_question_are_documents(tmp_path):
    document, question = (
        read(lines(tmp_path, {"id": 7, "title": "T", "text": "x"})),
        read(lines(tmp_path, {"question": "q?"}, name="r.jsonl")),
    )
    assert (document[0].document.id, document[0].sources[0].content) == ("7", "T\nx")
    assert question[0].document is None


@pytest.mark.parametrize(
    "row",
    [
        {
            "positive_ctxs": [{"title": "Hose", "text": "a", "score": 1000, "passage_id": "7"}],
            "negative_ctxs": [],
            "hard_negative_ctxs": [{"title": "Pump", "text": "b"}],
        },
        {
            "positive_passages": [{"docid": "1", "title": "Hose", "text": "a"}],
            "negative_passages": [{"docid": "2", "title": "Pump", "text": "b"}],
        },
        {"pos": ["a"], "neg": ["b"], "pos_scores": [0.9], "neg_scores": [0.1]},
    ],
    ids=["DPR", "Tevatron", "FlagEmbedding"],
)
def test_passages_of_training_sets_are_the_documents_of_their_question(tmp_path, row):
    [found] = read(lines(tmp_path, {"query": "what is a hose?", "answers": ["a"], **row}))
    assert sorted(s.content[-1] for s in found.sources) == ["a", "b"]
    assert len(found.question.citations) == 2


def test_musiques_paragraphs_are_the_documents_of_their_question(tmp_path):
    row = {
        "id": "2hop__1",
        "question": "where is the hose made",
        "answer": "Malmo",
        "answer_aliases": ["Malmö"],
        "answerable": True,
        "question_decomposition": [{"id": 1, "question": "x", "answer": "y"}],
        "paragraphs": [{"idx": 0, "title": "Hose", "paragraph_text": "It is made in Malmo."}],
    }
    [found] = read(lines(tmp_path, row))
    assert [s.content for s in found.sources] == ["Hose\nIt is made in Malmo."]
    assert found.gold.answers == ("Malmo", "Malmö") and len(found.question.citations) == 1


def test_squads_nested_form_is_a_question_for_each_of_its_questions(tmp_path):
    asked = {"id": "1", "question": "q?", "answers": [{"text": "x", "answer_start": 0}]}
    tree = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "x y", "qas": [asked]}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(tree))
    (row,) = read(tmp_path / "dev.json")
    assert (row.question.id, row.gold.answers, row.sources[0].content) == ("1", ("x",), "T\nx y")


def test_a_bad_row_is_a_fault_and_costs_itself(tmp_path):
    counts = ReadCounts()
    path = lines(tmp_path, ROW, {"answers": ["x"]}, {"question": 5}, ROW | {"question": "next?"}, ROW)
    rows = read(path, counts=counts)
    assert [f.reason for r in rows for f in r.faults] == ["missing_field", "wrong_type"]
    assert (counts.lines, counts.rows, counts.faults, counts.repeated_rows) == (5, 2, 2, 1)


def test_an_id_that_comes_twice_with_other_content_is_a_fault(tmp_path):
    rows = read(lines(tmp_path, {"id": 1, "question": "a?"}, {"id": 1, "question": "b?"}))
    assert rows[1].faults[0].reason == "conflicting_id"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question", r"expected ROLE=FIELD, such as query=question, found 'question'"),
        ("quary=q", r"'quary' is no role; did you mean 'query'\?"),
        ("query=q,query=r", r"query is named twice"),
        ("query=a+b", r"expected one field for query"),
        (",", r"expected ROLE=FIELD,..."),
    ],
)
def test_a_field_map_that_cannot_be_read_says_what_was_expected(text, said):
    with pytest.raises(ConfError, match=said):
        parse(text)


def test_a_field_map_that_names_no_field_is_refused_with_the_fields_that_are_there(tmp_path):
    with pytest.raises(
        ConfError, match=r"no field 'anwsers'.*did you mean 'answers'\?.*question, answers, ctxs"
    ):
        read(lines(tmp_path, ROW), "answer=anwsers")


def test_files_without_a_question_or_a_text_are_refused_with_the_fields_that_were_seen(tmp_path):
    with pytest.raises(DataError, match=r"found the fields a, b.\nName it: --fields query=FIELD"):
        read(lines(tmp_path, {"a": 1, "b": 2}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question,answer\na, b?,1\n", r"q.csv:2: ragged rows: expected at most 2 cells.*found 3"),
        ('question,answer\n"a?,1\n', r"expected CSV: .*quotation mark not closed"),
        ("question,question\na?,1\n", r"'question' twice"),
        ("", r"expected the names of the fields in its first line, found none"),
        ("question,answer\n\udce9?,1\n", r"q.csv:2: expected UTF-8, found the byte 0xe9"),
        ("question\n\0\n", r"NUL byte"),
    ],
)
def test_csv_that_is_not_regular_is_refused_before_anything_is_read(tmp_path, text, said):
    (tmp_path / "q.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=said):
        readers.check([tmp_path / "q.csv"], "rows")


def test_last_cells_of_a_csv_may_be_left_out_and_a_row_with_more_than_the_header_is_a_fault_of_its_line(
    tmp_path,
):
    (tmp_path / "q.csv").write_text("question,answer,source\na?,1\nb, c?,2,x,y\nd?,3,x,\n")
    found = list(rows(*find([tmp_path / "q.csv"]), ReadCounts()))
    assert [r.value for r in found] == [
        {"question": "a?", "answer": "1", "source": ""},
        None,
        {"question": "d?", "answer": "3", "source": "x"},
    ]
    assert (found[1].number, found[1].fault.reason) == (3, "ragged_rows")


@pytest.mark.parametrize("name", ["q.parquet", "q.json"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00\x01nothing of the kind" * 20)
    with pytest.raises(DataError, match=name):
        readers.check([tmp_path / name], "rows")


def test_formats_are_told_apart_by_looks(tmp_path):
    crag = {"interaction_id": "1", "query": "q?", "answer": "a", "search_results": []}
    for name, row, format in [
        ("dev.jsonl", crag, "crag"),
        ("own.jsonl", ROW, "rows"),
        ("corpus.jsonl", {"_id": "1", "text": "x"}, "beir"),
        ("own.json", ROW, "rows"),
    ]:
        assert readers.looks_like([lines(tmp_path, row, name=name)]) == format, name
    assert readers.looks_like([table(tmp_path, ROW)]) == "rows"
    assert readers.looks_like([Path("crag_task_3_dev_v4.tar.bz2.part1")]) == "crag"


def test_an_empty_file_in_front_says_nothing_about_the_format(tmp_path):
    own, crags = lines(tmp_path, ROW), lines(tmp_path, {"interaction_id": "1"}, name="crag.jsonl")
    for name, content in (("empty.jsonl", b""), ("blank.jsonl", b"\n\n")):
        (tmp_path / name).write_bytes(content)
        assert readers.looks_like([tmp_path / name, own]) == "rows"
        assert readers.looks_like([tmp_path / name, crags]) == readers.looks_like([tmp_path / name]) == "crag"


TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who directed velora?"}]
TALK += [{"role": "assistant", "text": "Anna Lindqvist"}]


@pytest.mark.parametrize("write", [lines, table, cells])
def test_earlier_turns_are_read_from_every_kind_of_file_and_number_the_question(tmp_path, write):
    same = [
        {"role": t["role"], "text": t.get("text", t.get("content"))} for t in TALK
    ]  # Parquet has one type
    rows = [{"id": "1", "question": "who directed velora?", "answer": "Anna", "turns": []}]
    rows += [{"id": "2", "question": "and its budget?", "answer": "4", "turns": same}]
    if write is cells:
        names = list(rows[0])
        rows = [names, *([r if isinstance(r, str) else json.dumps(r) for r in row.values()] for row in rows)]
    first, second = read(write(tmp_path, *rows))
    assert first.question.turns == () and first.gold.labels == {"turn": "1"}
    said = (Turn("user", "who directed velora?"), Turn("assistant", "Anna Lindqvist"))
    assert second.question.turns == said and second.gold.labels == {"turn": "2"}


def test_turns_tell_questions_of_one_text_apart_and_what_is_none_is_a_fault_of_its_row(tmp_path):
    path = lines(
        tmp_path,
        {"question": "and then?", "turns": TALK},
        {"question": "and then?", "turns": TALK[:2]},
        {"question": "and then?", "turns": [{"role": "user", "content": 7}]},
        {"question": "and then?", "turns": ["who?"]},
        {"question": "and then?", "turns": [{"role": "human", "content": "who?"}]},
    )
    one, other, number, text, role = read(path)
    assert one.question.id != other.question.id
    assert "message 1: expected text, found an integer" in number.faults[0].detail
    assert "turns: expected a list of messages" in (said := text.faults[0].detail) and "1 is text" in said
    assert "message 1: expected role user or assistant" in role.faults[0].detail
    (counted,) = read(lines(tmp_path, {"question": "and then?", "turns": 3}, name="n.jsonl"))
    assert counted.question.turns == (), "a number of turns"
