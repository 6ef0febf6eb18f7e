"""Broken pages by the hundred, in `make test-all` by the ten thousand: every row is done, a dead letter or
still to do, and none is over its limits."""

import sys

import pytest
from checkout import BENCH

sys.path.insert(0, str(BENCH / "drills"))
from mutants import mutants, originals, run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.drill)])
def test_no_broken_page_is_lost_or_hangs(tmp_path, count):
    pages = list(mutants(originals(tmp_path / "world", None), count, seed=1))
    found = run(pages, tmp_path)
    assert found["done"] + found["failed"] + found["pending"] == count == len(set(pages))
    assert found["failed"] == sum(found["reasons"].values()) - found["pending"]
    assert "unparsable" not in found["reasons"], "a page made a parser raise"
    assert found["done"] > count * 0.85 and found["failed"] > 0, found
    assert found["slowest_part_s"] < 20 * 5, "twenty pages a part, five seconds a page"
