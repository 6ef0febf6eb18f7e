"""`raypipe kg run`: over a folder and over a server, one JSON object, clear refusals."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from smallgraph import build

from raypipe.api.cli.main import main
from raypipe.contrib.crag.server import serve

TIME = "03/05/2024, 23:18:31 PT"


@pytest.fixture
def folder(tmp_path):
    pq.write_table(
        pa.table({"title": ["Amélie"], "release_date": ["2001-04-25"], "year": [2001]}),
        tmp_path / "movie.parquet",
    )
    (tmp_path / "song.csv").write_text("name,author,release_date\nA Song,Ann,2001-01-01\n")
    (tmp_path / "entity.json").write_text(
        '[{"name": "Rome", "summary_text": "A city.", "summary_structured": {"river": "Tiber"}}]'
    )
    return tmp_path


def run(capsys, *arguments):
    code = main(["kg", "run", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_bad_call_is_exit_code_3_after_the_results_of_the_good_ones(folder, capsys):
    lines = (
        "get_movie(amelie)[release_date]",
        "get_nothing()",
        "get_song(a song)[author]",
        "get_open(rome)[river]",
    )
    program = "\n".join(lines)
    code, out, err = run(capsys, "--graph", str(folder), "--time", TIME, program, "--json")
    results = json.loads(out)["results"]
    assert code == 3 and "1 of 4 calls failed: get_nothing(): bad_call: " in err
    assert all(set(r) == {"call", "rows", "values", "sentences", "requests", "ms", "fault"} for r in results)
    assert [r["values"] for r in results] == [["2001-04-25"], [], ["Ann"], ["Tiber"]]
    assert results[0]["sentences"] == ["The release date of the movie Amélie is 2001-04-25."]
    assert results[0]["rows"][0]["title"] == "Amélie"
    assert results[1]["fault"]["reason"] == "bad_call" and results[0]["fault"] is None


def test_the_same_works_against_a_server(capsys):
    with serve(build().tables) as url:
        program = 'get_movie("amélie")["length"]'
        code, out, _ = run(capsys, "--graph", url, "--time", TIME, program, "--json")
    [result] = json.loads(out)["results"]
    assert (code, result["values"]) == (0, [122])
    assert result["requests"] == ['/movie/get_movie_info {"query": "amélie"}'] and result["ms"] > 0


def test_people_get_values_and_sentences(folder, capsys):
    code, out, _ = run(
        capsys, "--graph", str(folder), "--time", TIME, "get_movie(amelie)[year]\nget_song(zzz)"
    )
    assert code == 0
    assert "values: 2001 (1 rows, 0 requests, " in out and "zzz: not in the graph" in out


@pytest.mark.parametrize(
    ("graph", "asked", "code", "says"),
    [
        ("nowhere/at/all", TIME, 3, "expected a folder of tables"),
        ("ftp://x", TIME, 2, "expected http://"),
        (None, "soon", 3, "no time of asking"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_was_expected(folder, capsys, graph, asked, code, says):
    found, _, err = run(capsys, "--graph", graph or str(folder), "--time", asked, "None")
    assert found == code and says in err


def test_a_folder_with_a_broken_or_doubled_table_is_refused(folder, capsys):
    (folder / "price.csv").write_bytes(b"\x00\xff\xfe")
    code, _, err = run(capsys, "--graph", str(folder), "--time", TIME, "None")
    assert code == 3 and "price.csv" in err
    (folder / "price.csv").unlink()
    (folder / "movie.json").write_text("[]")
    code, _, err = run(capsys, "--graph", str(folder), "--time", TIME, "None")
    assert code == 3 and "found two files of table movie" in err


def test_a_program_without_a_line_is_refused(folder, capsys):
    code, out, err = run(capsys, "--graph", str(folder), "--time", TIME, " \n")
    assert (code, out) == (2, "") and "expected lines of calls" in err and "found none" in err
