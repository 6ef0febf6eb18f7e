"""Rates of earlier runs in a plan, prices of its calls, and the lines of its changes."""

from types import SimpleNamespace

import pytest

from raypipe.core.llm import TokenPrice
from raypipe.runs.plan.costs import asked_before
from raypipe.runs.plan.records import Cost
from raypipe.runs.run_parts import StepLine
from raypipe.runs.stage_records import Difference, FieldRecord, StageRecord, with_lines


def stage(model):
    fields = {"model": FieldRecord("model", model), "top": FieldRecord("parameter", "5")}
    return StageRecord("question", "llm", "generate", 1, model, model, "{}", ("replies.llm",), fields)


def run(model, computed, cached=0):
    line = StepLine("llm", 60, 60, computed, cached, 0, 0, 1.0)
    return SimpleNamespace(steps=(line,), stage=lambda _: stage(model))


def test_a_run_in_which_a_step_had_no_model_tells_nothing_of_its_calls():
    assert asked_before(stage("paid"), [run("none", 0)], 60, 60) is None
    assert asked_before(stage("paid"), [run("none", 0), run("other", 30, 15)], 60, 60) == (30, 45)
    assert asked_before(stage("paid"), [run("paid", 0)], 60, 60) == (0, 0), "behind a gate it asked nothing"


def test_sure_calls_cost_at_least_the_cheapest_price_of_their_tokens():
    cost = Cost(None, (100_000, 115_635), (0, 0), (60, 60))
    assert cost.usd(TokenPrice(5, 15)) == pytest.approx((0.5, 1.734525))


def test_all_changed_fields_of_a_stage_are_shown():
    before, after = (
        {"corpus": [], "question": [{"name": "llm", "when": {}, "step": {"model": m, "prompt": p, "top": 5}}]}
        for m, p in (("none", "Answer."), ("paid", "Answer in a word."))
    )
    (found,) = with_lines({"llm": Difference("llm", "model", "model", "a", "b")}, before, after).values()
    assert found.lines == (
        "llm.model was none, is paid",
        "llm.prompt was Answer., is Answer in a word.",
    )
