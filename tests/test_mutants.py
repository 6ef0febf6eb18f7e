"""Broken pages by the hundred: every row is done, a dead letter or still to do, and none is over its limits.

`python bench/mutants.py` does the same with ten thousand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from mutants import mutants, originals, run

PAGES = 300


def test_no_broken_page_is_lost_or_hangs(tmp_path):
    pages = list(mutants(originals(tmp_path / "world", None), PAGES, seed=1))
    found = run(pages, tmp_path)
    assert found["done"] + found["failed"] + found["pending"] == PAGES == len(set(pages))
    assert found["failed"] == sum(found["reasons"].values()) - found["pending"]
    assert found["done"] > PAGES * 0.9 and found["failed"] > 0, found
    assert found["slowest_part_s"] < 20 * 5, "twenty pages a part, five seconds a page"
