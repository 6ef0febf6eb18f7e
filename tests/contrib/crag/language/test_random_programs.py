"""Random programs by the thousand, in `make test-all` by the hundred thousand: each line comes to a result
or a declared fault, and nothing raises."""

import sys

import pytest
from checkout import BENCH

sys.path.insert(0, str(BENCH / "drills"))
from fuzz import programs, smallgraph, through


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("many", [1000, pytest.param(100_000, marks=pytest.mark.drill)])
def test_whatever_a_program_says_each_line_has_a_result_or_a_fault_with_its_reason(many):
    found = through(programs(many, seed=3), smallgraph.build())
    lines = found["lines"]
    assert found["programs"] == many
    assert lines["found"] > many / 20 and lines["nothing"] > many / 20, "many are programs that make sense"
    assert lines.keys() >= {"bad_call", "unknown_key", "bad_time", "bad_mean", "no_rows"}
