"""A sweep asks at each point only what no point before it asked, and ends in one table."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import SUPPORT
from reruns import CONF, Bench
from rich.console import Console

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core.errors import ConfError
from raypipe.core.llm import Prices, TokenPrice
from raypipe.evaluation import sweep as sweeping
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.experiments import print_points, print_sweep
from raypipe.runs.pipeline.counters import Caps
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.plan import planner
from raypipe.store.housekeeping import tables

VALUES = ["split.parent_chars=500,700", "rerank.top=5,10"]
PRICES = Prices(machines=1.0, unpriced=())


def swept(folder: Path, questions: int, sample: int | None, recipes=("fakes.yaml",), values=VALUES):
    """A sweep in this process: what it found, the plans that it showed, and the evals that it made."""
    if not (folder / "world").exists():
        write(folder / "world", questions, pages=2, seed=5, page_chars=1000)
    bench = Bench(folder, folder / "world", file=None)
    base = bench.pipeline()
    models = str(folder / "models.yaml")
    ingest(base.store, [folder / "world"], "crag", base.progress)

    def load(recipe, settings):
        return load_recipe(recipe, models, CONF, sets=settings)

    ids, unseen = sweeping.drawn(questions_of(base, None, None).ids, sample, 1)
    made = []

    def run(recipe, some, where):
        pipe = replace(base, recipe=recipe)
        priced = replace(pipe, caps=Caps(prices=PRICES))
        made.append(evaluate(priced, [], where, EvalOptions("crag", rule="official", only=some)))
        return made[-1]

    found = sweeping.points(load, [str(folder / name) for name in recipes], values)

    def plan(recipe):
        pipe = replace(base, recipe=recipe)
        return planner.plan(pipe, questions_of(pipe, ids, None))

    planned = sweeping.planned(found, plan, lambda recipe: PRICES)
    f1 = sweeping.measure_of("crag", "f1")
    done = sweeping.sweep(found, run, ids, unseen, 1, 0.02, folder / "out", f1)
    return base.store, planned, done, made


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("sweep"), 6, 4)


def asked(evaluation):
    return {s.step: s.computed for s in evaluation.record.steps}


def check_reuse(store, planned, done, made):
    first, second, third, fourth = made[:4]
    for later in (second, third, fourth):
        assert asked(later)["parse"] == asked(later)["tokenize"] == 0
    assert asked(first)["parse"] and asked(first)["rerank"]
    for same in (second, fourth):  # another rerank.top over the same passages
        assert {s: asked(same)[s] for s in ("split", "embed", "dense", "rerank")} == dict.fromkeys(
            ("split", "embed", "dense", "rerank"), 0
        )
    assert asked(third)["split"] and asked(third)["dense"] == 0
    # Nothing is asked twice: what all runs computed is what the caches hold now.
    for kind, table in (("vectors", "embeddings-"), ("scores", "scores-")):
        held = sum(store.count(t) for t in tables(store) if t.startswith(table))
        steps = {"vectors": ("embed", "dense"), "scores": ("shortlist", "rerank")}[kind]
        computed = sum(asked(e)[s] for e in made for s in steps)
        assert computed <= held, (kind, computed, held)
    for expected, evaluation in zip(planned, made, strict=False):
        assert evaluation.record.cost.actual.calls <= expected.estimate.max_calls
    assert planned[0].shared == () and "embed" in planned[1].shared and "embed" not in planned[2].shared
    assert "parse" in planned[2].shared


@pytest.mark.drill
@pytest.mark.slow
def test_later_points_ask_only_what_differs(small):
    check_reuse(*small)


@pytest.mark.drill
def test_four_points_on_200_questions_ask_only_what_differs(tmp_path):
    store, planned, done, made = swept(tmp_path, 220, 200)
    check_reuse(store, planned, done, made)
    assert done.questions == 200 and done.unseen == 20


@pytest.mark.slow
def test_it_ends_in_one_table_against_the_first_and_the_best_is_scored_on_other_questions(small):
    _, planned, done, made = small
    assert (done.questions, done.unseen, len(done.points)) == (4, 2, 4)
    means = [e.scored.scores.of("f1").mean for e in made[:4]]
    assert done.measure == "f1" and [p.score for p in done.points] == pytest.approx(means)
    assert done.scored == 4  # by its first measure, which asks a judge, fewer are
    best = max(p.score for p in done.points)
    assert next(p.score for p in done.points if p.point == done.winner) == best
    assert done.points[0].against_first is None and done.points[0].p is None
    assert all(p.p is not None and p.p >= p.against_first.p - 1e-3 for p in done.points[1:])
    seen = {k for e in made[:4] for k in [v.question for v in e.scored.marks.verdicts]}
    unseen = {v.question for e in made[4:] for v in e.scored.marks.verdicts}
    assert unseen and not seen & unseen
    out = io.StringIO()
    console = Console(file=out, width=300)
    print_points(console, planned)
    print_sweep(console, done, planned)
    said = out.getvalue()
    assert "plan of 4 points" in said and "corrected for 3 comparisons (maxT)" in said
    assert "2 questions that the sweep did not see" in said and "f1" in said
    assert said.count("split.parent_chars=500, rerank.top=5") >= 2
    assert "usd" in said and "new tokens" not in said, "no column without a number"


@pytest.mark.drill
@pytest.mark.slow
def test_recipes_are_points_each_against_the_first_and_the_second_sweep_asks_nothing(tmp_path):
    words = (SUPPORT / "fakes.yaml").read_text().replace("{dense: 1.0, bm25: 1.0}", "{dense: 0.0, bm25: 1.0}")
    (tmp_path / "words.yaml").write_text(words)
    recipes = ("fakes.yaml", "words.yaml")
    _, planned, done, made = swept(tmp_path, 6, None, recipes, ())
    assert [p.point for p in done.points] == [str(tmp_path / name) for name in recipes]
    assert "embed" in planned[1].shared and asked(made[1])["embed"] == 0
    assert done.points[0].p is None and done.points[1].p is not None
    assert all(p.estimate.max_calls >= e.record.cost.actual.calls for p, e in zip(planned, made, strict=True))
    out = io.StringIO()
    print_sweep(Console(file=out, width=300), done, planned)
    head, first, *_ = out.getvalue().splitlines()
    assert head.index("planned") < head.index("new calls") < head.index("took")
    assert f"{done.points[0].cost.calls:,}" in first
    _, planned, again, _ = swept(tmp_path, 6, None, recipes, ())
    assert [p.cost.calls for p in again.points] == [p.estimate.max_calls for p in planned] == [0, 0]
    assert [p.score for p in again.points] == [p.score for p in done.points]


FAKES = str(SUPPORT / "fakes.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([FAKES, "--recipes", f"{FAKES},rag"], "expected RECIPE or --recipes A,B, found both or neither"),
        (["--set", "rerank.top=5,10"], "expected RECIPE or --recipes A,B, found both or neither"),
        (["--recipes", FAKES], "expected two points or more, found 1"),
        (["--recipes", f"{FAKES},{FAKES}"], "are the same recipe"),
        (["--recipes", f"{FAKES},nosuch"], "nosuch"),
    ],
)
def test_recipes_that_make_no_sweep_are_exit_code_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path))
    assert main(["sweep", *words, "--store", str(tmp_path / "store")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "store").exists()


def test_the_sample_is_drawn_by_its_seed_and_leaves_as_many_others():
    ids = [f"q{i}" for i in range(10)]
    some, others = sweeping.drawn(ids, 4, 1)
    assert sweeping.drawn(list(reversed(ids)), 4, 1) == (some, others)
    assert sweeping.drawn(ids, 4, 2)[0] != some
    assert (len(some), len(others)) == (4, 4) and not set(some) & set(others)
    assert sweeping.drawn(ids, 7, 1)[1] != [] and len(sweeping.drawn(ids, 7, 1)[1]) == 3
    assert sweeping.drawn(ids, None, 1) == (ids, []) == sweeping.drawn(ids, 10, 1)


def test_a_sweep_goes_by_a_measure_of_the_kind_of_which_more_is_better():
    assert sweeping.measure_of("ranking", None).name == "ndcg_cut_10"
    assert sweeping.measure_of("ranking", "map").name == "map"
    with pytest.raises(ConfError, match=r"--measure ff1: kind qa has no such; did you mean 'f1'"):
        sweeping.measure_of("qa", "ff1")
    with pytest.raises(ConfError, match="--measure hallucination: it cannot rank a sweep"):
        sweeping.measure_of("crag", "hallucination")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["rerank.top=5"], "expected two points or more, found 1"),
        (["rerank.topp=5,10"], "rerank has no field 'topp'; did you mean 'top'?"),
        (["rerank.top=5,x"], "rerank.top: expected a whole number, found text ('x')"),
        (["rerank=5,6"], "expected STEP.FIELD=VALUE"),
        (["rerank.top=5,10", "rerank.top=6,7"], "sets the same field"),
    ],
)
def test_a_wrong_point_is_refused_before_anything_runs(values, said):
    fakes = str(SUPPORT / "fakes.yaml")
    with pytest.raises(ConfError) as caught:
        sweeping.points(lambda r, s: load_recipe(r, None, CONF, sets=s), [fakes], values)
    assert said in str(caught.value)


def test_a_token_price_counts_what_the_prefix_cache_had_at_its_own_price():
    assert TokenPrice(2.0, 8.0).usd(1_000_000, 500_000, 0) == 2.0
    assert TokenPrice(2.0, 8.0, 1.0).usd(1_000_000, 500_000, 0) == 1.5
