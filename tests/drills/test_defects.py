"""The list of defects: none is lost, each still applies, and the test of each is there."""

import ast
import json
import subprocess
import sys

import pytest
from checkout import BENCH

sys.path.insert(0, str(BENCH / "drills"))
from defects import DEFECTS, ROOT, edited


def test_the_list_is_as_long_as_it_was_and_names_each_defect_once():
    assert len(DEFECTS) >= 53
    assert len({d.what for d in DEFECTS}) == len({(d.file, d.old) for d in DEFECTS}) == len(DEFECTS)
    assert len({d.file for d in DEFECTS}) >= 40, "of many files"


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.what)
def test_a_defect_is_an_edit_of_one_line_that_still_applies_and_has_its_test(defect):
    assert "\n" not in defect.old + defect.new and defect.old != defect.new
    text = edited(ROOT, defect)
    assert text is not None, f"{defect.file}: expected {defect.old!r} once. Let the entry follow the line"
    ast.parse(text)
    file, name = defect.test.split("::")
    tests = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    assert name in {x.name for x in tests if isinstance(x, ast.FunctionDef)}


def test_the_drill_lists_the_defects():
    command = [sys.executable, ROOT / "bench/drills/defects.py", "--list", "--json", "--only", "2", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = [json.loads(line) for line in printed.splitlines()]
    assert [(x["number"], x["what"]) for x in listed] == [(2, DEFECTS[1].what), (1, DEFECTS[0].what)]
