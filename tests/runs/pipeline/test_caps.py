"""A cap stops a run after whole tasks; the same command continues, and in the end nothing was done twice."""

import json
import re
import zlib
from collections import Counter
from dataclasses import replace

import pytest
from chat_server import serving
from reruns import CONF, Bench

from raypipe.api.cli.main import main
from raypipe.core.errors import CapReached, ConfError
from raypipe.core.llm import Prices, TokenPrice
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.counters import Caps
from raypipe.runs.pipeline.driver import TaskSizes
from raypipe.runs.plan.costs import spent
from raypipe.runs.run_parts import StepLine

SMALL = TaskSizes(12, 1)
MOST = 20  # calls: the whole takes five times as many


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    from raypipe.contrib.world.write import write

    home = tmp_path_factory.mktemp("caps")
    write(home / "world", 4, pages=3, seed=4, page_chars=1000)
    return lambda name: Bench(home / name, home / "world")


def run(bench, caps, sizes=SMALL):
    bench.folder.mkdir(exist_ok=True)
    pipe = replace(bench.pipeline(sizes=sizes), caps=caps)
    return evaluate(pipe, [bench.world], bench.folder / "out", EvalOptions("crag", rule="official"))


def calls(done):
    return sum(s.computed for s in done.record.steps if s.step not in ("parse", "tokenize", "split"))


@pytest.mark.drill
@pytest.mark.slow
def test_a_cap_on_calls_is_exceeded_by_one_task_at_most_and_the_same_command_ends_the_work(bench):
    whole = run(bench("whole"), Caps())
    expected, largest = calls(whole), 40  # of one question, or of twelve sources
    stopped, made = 0, bench("capped")
    for _ in range(100):
        try:
            done = run(made, Caps(calls=MOST))
            break
        except CapReached as e:
            stopped += 1
            assert e.exit_code == 8 and "The same command continues" in str(e)
            used = int(str(e).partition("after ")[2].partition(" calls")[0])
            assert MOST <= used <= MOST + largest
    assert stopped > 1 and calls(done) == expected
    assert done.record.resumed > 0 and done.record.cost.actual.calls <= MOST + largest
    assert done.scored.marks.score == whole.scored.marks.score
    fits = run(bench("fits"), Caps(calls=expected))  # to the call: it ends without a word
    assert calls(fits) == expected


@pytest.mark.drill
@pytest.mark.slow
def test_a_cap_on_hours_lets_each_command_do_a_task_so_it_comes_to_an_end(bench):
    made, stopped = bench("hours"), 0
    for _ in range(200):
        try:
            run(made, Caps(hours=1e-9), TaskSizes(100, 2))
            break
        except CapReached as e:
            stopped += 1
            assert "--max-hours 1e-09 is reached" in str(e)
    assert 1 < stopped < 199


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


@pytest.mark.drill
@pytest.mark.slow
def test_the_report_sets_the_estimate_against_what_was_spent(bench):
    prices = Prices(machines=2.0, actors=dict.fromkeys(STEPS, 1))
    first = run(bench("report"), Caps(prices=prices)).record
    assert first.cost.estimate.usd is None and first.cost.estimate.hours is None, "no rate yet, so no money"
    assert first.cost.estimate.max_calls >= first.cost.actual.calls > 0
    assert first.cost.actual.usd == pytest.approx(2.0 * first.seconds / 3600)
    again = run(bench("report"), Caps(prices=prices)).record
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


TWO_CALLS = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - generate: {model: writer, prompt: crag/vanilla, into: draft, max_tokens: 9}
  - generate: {model: writer, prompt: crag/vanilla, into: final, max_tokens: 8}
  - decide: {prefer: [final, draft]}
"""
WRITER = "writer: {kind: generator, loader: openai, endpoint: here, model: m, max_model_len: 999}"
QUESTIONS, CAP, WORKERS, CALLS_EACH = 20, 6, 2, 2
IN_HAND = 2 * WORKERS  # questions: twice the concurrency of the address, of each worker (docs/costs.md)


@pytest.mark.ray
@pytest.mark.drill
def test_over_ray_a_cap_ends_with_8_and_the_same_command_goes_on_to_the_end(
    capsys, local_ray, monkeypatch, tmp_path
):
    from raypipe.contrib.world.write import write

    write(tmp_path / "world", QUESTIONS, pages=1, seed=6, page_chars=1000)
    conf = CONF.folders[0]
    monkeypatch.setenv("RAYPIPE_CONF", str(conf))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    (tmp_path / "two.yaml").write_text(TWO_CALLS)
    (tmp_path / "models.yaml").write_text(WRITER)
    laptop = (conf / "clusters/laptop.yaml").read_text()
    assert "questions_per_task: 10" in laptop and f"answer: {{actors: {WORKERS}, cpus: 1}}" in laptop
    asked = Counter()

    def chat(request, body):
        if body["messages"] != [{"role": "user", "content": "ready"}]:  # the check before the work is no call
            asked[json.dumps(body, sort_keys=True)] += 1
        request.reply(f"it is {zlib.crc32(str(body['messages']).encode())}")

    with serving(chat) as server:
        server.lists = json.dumps({"data": [{"id": "m"}]})
        one = laptop.replace("questions_per_task: 10", "questions_per_task: 1")
        here = f'{{url: "{server.url}", concurrency: 1}}'
        (tmp_path / "mine.yaml").write_text(f"{one}\nendpoints:\n  here: {here}\n")

        def run(name, *more):
            """Exit code, what was printed, and requests that the server got meanwhile."""
            before, given = asked.total(), {"--cluster": "mine.yaml", "--models": "models.yaml"}
            given |= {"--data": "world", "--store": f"{name}-store", "--out": name}
            words = [w for k, v in given.items() for w in (k, str(tmp_path / v))]
            code = main(["eval", str(tmp_path / "two.yaml"), *words, "--json", *more])
            return code, *capsys.readouterr(), asked.total() - before

        code, out, err, calls = run("whole")
        whole = json.loads(out)
        assert code == 0 and calls == whole["cost"]["actual"]["calls"] == CALLS_EACH * QUESTIONS, err
        asked.clear()
        stopped = []
        while (found := run("capped", "--max-calls", str(CAP)))[0]:
            code, out, err, calls = found
            assert code == 8 and not out and "The same command continues" in err, err
            assert not (tmp_path / "capped/run.json").exists()
            said = int(re.search(rf"--max-calls {CAP} is reached after (\d+) calls", err)[1])
            assert said == calls, "what was in flight is counted, too"
            assert CAP <= calls <= CAP + CALLS_EACH * IN_HAND
            stopped.append(calls)
            assert len(stopped) < QUESTIONS
    done = json.loads(found[1])
    assert len(stopped) > 2 and found[3] == done["cost"]["actual"]["calls"]
    assert set(asked.values()) == {1} and asked.total() == CALLS_EACH * QUESTIONS, "nothing is asked twice"
    for name in ("by_rule", "answers", "questions", "chunks"):
        assert done[name] == whole[name]
    answers = [(tmp_path / name / "predictions.jsonl").read_text() for name in ("whole", "capped")]
    assert answers[0] == answers[1]
