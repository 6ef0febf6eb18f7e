"""Work that is not even: one page of 50 MB, one question with 500 citations, among small ones."""

import copy
import json

import pytest
from reruns import SIZES, Bench

from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.driver import TaskSizes

pytestmark = pytest.mark.slow


@pytest.mark.drill
def test_a_huge_page_is_a_fault_and_a_question_with_500_citations_is_answered(world, tmp_path):
    """Beside them every other question gets the answer that it gets alone."""
    bench = Bench(tmp_path, world)
    lines = bench.lines()
    plain = copy.deepcopy(lines)
    huge = dict(lines[0]["search_results"][0], page_url="https://huge.example/", page_snippet="")
    huge["page_result"] = "<p>" + "word and word " * (50 * (1 << 20) // 14)
    lines[0]["search_results"].append(huge)
    every = [r for line in plain for r in line["search_results"]]
    lines[1]["search_results"] = [
        dict(r, page_url=f"https://many.example/{n}", page_result=f"{r['page_result']}<p>copy {n}</p>")
        for n, r in enumerate((every * 10)[:500])
    ]
    pipe = bench.pipeline(sizes=TaskSizes(SIZES.sources, 100))  # all questions in one part
    done = evaluate(pipe, [bench.data(lines)], tmp_path / "skewed", EvalOptions("crag", rule="official"))
    report = done.record
    assert (report.questions, report.citations) == (6, 12 * 5 + 1 + 500)
    [fault] = report.faults
    assert fault.rows == 1 and fault.step == "parse"
    found = predictions(tmp_path / "skewed")
    assert all(p["outcome"] in ("answered", "abstained") for p in found.values())
    assert len(found[lines[1]["interaction_id"]]["hits"]) > 0

    alone = Bench(tmp_path / "alone", world)
    alone.folder.mkdir()
    evaluate(alone.pipeline(), [alone.data(plain)], tmp_path / "even", EvalOptions("crag", rule="official"))
    even = predictions(tmp_path / "even")
    for line in plain[2:]:
        assert found[line["interaction_id"]] == even[line["interaction_id"]]


def predictions(folder):
    return {p["id"]: p for p in map(json.loads, (folder / "predictions.jsonl").read_text().splitlines())}
