"""What a corpus of some size would take: arithmetic that grows as the pages do, and says what it lacks."""

import json
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.core.llm import NO_PRICES, Prices
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.tasks import Workers
from raypipe.runs.plan.assumed import Assumed, assumed_plan, chunks_of_page


def planned(pages, count=8, prices=NO_PRICES, **changed):
    recipe = replace(load_recipe("local"), **changed)
    size = Assumed(pages)
    place, kit = ("transformers", "cpu"), LocalKit(None, "transformers")
    return assumed_plan(recipe, size, "eight", 1000, lambda _: Workers(count, 16), place, (), prices, kit)


def test_tasks_bytes_and_requests_grow_as_the_pages_do():
    few, many = planned(1e6), planned(1e8)
    assert [s.step for s in few.steps] == [s.step for s in many.steps]
    for a, b in zip(few.steps, many.steps, strict=True):
        assert b.tasks == pytest.approx(100 * a.tasks, rel=1e-3)
        assert (b.bytes, b.requests) == (
            pytest.approx(100 * a.bytes),
            pytest.approx(100 * a.requests, rel=1e-3),
        )
    assert planned(1e8, 64).steps[0].hours[0] == pytest.approx(many.steps[0].hours[0] / 8)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("local", 27, 40), ("db3-task3", 110, 210), ("db3-task1-2000", 110, 210), ("weknow", 8, 20)],
)
def test_chunks_of_a_page_are_those_of_the_recipes_own_split(name, least, most):
    recipe = load_recipe(name, str(SUPPORT / "fake_models.yaml"), Conf((ROOT / "conf",)))
    assert least <= chunks_of_page(recipe, 22_000, LocalKit(None, "transformers")) <= most


def test_without_a_run_hours_and_money_are_not_known():
    plan = planned(1e6, prices=Prices(machines=3.0))
    assert plan.steps[0].hours is not None, "reading files was measured"
    assert (plan.hours, plan.usd) == (None, None)
    whole = planned(1e6, prices=Prices(machines=3.0), corpus=())
    assert whole.usd == pytest.approx([3 * h for h in whole.hours])


@pytest.mark.parametrize(
    "given", ["1e8", "pages=many", "pages=0", "pages=1e6,colour=3", "pages=inf", "chunks=3"]
)
def test_an_assumption_that_says_nothing_names_what_is_expected(given):
    with pytest.raises(ConfError, match="--assume"):
        Assumed.parse(given, "--assume")


def test_the_command_prints_a_row_for_each_step_and_refuses_data(capsys):
    assert main(["plan", "local", "--assume", "pages=1e8", "--cluster", "eight-gpus", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumed"]["pages"] == 1e8
    assert [s["step"] for s in found["steps"]][:2] == ["ingest", "parse"]
    assert main(["plan", "local", "--assume", "pages=1e8"]) == 0
    assert "in all" in capsys.readouterr().out
    assert main(["plan", "local", "--assume", "pages=1e8", "--data", "x.jsonl"]) == 2
