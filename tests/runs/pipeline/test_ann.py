"""A recipe that searches by an approximate index: its eval builds and measures it, a release pins it."""

import shutil
from dataclasses import replace
from datetime import timedelta

import pytest
from collection_bench import RANKS, Bench, papers, queries, write_beir
from test_postings_build import ranked

from raypipe.core.errors import ConfError
from raypipe.evaluation.ann import built, measured
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.formatting import ann_line, ann_plan
from raypipe.runs.pipeline.recipe_tables import RecallTooLow, ann_states, searched
from raypipe.runs.plan.planner import plan
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.store import Store
from raypipe.store.vector_search import build_ann

pytestmark = pytest.mark.slow

ANN = RANKS.replace(
    "dense: {model: hash-embedder, top: 30}",
    "dense: {model: hash-embedder, top: 30, ann: {index: ivf_rq, probes: 2, refine: 4, min_recall: 0.0}}",
)


def run(bench, out, text=ANN):
    beir = bench.folder / "beir"
    return evaluate(bench.pipeline(text), [beir], bench.folder / out, EvalOptions("beir"))


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A collection that was indexed, without an approximate index."""
    folder = tmp_path_factory.mktemp("ann")
    bench = Bench(folder, folder)
    write_beir(folder / "beir", papers(1, 60), queries(6))
    run(bench, "exact", RANKS)
    with pytest.raises(ConfError, match=r"no approximate index .* is there: `raypipe eval RECIPE"):
        searched(Store.open(bench.pipeline(ANN).store.uri), bench.pipeline(ANN).recipe)
    assert "is not built: the eval builds it" in ann_plan(_plan(bench)[0])
    return bench


@pytest.fixture
def bench(indexed, tmp_path):
    shutil.copytree(indexed.folder, tmp_path, dirs_exist_ok=True)
    return Bench(tmp_path, tmp_path)


def _plan(bench):
    pipe = bench.pipeline(ANN)
    return plan(pipe, pipe.questions(pipe.store.scan("questions")["id"].to_pylist())).ann


def build(bench, text=ANN):
    pipe = bench.pipeline(text)
    return built(pipe), measured(pipe)


@pytest.mark.drill
def test_the_index_is_identity_and_a_release_keeps_its_own(bench):
    tables, [(stage, recall)] = build(bench)
    assert tables == [stage.table] and (recall.questions, recall.top) == (6, 30)
    assert build(bench)[0] == [], "a second call builds nothing"
    done = run(bench, "one")
    assert done.record.ann == (recall,) and done.reused == 0
    line = ann_line(recall)
    assert f"mean {recall.mean:.3f}" in line and "worst" in line and "ivf_rq, 2 probes, refine 4" in line
    assert f"worst {recall.worst:.3f}" in ann_plan(_plan(bench)[0])
    pipe = bench.pipeline(ANN)
    promote(pipe.store, read(bench.folder / "one"), [])
    before = ranked(pipe, live(pipe.store).opened(pipe.store)[1])
    build_ann(pipe.store, stage.table, stage.how)
    again = run(bench, "three")
    assert again.reused == 0, "another index may find other passages"
    prune(pipe.store, dry_run=False, kept=timedelta(0))
    assert ranked(pipe, live(pipe.store).opened(pipe.store)[1]) == before


def test_a_recall_below_the_recipes_floor_stops_every_search(bench):
    strict = ANN.replace("min_recall: 0.0", "min_recall: 1.0").replace("probes: 2", "probes: 1")
    _, [(stage, recall)] = build(bench, text=strict)
    low = replace(recall, worst=0.5, worst_question="q3")
    path = f"_ann/{stage.table}/{recall.index}-top30-probes1-refine4.json"
    store = Store.open(bench.pipeline(strict).store.uri)
    assert store.files.read(path)
    store.files.write(path, store.files.read(path).replace(_worst(recall), _worst(low)))
    with pytest.raises(RecallTooLow, match=r"at least 1 of the exact best 30; the worst of 6 finds 0\.500"):
        run(bench, "low", strict)
    with pytest.raises(RecallTooLow):
        searched(store, bench.pipeline(strict).recipe)


def _worst(recall):
    return f'"worst": {recall.worst}'.encode()


@pytest.mark.drill
def test_settings_that_were_not_measured_and_vectors_that_came_later_are_said(bench):
    build(bench)
    more = ANN.replace("probes: 2", "probes: 3")
    with pytest.raises(ConfError, match="top 30, probes 3, refine 4: `raypipe eval fakes --store"):
        searched(Store.open(bench.pipeline(more).store.uri), bench.pipeline(more).recipe)
    assert run(bench, "more", more).record.ann[0].probes == 3, "the eval measures it"
    write_beir(bench.folder / "beir", [*papers(1, 60), *papers(2, 5)], queries(6))
    run(bench, "later", RANKS)
    pipe = bench.pipeline(ANN)
    [state] = ann_states(pipe.store, pipe.recipe)
    assert state.unindexed > 0 and "lacks" in ann_plan(_plan(bench)[0])
    with pytest.raises(ConfError, match="vectors came after the approximate index"):
        searched(pipe.store, pipe.recipe)
    run(bench, "whole")
    assert ann_states(pipe.store, pipe.recipe)[0].unindexed == 0
