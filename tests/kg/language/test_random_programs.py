"""Random programs by the thousand: each line comes to a result or a declared fault, and nothing raises.

`python bench/fuzz.py` does the same with a hundred thousand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from fuzz import SMALL, programs, through

MANY = 4000


def test_whatever_a_program_says_each_line_has_a_result_or_a_fault_with_its_reason():
    found = through(programs(MANY, seed=3), SMALL["build"]())
    lines = found["lines"]
    assert found["programs"] == MANY
    assert lines["found"] > MANY / 20 and lines["nothing"] > MANY / 20, "many are programs that make sense"
    assert lines.keys() >= {"bad_call", "unknown_key", "bad_time", "bad_mean", "no_rows"}
