"""docs/formats.md: its blocks run in order, and print what it shows."""

import re
from typing import get_args

import pytest
from checkout import ROOT
from pages import computing

from raypipe.contrib.world.write import write
from raypipe.evaluation.export import FileShape
from raypipe.runs import release
from raypipe.runs.run_parts import JSON_FORMAT
from raypipe.store import database

PAGE = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OWN = ('ray.init(address="local", include_dashboard=False)\n', "ray.shutdown()\n")
"""Lines for a Ray of one's own: here it is that of all tests."""


def test_the_table_of_formats_has_the_numbers_that_are_written():
    written = {
        "JSON for programs, run.json": JSON_FORMAT,
        "release": release.FORMAT,
        "store": database.FORMAT,
    }
    said = dict(re.findall(r"^[|] ([^|]+) [|] (\d+) [|] when", PAGE, re.MULTILINE))
    assert said == {name: str(number) for name, number in written.items()}


def test_the_page_names_every_format_of_an_export():
    listed = PAGE.partition("`raypipe export RUN")[2].partition("\n## ")[0]
    assert {shape for shape in (*get_args(FileShape), "mlflow") if f"`{shape}`" not in listed} == set()


@pytest.mark.drill
def test_the_page_runs_and_prints_what_it_shows(tmp_path, local_ray, monkeypatch, capsys):
    script = "\n".join(text for kind, text in BLOCKS if kind == "python")
    assert [script.count(line) for line in OWN] == [1, 1]
    write(tmp_path / "world", 2, pages=3, seed=3, page_chars=1000)
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYPIPE_CONF", str(computing(tmp_path / "conf")))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    for line in OWN:
        script = script.replace(line, "")
    exec(compile(script, "page", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "".join(text for kind, text in BLOCKS if kind == "text")
