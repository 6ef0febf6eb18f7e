"""A plan as people see it: what changed, a line a step, and one sentence of sum."""

import io
import math

import pytest
from rich.console import Console

from raypipe.evaluation.report.plans import plan_sum, print_plan
from raypipe.runs.plan.records import Cost, Plan, StepPlan
from raypipe.runs.stage_records import Difference


def step(name, max_calls, exact, calls, reasons, half="question", **cost):
    costs = Cost(**{"seconds": (0.0, 3.0), "tokens": (0, 0), "nbytes": (100_000, 300_000), **cost})
    return StepPlan(name, half, 20, 0, max_calls, exact, reasons, calls, costs)


def printed(*steps, changed=()):
    out = io.StringIO()
    print_plan(Console(file=out, width=80), Plan(steps, changed=changed))
    return [line.rstrip() for line in out.getvalue().splitlines()]


RECALL = step("dense", 20, True, (20, 20), {"row": 20})
EXTRACT = step("extract", 140_020, False, (925, 951), {"upstream": 140_000, "row": 20})
RERANK = step("rerank", 1000, False, None, {"model": 1000})


def test_what_changed_comes_first_then_a_line_a_step_then_the_sum():
    lines = ("split.child_chars was 700, is 400",)
    changed = Difference("split", "parameter", "child_chars", "700", "400", lines)
    first, what, heads, recall, extract, more, *whole = printed(RECALL, EXTRACT, changed=(changed,))
    assert (first, what) == ("changed since the last run:", "  split.child_chars was 700, is 400")
    assert heads.split() == ["step", "rows", "cached", "expected", "at", "most", "time", "because"]
    assert " ".join(recall.split()) == "dense 20 0 20 20 0.0 s - 3.0 s new question"
    assert "extract 20 0 925-951 140,020" in " ".join(extract.split()) and more.strip() == "question 20"
    calls, time, stored = " ".join(" ".join(whole).split()).split("; ")
    assert calls == "about 945-971 calls, at most 140,040"
    assert time == "0.0 s - 6.0 s of computing, loading models not counted"
    assert stored == "the store grows by 0.2 to 0.6 MB, parsed texts not counted"
    assert max(map(len, whole)) <= 80


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        ((400_000, 400_000), "the store grows by about 0.4 MB, parsed texts not counted"),
        ((400_000, math.inf), "the store grows by 0.4 MB or more, parsed texts not counted"),
        ((0, 10_000), "the store grows by less than 0.1 MB, parsed texts not counted"),
    ],
)
def test_what_the_store_grows_by_is_said_in_words(nbytes, said):
    planned = step("dense", 20, True, (20, 20), {"row": 20}, nbytes=nbytes)
    assert plan_sum(Plan((planned,))).endswith(f"; {said}")


def test_a_plan_of_no_calls_does_not_let_the_store_grow():
    planned = step("dense", 0, True, (0, 0), {}, nbytes=(0, 0))
    assert plan_sum(Plan((planned,))).split("; ")[::2] == ["0 calls", "the store does not grow"]


def test_a_step_of_which_nothing_is_known_is_named_and_no_sum_is_made_up_of_the_others():
    [rerank] = [line for line in printed(EXTRACT, RERANK) if line.startswith("rerank")]
    assert "not known 1,000 " in " ".join(rerank.split()) and rerank.endswith("model")
    whole = plan_sum(Plan((EXTRACT, RERANK)))
    assert whole.startswith("calls at most 141,020; no earlier run shows how many are likely for rerank; ")
    endless = step("strange", math.inf, False, None, {"parameter": math.inf})
    assert plan_sum(Plan((endless,))).startswith("calls with no known bound; no earlier run shows")


def test_an_exact_plan_has_one_number():
    assert plan_sum(Plan((RECALL,))).startswith("20 calls; ")


def test_a_time_that_is_not_known_says_what_would_make_it_known():
    unmeasured = step("embed", 20, True, (20, 20), {"row": 20}, seconds=None)
    whole = plan_sum(Plan((RECALL, unmeasured)))
    assert "; time not known until an eval, or --calibrate, has measured embed; " in whole
    said = plan_sum(Plan((unmeasured,)))
    assert "; time not known: no eval of these steps has run on such a machine (--calibrate" in said


def test_a_row_that_no_run_had_is_called_what_it_is():
    lines = printed(step("parse", 7, True, (7, 7), {"row": 5, "parameter": 2}, "corpus"), RECALL)
    assert lines[1].endswith("new page 5, parameter 2") and lines[2].endswith("new question")
