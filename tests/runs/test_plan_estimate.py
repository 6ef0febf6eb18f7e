"""The estimate of a first plan, before anything is parsed and any run has finished."""

import json
import platform

import pytest
from checkout import ROOT
from reruns import Bench

from raypipe.api.run import KEPT, chip, keep, measured
from raypipe.api.session import Settings
from raypipe.api.starting_points import DEMO
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.evaluation.golds import questions_of
from raypipe.runs.plan.planner import plan, read_questions
from raypipe.runs.run_parts import RunFolder

pytestmark = pytest.mark.slow

LOCAL = (ROOT / "conf/recipes/local.yaml").read_text()
ON_FAKES = (
    LOCAL.replace("all-MiniLM-L6-v2", "hash-embedder")
    .replace("minilm-maxsim", "overlap-reranker")
    .replace(", fitted: local-extract", "")
)
SMALL = {"questions": 6, "pages": 10, "seed": 7, "page_chars": 1500}
OTHER = {"questions": 20, "pages": 10, "seed": 7, "page_chars": 8000}
"""Another world, with fewer and longer pages: nothing that was fitted to the demo would hold for it."""


@pytest.mark.drill
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(DEMO, id="demo"),
        pytest.param(SMALL, id="six questions"),
        pytest.param(OTHER, id="another seed, longer pages"),
    ],
)
def test_the_first_plan_of_local_expects_within_three_times_what_is_asked_and_bounds_it(tmp_path, world):
    write(tmp_path / "world", world["questions"], world["pages"], world["seed"], world["page_chars"])
    bench = Bench(tmp_path, tmp_path / "world")
    pipe = bench.pipeline(ON_FAKES)
    before = plan(pipe, *read_questions(pipe.store, [bench.world], "crag"))
    counts, steps = bench.run(ON_FAKES)  # which holds the run to its plan
    assert {s.step: s.max_calls for s in before.steps} == {n: s.max_calls for n, s in steps.items()}
    for planned in ({s.step: s for s in before.steps}, steps):
        expected = {name: s.expected for name, s in planned.items()}
        assert all(low == high for low, high in expected.values()), "no gate, so a number and no range"
        for name in ("embed", "rerank", "extract"):
            asked = counts[name][1]
            assert asked / 3 <= expected[name][0] <= asked * 3, (name, asked, expected[name])
        asked, said = sum(n for _, n in counts.values()), sum(n for n, _ in expected.values())
        assert asked / 3 <= said <= asked * 3


def test_the_bound_of_extract_follows_from_its_own_fields_whatever_the_pages(bench):
    pipe = bench.pipeline()
    steps = {s.step: s for s in plan(pipe, questions_of(pipe, None, None), fresh=True).steps}
    extract = next(s.step for s in pipe.recipe.question if s.name == "extract")
    assert steps["extract"].max_calls == 6 * (extract.scored + 1)  # a vector of each, and the question's


@pytest.mark.drill
def test_what_one_store_measured_tells_the_first_plan_of_another_how_long_it_takes(world, tmp_path):
    first, second = Bench(tmp_path / "one", world), Bench(tmp_path / "two", world)
    for bench in (first, second):
        bench.folder.mkdir()
    first.run()
    pipe = second.pipeline()
    new = read_questions(pipe.store, [world], "crag")
    assert {s.cost.seconds for s in plan(pipe, *new).steps} == {None}
    settings = Settings(tmp_path / "home", None, Conf(()), "local", None, None)
    run = RunFolder(first.folder / "out")
    made = json.loads(run.record.read_text())
    for n, host in enumerate((platform.node(), "another machine", platform.node())):
        run.record.write_text(
            json.dumps({**made, "origin": {**made["origin"], "host": host, "chip": chip()}})
        )
        keep(settings, run, made["finished"] + n)
    (tmp_path / "home/measured" / "1-half").mkdir()
    run.record.write_text(json.dumps({**made, "of_another_raypipe": 1}))
    keep(settings, run, made["finished"] + 3)
    found = measured(settings)
    assert [m.run for m in found] == [made["run"]] * 2, "a machine knows its own speed alone"
    timed = {s.step: s for s in plan(pipe, *new, measured=found).steps}
    low, high = timed["embed"].cost.seconds
    line = next(s for s in found[0].steps if s.step == "embed")
    calls = timed["embed"].expected
    each = line.seconds / line.computed
    assert (low, high) == (pytest.approx(calls[0] * each), pytest.approx(calls[1] * each))
    assert all(s.cost.seconds is not None for s in timed.values())


def test_the_last_twenty_runs_of_a_machine_are_kept(ran, tmp_path):
    settings = Settings(tmp_path / "home", None, Conf(()), "local", None, None)
    for n in range(KEPT + 3):
        keep(settings, RunFolder(ran.folder / "out"), 1000.0 + n)
    names = sorted(p.name for p in (tmp_path / "home/measured").iterdir())
    assert len(names) == KEPT and names[0].startswith("000000001003000-")
