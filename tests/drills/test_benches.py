"""Drills and benches run by hand: what they take from raypipe and from one another is there. Rows measure."""

import importlib
import json
import sys

import pytest
from checkout import BENCH, ROOT

from raypipe.api import bench as bench_api
from raypipe.api.cli.main import main
from raypipe.core.errors import ConfError

CALLED = sorted(f.stem for f in BENCH.rglob("*.py") if "def main(" in f.read_text())  # they import the others
ROWS = sorted(BENCH.glob("rows/*.py"))


@pytest.fixture
def fresh(monkeypatch):
    """The path of what benches share, for one test: `serve` is also the folder of the endpoint."""
    monkeypatch.setattr(
        sys, "path", [*(str(f) for f in (BENCH, BENCH / "drills", BENCH / "figures")), *sys.path]
    )
    had = set(sys.modules)
    yield
    for new in set(sys.modules) - had:
        if str(getattr(sys.modules[new], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[new]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLED)
def test_a_bench_imports_and_says_how_it_is_called(name, fresh, monkeypatch, capsys):
    bench = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("file", ROWS, ids=lambda file: file.stem)
def test_a_row_says_what_it_measures_and_why_it_may_fall_short(file, fresh):
    import bench_rows

    row = bench_rows.read_row(file)
    assert row.does and row.unit and row.turns >= 3
    assert not (row.least and row.most_s), "a ratio to a peer or seconds, not both"
    assert bool(row.peer) == (row.most_s is None), "where there is no peer, seconds are wanted"


@pytest.mark.drill
@pytest.mark.slow
def test_rows_are_measured_by_turns_and_compared(fresh, capsys):
    assert main(["bench", "bm25", "search_request", "split", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bm25, request, split = found["results"]
    assert found["quick"] and bm25["ratio"]["low"] <= bm25["ratio"]["median"] <= bm25["ratio"]["high"]
    assert bm25["rate"] > bm25["peer_rate"] > 0 and bm25["unequal"] == "" and bm25["turns"] == 1
    assert request["limit"] == "memcpy of its vectors" and request["share"] > 0
    if split["not_measured"]:  # its peer is in no list of requirements
        assert split["not_measured"] == "not measured: langchain_text_splitters is not installed"


def test_rows_take_turns_with_those_of_a_commit(capsys):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    assert main(["bench", "bm25", "--quick", "--against", "HEAD", "--json"]) == 0
    (row,) = (found := json.loads(capsys.readouterr().out))["results"]
    assert found["commit"].startswith(found["against"]) and row["name"] == "bm25"
    assert row["ratio"]["median"] == pytest.approx(row["before"]["median"] / row["now"]["median"])
    assert main(["bench", "bm25", "--against", "none"]) == 2
    assert "--against: expected a commit of" in capsys.readouterr().err


def test_a_name_that_no_row_has_is_refused(capsys):
    assert main(["bench", "splitt"]) == 2
    assert "did you mean 'split'?" in capsys.readouterr().err


ROW = """
from contextlib import contextmanager
from bench_rows import BenchRow, Contest

@contextmanager
def contest(quick, machine):
    yield Contest(2, lambda: [1, 2], lambda: [1, 3], lambda a, b: "" if a == b else "2 is not 3")

ROW = BenchRow("two numbers", "numbers", contest, "a peer", least=1e9, short="Numbers are numbers.")
"""


def test_the_table_says_what_differs_and_what_falls_short(tmp_path, fresh):
    import bench_rows

    (tmp_path / "numbers.py").write_text(ROW)
    found = bench_rows.measured("numbers", bench_rows.read_row(tmp_path / "numbers.py"), False, None)
    about = ("2026-01-01", "", {"cores": 2})
    lines = tuple(bench_rows.table(*about, [found]))
    report = bench_api.BenchReport(*about, False, (found,), lines)
    assert found.turns == 5 and found.falls_short and not report.equal
    head, *_, short = lines
    assert head == "2026-01-01, commit unknown. cores 2."
    assert short == "`numbers` falls short of a ratio of 1e+09. Numbers are numbers."
    assert report.table().to_pylist()[0]["name"] == "numbers"


def test_a_file_without_a_row_is_refused(tmp_path, fresh):
    import bench_rows

    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ConfError, match=r"empty\.py: expected ROW"):
        bench_rows.read_row(tmp_path / "empty.py")
