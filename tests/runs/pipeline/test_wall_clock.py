"""Where the wall time of a run goes: parts that add up, with the import of a library on no step."""

import asyncio
import json

import pytest
from checkout import SUPPORT

from raypipe.core.protocols import Model
from raypipe.evaluation.report.console import spent
from raypipe.models import load
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import StageCounters
from raypipe.runs.pipeline.counters import PARTS, WallClock
from raypipe.runs.record import read


class Moment:
    """A clock that others move."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


@pytest.fixture
def moment():
    return Moment()


def test_all_parts_add_up_and_a_part_inside_another_is_booked_once(moment):
    clock = WallClock(moment, began=97.0)
    moment.pass_(1)
    with clock.part("reading"):
        moment.pass_(2)
        with clock.part("starting"):
            moment.pass_(5)
        moment.pass_(3)
    moment.pass_(4)
    assert clock.total() == 18.0
    found = clock.parts()
    assert found == dict.fromkeys(PARTS, 0.0) | {"opening": 3, "reading": 5, "starting": 5, "rest": 5}


def test_time_of_tasks_is_that_of_the_busiest_worker_and_the_rest_of_it_is_starting(moment):
    clock = WallClock(moment)
    with clock.part("storing"), clock.tasks() as busy:
        moment.pass_(20)
        busy["a"] = {"computing": 6.0, "loading": 5.0, "storing": 1.0}
        busy["b"] = {"computing": 7.0, "loading": 0.0, "storing": 1.0}
    found = clock.parts()
    assert (found["computing"], found["loading"], found["storing"], found["starting"]) == (6, 5, 1, 8)
    assert clock.total() == 20.0


def test_workers_that_do_several_tasks_at_once_do_not_book_more_than_there_was(moment):
    clock = WallClock(moment)
    with clock.tasks() as busy:
        moment.pass_(10)
        busy["a"] = {"computing": 30.0, "loading": 10.0}
    found = clock.parts()
    assert (found["computing"], found["loading"], found["starting"]) == (7.5, 2.5, 0.0)


def test_an_exception_inside_a_part_is_booked_too(moment):
    clock = WallClock(moment)
    with pytest.raises(ZeroDivisionError), clock.part("scoring"):
        moment.pass_(2)
        raise ZeroDivisionError
    moment.pass_(1)
    assert clock.total() == 3.0 and clock.parts()["scoring"] == 2.0


def test_a_kit_times_the_loading_of_a_model_and_not_its_computing(moment, monkeypatch):
    class Slow:
        def score(self, pairs):
            moment.pass_(1)
            return [0.0] * len(pairs)

    def opened(*_):
        moment.pass_(60)  # as the import of torch is
        return Slow()

    monkeypatch.setattr(load, "open_model", opened)
    kit = LocalKit(None, clock=moment)
    model = Model("slow", "reranker", "overlap", "", "", "", "overlap@1")
    for _ in range(3):
        asyncio.run(kit._compute(model, lambda m: m.score([("a", "b")])))
    assert kit.loading_s() == kit.with_index(None).loading_s() == 60.0 and moment.now == 163.0


def test_a_pass_counts_loading_apart_and_never_more_of_it_than_it_took():
    count = StageCounters()
    count.spend(5.9, 5.6)
    count.spend(1.0, 4.0)  # another pass waited for the same model
    assert (round(count.seconds, 6), round(count.loading, 6)) == (0.3, 6.6)
    taken = count.take()
    assert (count.seconds, count.loading) == (0.0, 0.0) and taken.loading == pytest.approx(6.6)


@pytest.mark.slow
def test_the_parts_of_a_report_add_up_to_its_wall_time_and_loading_is_on_no_step(bench):
    other = (SUPPORT / "fakes.yaml").read_text()
    bench.run(other.replace("candidates: 20, top: 10", "candidates: 12, top: 6"), out="next")
    report = json.loads((bench.folder / "next/run.json").read_text())
    assert tuple(report["clock"]) == PARTS and min(report["clock"].values()) >= 0
    assert sum(report["clock"].values()) == pytest.approx(report["seconds"])
    steps = report["steps"]
    assert report["clock"]["loading"] == pytest.approx(sum(s["loading"] for s in steps))
    assert report["clock"]["computing"] == pytest.approx(sum(s["seconds"] for s in steps))
    assert spent(read(bench.folder / "next")).startswith(f"{report['seconds']:.1f} s: ")
