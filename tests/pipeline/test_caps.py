"""A cap stops a run after whole tasks; the same command continues, and in the end nothing was done twice."""

import pytest
from reruns import Bench

from raypipe.core.errors import CapReached, ConfError
from raypipe.core.prices import Prices, TokenPrice
from raypipe.evaluation.evaluate import evaluate
from raypipe.pipeline.caps import Caps
from raypipe.pipeline.driver import TaskSizes
from raypipe.report.report import StepLine
from raypipe.runs.plan.money import spent

SMALL = TaskSizes(12, 1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    from raypipe.synth import write

    home = tmp_path_factory.mktemp("caps")
    write(home / "world", 4, pages=3, seed=4, page_chars=1000)
    return lambda name: Bench(home / name, home / "world")


def run(bench, caps, sizes=SMALL):
    bench.folder.mkdir(exist_ok=True)
    out = bench.folder / "out"
    return evaluate(bench.pipeline(sizes=sizes), [bench.world], "crag", None, "official", out, caps=caps)


def calls(done):
    return sum(s.computed for s in done.report.steps if s.step not in ("parse", "tokenize", "split"))


@pytest.mark.slow
def test_a_cap_on_calls_is_exceeded_by_one_task_at_most_and_the_same_command_ends_the_work(bench):
    whole = run(bench("whole"), Caps())
    expected, largest = calls(whole), 150  # of one question, or of eight sources
    stopped, made = 0, bench("capped")
    for _ in range(100):
        try:
            done = run(made, Caps(calls=60))
            break
        except CapReached as e:
            stopped += 1
            assert e.exit_code == 8 and "the same command continues" in str(e)
            used = int(str(e).partition("after ")[2].partition(" calls")[0])
            assert 60 <= used <= 60 + largest
    assert stopped > 1 and calls(done) == expected
    assert done.report.resumed > 0 and done.report.cost.actual.calls <= 60 + largest
    assert done.report.marks.score == whole.report.marks.score
    fits = run(bench("fits"), Caps(calls=expected))  # to the call: it ends without a word
    assert calls(fits) == expected


@pytest.mark.slow
def test_a_cap_on_hours_lets_each_command_do_a_task_so_it_comes_to_an_end(bench):
    made, stopped = bench("hours"), 0
    for _ in range(200):
        try:
            run(made, Caps(hours=1e-9), TaskSizes(24, 2))
            break
        except CapReached as e:
            stopped += 1
            assert "--max-hours 1e-09 is reached" in str(e)
    assert 3 < stopped < 199


@pytest.mark.slow
def test_a_cap_on_money_counts_machines_by_the_clock(bench):
    with pytest.raises(CapReached, match=r"--max-usd 0.001 is reached after about .* US dollars"):
        run(bench("usd"), Caps(usd=0.001, prices=Prices(machines=36_000.0)))


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        (Prices(), "found none for any step"),
        (Prices(machines=1.0, unpriced=("gpt", "machines")), "found none for gpt"),
    ],
)
def test_a_cap_on_money_needs_prices(prices, said):
    with pytest.raises(ConfError, match="--max-usd: expected prices, ") as caught:
        Caps(usd=1.0, prices=prices)
    assert said in str(caught.value) or "gpt" in str(caught.value)
    Caps(usd=1.0, prices=Prices(tokens={"generate": TokenPrice(1, 1)}, unpriced=("machines",)))


@pytest.mark.parametrize("cap", [{"calls": 0}, {"usd": -1.0}, {"hours": 0.0}])
def test_a_cap_of_nothing_is_refused(cap):
    with pytest.raises(ConfError, match=r"--max-\w+: expected a number above 0"):
        Caps(**cap, prices=Prices(machines=1.0))


@pytest.mark.slow
def test_the_report_sets_the_estimate_against_what_was_spent(bench):
    prices = Prices(machines=2.0, actors=dict.fromkeys(STEPS, 1))
    first = run(bench("report"), Caps(prices=prices)).report
    assert first.cost.estimate.usd is None and first.cost.estimate.hours is None, "no rate yet, so no money"
    assert first.cost.estimate.max_calls >= first.cost.actual.calls > 0
    assert first.cost.actual.usd == pytest.approx(2.0 * first.seconds / 3600)
    again = run(bench("report"), Caps(prices=prices)).report
    assert again.cost.estimate.calls == (0, 0) and again.cost.actual.calls == 0
    assert again.cost.estimate.usd == (0, 0) == again.cost.estimate.tokens


STEPS = [
    *("parse", "tokenize", "split", "embed"),
    *("shortlist", "dense", "bm25", "fuse", "rerank", "extract", "decide"),
]


def test_tokens_cost_what_the_model_says_and_nothing_is_not_zero():
    line = StepLine("generate", 1, 1, 1, 0, 0, 0, 3600.0, 2_000_000, 500_000, 100_000)
    price = TokenPrice(1.0, 10.0, 0.5)
    prices = Prices(tokens={"generate": price}, actors={"generate": 2}, gpus={"generate": 4.0})
    cost = spent([line], 60.0, prices, {"generate"})
    assert cost.usd == pytest.approx(1.5 + 0.25 + 1.0)
    assert (cost.hours, cost.gpu_hours, cost.tokens, cost.calls) == (0.5, 2.0, 2_100_000, 1)
    assert spent([line], 60.0, Prices(), {"generate"}).usd is None
