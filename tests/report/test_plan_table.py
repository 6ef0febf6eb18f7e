"""A plan as people see it: bounds, and beside them what earlier runs asked."""

import io

import pytest
from rich.console import Console

from raypipe.report.plans import print_plan


def step(name, max_calls, exact, calls, runs, reasons):
    estimate = {
        "calls": calls, "runs": runs, "seconds": [0.0, 3.0], "tokens": [0, 0], "bytes": [100_000, 300_000],
    }  # fmt: skip
    return {
        "step": name, "rows": 20, "cached": 0, "max_calls": max_calls, "exact": exact, "reasons": reasons,
        "estimate": estimate,
    }  # fmt: skip


def printed(*steps):
    out = io.StringIO()
    print_plan(Console(file=out, width=110), {"steps": steps})
    return out.getvalue().splitlines()


RECALL = step("dense", 20, True, [20, 20], 0, {"row": 20})
EXTRACT = step("extract", 140_020, False, [925, 951], 3, {"upstream": 140_000, "row": 20})
RERANK = step("rerank", 1000, False, None, 0, {"model": 1000})


def test_beside_a_bound_stand_the_likely_calls_and_how_many_runs_say_so():
    _, recall, extract, whole = printed(RECALL, EXTRACT)
    assert recall.split() == ["dense", "20", "0", "20", "0.0", "s", "-", "3.0", "s", "row"]
    assert "at most 140,020 925-951 (3)" in " ".join(extract.split())
    calls, stored = whole.split("; ")
    assert calls == "at most 140,040 calls, 945-971 expected from earlier runs"
    assert stored == "the store grows by 0.2 to 0.6 MB, parsed texts not counted"


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        ([400_000, 400_000], "the store grows by about 0.4 MB, parsed texts not counted"),
        ([400_000, None], "the store grows by 0.4 MB or more, parsed texts not counted"),
        ([0, 10_000], "the store grows by less than 0.1 MB, parsed texts not counted"),
    ],
)
def test_what_the_store_grows_by_is_said_in_words(nbytes, said):
    planned = step("dense", 20, True, [20, 20], 0, {"row": 20})
    planned["estimate"]["bytes"] = nbytes
    assert printed(planned)[-1] == f"20 calls; {said}"


def test_a_plan_of_no_calls_does_not_let_the_store_grow():
    planned = step("dense", 0, True, [0, 0], 0, {})
    planned["estimate"]["bytes"] = [0, 0]
    assert printed(planned)[-1] == "0 calls; the store does not grow"


def test_a_step_without_an_earlier_run_says_so_and_no_sum_is_made_up_of_the_others():
    _, _, rerank, whole = printed(EXTRACT, RERANK)
    assert "at most 1,000 no earlier run" in " ".join(rerank.split()) and rerank.endswith("model")
    assert whole.startswith("at most 141,020 calls; ")


def test_an_exact_plan_has_no_column_for_what_is_likely():
    head, _, whole = printed(RECALL)
    assert "expected" not in head and whole.startswith("20 calls; ")
