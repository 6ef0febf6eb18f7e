"""Drills and benches run by hand: what they take from raypipe and from one another is there."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


CALLED = sorted(f.stem for f in BENCH.glob("*.py") if "def main(" in f.read_text())  # they import the others


@pytest.mark.parametrize("name", CALLED)
def test_a_bench_imports_and_says_how_it_is_called(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCH))
    had = set(sys.modules)
    try:
        bench = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            bench.main()
    finally:
        for new in set(sys.modules) - had:
            if str(getattr(sys.modules[new], "__file__", "")).startswith(str(BENCH)):
                del sys.modules[new]  # `serve` is also the folder of the endpoint
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out
