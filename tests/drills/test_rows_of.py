"""`bench/drills/rows_of.py`: which rows of two checkouts differ."""

import sys

import pytest
from checkout import BENCH

sys.path.insert(0, str(BENCH / "drills"))
from rows_of import differences

ROW = {"answer": "a", "hits": [{"chunk": "c:0-5", "scores": [("final", 1.5)]}], "vector": [0.5, -0.25]}


def changed(**fields):
    return {"answers": {"q": {**ROW, **fields}}}


def test_numbers_within_a_millionth_are_equal():
    near = [{"chunk": "c:0-5", "scores": [("final", 1.5 + 1e-7)]}]
    assert not list(differences(changed(), changed(hits=near, vector=[0.5 + 1e-8, -0.25])))


@pytest.mark.parametrize(
    "fields",
    [
        {"answer": "b"},
        {"vector": [0.5, -0.2501]},
        {"vector": [0.5]},
        {"vector": [float("nan"), -0.25]},
        {"hits": [{"chunk": "c:0-6", "scores": [("final", 1.5)]}]},
        {"hits": []},
        {"origin": "llm"},
    ],
)
def test_another_text_span_order_or_number_differs(fields):
    assert list(differences(changed(), changed(**fields)))
    assert list(differences(changed(**fields), changed()))


def test_a_row_that_only_one_has_differs():
    [line] = differences(changed(), {"answers": {}})
    assert line == "/answers/q: only in the first"
