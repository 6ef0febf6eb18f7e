"""A plan as people see it: bounds, and beside them what earlier runs asked."""

import io

import pytest
from rich.console import Console

from raypipe.evaluation.report.plans import print_plan


def step(name, max_calls, exact, calls, runs, reasons, half="question"):
    estimate = {
        "calls": calls, "runs": runs, "seconds": [0.0, 3.0], "tokens": [0, 0], "bytes": [100_000, 300_000],
    }  # fmt: skip
    return {
        "step": name, "half": half, "rows": 20, "cached": 0, "max_calls": max_calls, "exact": exact,
        "reasons": reasons, "estimate": estimate,
    }  # fmt: skip


def printed(*steps):
    out = io.StringIO()
    print_plan(Console(file=out, width=110), {"steps": steps})
    return out.getvalue().splitlines()


RECALL = step("dense", 20, True, [20, 20], 0, {"row": 20})
EXTRACT = step("extract", 140_020, False, [925, 951], 3, {"upstream": 140_000, "row": 20})
RERANK = step("rerank", 1000, False, None, 0, {"model": 1000})


def test_the_estimate_leads_and_the_bound_follows_with_what_the_estimate_rests_on():
    whole, _, recall, extract = printed(RECALL, EXTRACT)
    assert recall.split() == [
        "dense",
        "20",
        "0",
        "20",
        "20",
        "exact",
        "0.0",
        "s",
        "-",
        "3.0",
        "s",
        "new",
        "question",
    ]
    assert "925-951 140,020 3 runs" in " ".join(extract.split())
    calls, time, stored = whole.split("; ")
    assert calls == "about 945-971 calls, at most 140,040"
    assert time == "0.0 s - 6.0 s of computing, loading models not counted"
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
    assert printed(planned)[0].endswith(f"; {said}")


def test_a_plan_of_no_calls_does_not_let_the_store_grow():
    planned = step("dense", 0, True, [0, 0], 0, {})
    planned["estimate"]["bytes"] = [0, 0]
    assert printed(planned)[0].split("; ")[::2] == ["0 calls", "the store does not grow"]


def test_a_step_of_which_nothing_is_known_is_named_and_no_sum_is_made_up_of_the_others():
    whole, _, _, rerank = printed(EXTRACT, RERANK)
    assert "not known 1,000 " in " ".join(rerank.split()) and rerank.endswith("model")
    assert whole.startswith("calls at most 141,020; no run says how many are likely for rerank; ")


def test_a_number_from_a_sample_says_so():
    _, _, extract = printed(step("extract", 8020, False, [1259, 1259], 0, {"row": 8020}))
    assert "1,259 8,020 a sample" in " ".join(extract.split())


def test_an_exact_plan_has_one_number():
    whole, _, recall = printed(RECALL)
    assert whole.startswith("20 calls; ") and " exact " in recall


def test_a_time_that_is_not_known_says_what_would_make_it_known():
    unmeasured = step("embed", 20, True, [20, 20], 0, {"row": 20})
    unmeasured["estimate"]["seconds"] = None
    whole = printed(RECALL, unmeasured)[0]
    assert "; time not known until an eval, or --calibrate, has measured embed; " in whole


def test_a_row_that_no_run_had_is_called_what_it_is():
    lines = printed(step("parse", 7, True, [7, 7], 0, {"row": 5, "parameter": 2}, "corpus"), RECALL)
    assert lines[2].endswith("new page 5, parameter 2") and lines[3].endswith("new question")


def test_where_no_step_was_measured_no_step_is_listed():
    new = [{**s, "estimate": {**s["estimate"], "seconds": None}} for s in (RECALL, EXTRACT)]
    said = printed(*new)[0]
    assert "; time not known: no eval of these steps has run on such a machine (--calibrate" in said
