"""`raypipe ingest --dry-run` shows how files would be read, and stores nothing; wrong input is refused."""

import json
import re

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs import schemas

from raypipe.api.cli.main import main

ROW = {"question": "who directed velora?", "answers": ["Anna", "A."], "ctxs": ["Velora is by Anna."], "x": 1}


@pytest.fixture
def said(tmp_path, capsys, monkeypatch):
    """Exit code, stdout and stderr of a command over rows in a file."""
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))

    def run(*words, rows=(ROW,), name="q.jsonl"):
        file = tmp_path / name
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(list(rows)), file)
        elif not file.exists():
            file.write_text("\n".join(map(json.dumps, rows)))
        code = main([words[0], *(str(file) if w == "FILE" else str(w) for w in words[1:])])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_dry_run_shows_the_fields_and_the_first_row_and_stores_nothing(said, tmp_path):
    code, out, _ = said("ingest", "FILE", "--dry-run", name="nq.parquet")
    assert code == 0 and not (tmp_path / "home").exists()
    for shown in ("read as rows", "answers", "not read      x", "Anna | A.", "Velora is by Anna."):
        assert shown in out


def test_a_dry_run_of_other_formats_shows_the_first_row_too(said):
    page = {
        "page_name": "A",
        "page_url": "",
        "page_snippet": "",
        "page_last_modified": "",
        "page_result": "x",
    }
    row = {"interaction_id": "1", "query": "q?", "query_time": "", "answer": "a", "search_results": [page]}
    code, out, _ = said("ingest", "FILE", "--dry-run", rows=[row | {"static_or_dynamic": "static"}])
    assert code == 0 and "read as crag" in out and "document 1" in out
    assert "static_or_dynamic static" in out  # the longest name leaves a gap


def test_what_a_dry_run_prints_for_programs_validates(said):
    code, out, _ = said("ingest", "FILE", "--dry-run", "--json")
    tree = json.loads(out)
    jsonschema.validate(tree, dict(schemas())["ingest"], cls=jsonschema.Draft202012Validator)
    assert code == 0 and tree["question"]["answers"] == ["Anna", "A."]
    assert tree["files"][0]["fields"]["documents"] == ["ctxs"] and tree["files"][0]["unused"] == ["x"]


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ("answer=gold", 2, "no field 'gold'"),
        ("anser=answers", 2, "did you mean 'answer'?"),
        ("nothing", 2, "expected ROLE=FIELD"),
    ],
)
@pytest.mark.parametrize("command", ["ingest", "plan", "eval", "sweep"])
def test_a_wrong_field_map_is_exit_code_2_before_work(said, tmp_path, command, fields, code, message):
    words = ["FILE"] if command == "ingest" else ["local", "--data", "FILE"]
    words += ["--set", "fuse:final.top=5,10"] if command == "sweep" else []
    got, _, err = said(command, *words, "--fields", fields, "--store", tmp_path / "s")
    assert got == code and message in err
    assert not (tmp_path / "s/_ingested").exists()


def test_fields_of_another_format_than_rows_are_refused(said):
    code, _, err = said("ingest", "FILE", "--format", "crag", "--fields", "query=question", "--dry-run")
    assert code == 2 and "expected with --format rows" in err


def test_rows_that_cannot_be_used_are_exit_code_3_with_the_fields_that_were_seen(said, tmp_path):
    code, _, err = said("ingest", "FILE", "--store", tmp_path / "s", rows=[{"a": 1, "b": 2}])
    assert code == 3 and "found the fields a, b" in err and "--fields query=FIELD" in err


def test_a_csv_row_with_too_many_cells_is_listed_with_its_line_and_the_others_are_read(said, tmp_path):
    (tmp_path / "q.csv").write_text("question,answer\na?,1\nb, c?,2\n")
    code, out, _ = said("ingest", "FILE", "--store", tmp_path / "s", name="q.csv")
    assert code == 0 and "1 questions" in out and re.search(r"q\.csv:3: .*expected at most 2 cells", out)


def test_a_parquet_file_is_read_into_a_store_once(said, tmp_path):
    store = ("--store", tmp_path / "s", "--json")
    code, out, _ = said("ingest", "FILE", *store, name="nq.parquet")
    assert code == 0 and json.loads(out)["rows"] == 1
    code, out, _ = said("ingest", "FILE", *store, name="nq.parquet")
    assert json.loads(out)["again"]
    code, out, _ = said("ingest", "FILE", "--fields", "answer=x", *store, name="nq.parquet")
    assert not json.loads(out)["again"], "other fields read other rows of the same bytes"
