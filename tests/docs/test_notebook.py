"""docs/notebook.ipynb: its cells run in order, in one namespace, and end in tables and lines."""

import json

import pytest
from checkout import ROOT
from pages import computing

CELLS = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))["cells"]


def shown(cell, names):
    """Returns the value of a cell's last line, which a notebook shows below it."""
    *first, last = "".join(cell["source"]).splitlines()
    if last.startswith((" ", ")", "]")) or " = " in last:
        first, last = [*first, last], "None"
    exec("\n".join(first), names)
    return eval(last, names)


@pytest.mark.drill
def test_the_cells_of_the_notebook_run_and_show_tables(tmp_path, local_ray, monkeypatch):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYPIPE_CONF", str(computing(tmp_path / "conf")))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    names = {}
    code = [c for c in CELLS if c["cell_type"] == "code"]
    _, run, frame, counts, steps, compared, why = [shown(c, names) for c in code]
    assert repr(run).startswith("run ") and repr(run).count("\n") == 0 and " right" in repr(run)
    assert len(frame) == 5 and set(frame["verdict"]) <= {"right", "wrong", "i don't know"}
    assert frame["asked_at"].dtype.kind == "M" and frame["golds"].iloc[0] == "24 months"
    assert list(frame["domain"]) == ["pump"] * 3 + ["valve"] * 2 and counts["answers"].sum() == 5
    assert steps.keys() >= {"parse", "dense"} and set(steps.values()) == {0}, "all is there"
    for result, column in ((run, "verdict"), (compared, "score.difference"), (why, "requests")):
        assert f"<th>{column}</th>" in result._repr_html_()
