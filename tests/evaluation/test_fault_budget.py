"""The budget of each step that asks a model: rows without a reply, whatever another step made of them."""

import pytest
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import FaultBudgetExceeded
from raypipe.core.records import Fault, Question, Reply
from raypipe.evaluation.fault_budget import AnswerFaults, RowFaults, check
from raypipe.runs.cluster.cluster_file import Budget

SAID = Fault("generate:llm", "refused", "status 400: use max_completion_tokens", transient=False)
UNREADABLE = Fault("generate:llm", "unreadable", "expected a label", transient=False)
YES = Reply("yes", "answered")


def gathered(*questions):
    recipe = load_recipe(
        "rag",
        str(ROOT / "tests/support/fake_models.yaml"),
        Conf((ROOT / "conf",)),
        llm="http://127.0.0.1:9/v1#m",
    )
    faults = AnswerFaults(recipe)
    for question in questions:
        faults.add(question)
    return faults, RowFaults(tuple(faults.recovered), (), tuple(faults.steps()))


def by_extract(id, fault):
    """A question that `extract` answered after a fault of the language model."""
    replies = {"llm": Reply("", "fault", fault=fault), "extract": YES}
    return Question(id, "who?", replies=replies, answer="yes", outcome="answered", origin="extract")


def by_llm(id):
    replies = {"llm": YES, "extract": Reply("", "skipped")}
    return Question(id, "who?", replies=replies, answer="yes", outcome="answered", origin="llm")


def test_a_step_without_a_reply_for_more_than_half_its_rows_ends_the_run_with_what_the_server_said():
    faults, rows = gathered(*(by_extract(f"e{i}", SAID) for i in range(3)), by_llm("a"), by_llm("b"))
    with pytest.raises(FaultBudgetExceeded, match=r"3 of 5 rows.*step_share(.|\n)*max_completion_tokens"):
        check(Budget(), rows)
    check(Budget(step_share=0.6), rows)
    assert faults.causes == {("generate:llm", "refused", False, True): 3}
    assert {(x.id, x.detail, x.recovered) for x in rows.rows} == {
        (f"e{i}", SAID.detail, True) for i in range(3)
    }
    _, half = gathered(by_extract("e", SAID), by_llm("a"))
    check(Budget(), half)


def test_a_row_without_an_answer_counts_and_a_reply_that_cannot_be_read_is_one():
    late = Question("late", "who?", faults=(Fault("generate:llm", "timeout", "60 s", transient=True),))
    _, rows = gathered(late, *(by_extract(f"e{i}", UNREADABLE) for i in range(5)))
    [step] = rows.steps
    assert (step.step, step.rows, step.unanswered, step.detail) == ("generate:llm", 6, 1, "timeout: 60 s")
    check(Budget(), rows)
