"""The estimate of a first plan, before anything is parsed and any run has finished."""

from pathlib import Path

import pytest
from reruns import Bench

from raypipe.api.data import DEMO
from raypipe.evaluation.evaluate import questions_of
from raypipe.runs.plan.new_files import read_questions
from raypipe.runs.plan.planner import plan
from raypipe.synth import write

pytestmark = pytest.mark.slow

LOCAL = (Path(__file__).parents[2] / "conf/recipes/local.yaml").read_text()
ON_FAKES = LOCAL.replace("all-MiniLM-L6-v2", "hash-embedder").replace("minilm-maxsim", "overlap-reranker")
OTHER = {"questions": 20, "pages": 10, "seed": 7, "page_chars": 8000}
"""Another world, with fewer and longer pages: nothing that was fitted to the demo would hold for it."""


@pytest.mark.parametrize("world", [DEMO, OTHER], ids=["demo", "another seed, longer pages"])
def test_the_first_plan_of_local_expects_within_three_times_what_is_asked_and_bounds_it(tmp_path, world):
    write(tmp_path / "world", world["questions"], world["pages"], world["seed"], world["page_chars"])
    bench = Bench(tmp_path, tmp_path / "world")
    pipe = bench.pipeline(ON_FAKES)
    before = plan(pipe, *read_questions(pipe.store, [bench.world], "crag"))
    counts, steps = bench.run(ON_FAKES)  # which holds the run to its plan
    assert {s.step: s.max_calls for s in before.steps} == {n: s.max_calls for n, s in steps.items()}
    for planned in ({s.step: s for s in before.steps}, steps):
        expected = {name: s.estimate()["calls"] for name, s in planned.items()}
        assert all(low == high for low, high in expected.values()), "no gate, so a number and no range"
        for name in ("embed", "rerank", "extract"):
            asked = counts[name][1]
            assert asked / 3 <= expected[name][0] <= asked * 3, (name, asked, expected[name])
        asked, said = sum(n for _, n in counts.values()), sum(n for n, _ in expected.values())
        assert asked / 3 <= said <= asked * 3
        print({n: (s.max_calls, expected[n][0], counts[n][1]) for n, s in planned.items()}, said, asked)


def test_the_bound_of_extract_follows_from_its_own_fields_whatever_the_pages(bench):
    pipe = bench.pipeline()
    steps = {s.step: s for s in plan(pipe, questions_of(pipe, None, None), fresh=True).steps}
    extract = next(s.step for s in pipe.recipe.question if s.name == "extract")
    assert steps["extract"].max_calls == 6 * (2 * extract.passages * extract.sentences + 1)
