"""Lines of JSON, which end at a line feed and nowhere else; and that nothing cuts them in another way."""

import ast
import json

import pytest
from checkout import ROOT

from raypipe.core.textfile import json_lines

SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"


@pytest.mark.parametrize("ascii", [True, False])
def test_a_text_with_any_separator_of_lines_stays_in_its_line(ascii):
    values = [{"text": f"a{c}b"} for c in SEPARATORS]
    text = "".join(json.dumps(v, ensure_ascii=ascii) + "\n" for v in values)
    assert json_lines(text) == json_lines(text.encode()) == values
    assert json_lines("\n \n") == json_lines(b"") == []


def cuts_lines_of_json(node):
    """Whether a simple statement, or a loop with its body, calls both `splitlines` and `json.loads`."""
    if isinstance(node, ast.stmt) and hasattr(node, "body") and not isinstance(node, ast.For):
        return False
    named = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return {"splitlines", "loads"} <= named


def test_no_program_cuts_lines_of_json_at_other_separators():
    programs = [f for folder in ("src", "bench", "jobs", "serve") for f in (ROOT / folder).rglob("*.py")]
    support = [f for f in (ROOT / "tests").rglob("*.py") if not f.name.startswith("test_")]
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (*programs, *support)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.stmt) and cuts_lines_of_json(node)
    ]
    assert found == []
