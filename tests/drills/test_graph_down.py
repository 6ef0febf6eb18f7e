"""A graph's server that is down: the row is answered without it, is not stored, and is asked again."""

import io
import json
import runpy
import time
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT, TESTS

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.contrib.crag.references import GraphRef
from raypipe.contrib.crag.server import serve
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate, expired_answers
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.prune import Removal, prune
from raypipe.store import Store
from raypipe.store.memo.disk import merge_memo
from raypipe.store.memo.memo import request_replies_of

pytestmark = [pytest.mark.slow, pytest.mark.drill]

RECIPE = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - generate:
      {model: llama-3-8b, prompt: db3/calls-open, reply: calls, grammar: calls, into: calls, max_tokens: 300}
  - kg_query: {graph: crag-mock, calls: calls}
  - generate: {model: llama-3-8b, prompt: crag/vanilla, into: llm, max_tokens: 50}
  - decide: {prefer: [llm]}
"""


@pytest.fixture
def pipe(tmp_path):
    """address of the graph -> a pipeline over one store with one question, and that question."""
    (tmp_path / "made.yaml").write_text(RECIPE)
    line = {
        "interaction_id": "q",
        "query": "who is the mayor of florida city?",
        "answer": "x",
        "alt_ans": [],
        "query_time": "03/05/2024, 23:18:31 PT",
        "search_results": [
            {
                "page_name": "Florida City",
                "page_url": "https://e.org/",
                "page_snippet": "",
                "page_result": "",
                "page_last_modified": "",
            }
        ],
    }
    (tmp_path / "q.jsonl").write_text(json.dumps(line))

    def made(graph):
        store = Store.create(str(tmp_path / "store"))
        graphs, files = {"crag-mock": graph}, Conf((tmp_path, ROOT / "conf"))
        recipe = load_recipe(str(tmp_path / "made.yaml"), str(SUPPORT / "fake_models.yaml"), files, graphs)
        progress = Progress(io.StringIO(), silent=True)
        place = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipeline = Pipeline(store, recipe, place, TaskSizes(50, 4), inline, progress)
        ids = ingest(store, [tmp_path / "q.jsonl"], "crag", progress).questions
        questions = list(arrow.question.records(store.rows("questions", "id", ids)))
        pipeline.index(questions)
        return pipeline, questions

    return made


def test_a_row_answered_without_the_graph_stays_to_do_until_the_graph_is_back(pipe):
    pipeline, questions = pipe("http://127.0.0.1:9")
    pipeline.answer(questions)
    assert pipeline.store.count("answers") == 0
    [fault] = pipeline.store.dataset("faults").to_table().to_pylist()
    assert (fault["id"], fault["reason"], fault["transient"]) == ("q", "unreachable", True)
    tables = runpy.run_path(str(TESTS / "contrib/crag/smallgraph.py"))["build"]().tables
    with serve(tables) as url:
        again, questions = pipe(url)
        assert again.recipe.digest() == pipeline.recipe.digest(), "where a graph lies is no identity"
        again.answer(questions)
        [done] = again.answers(questions)
    assert again.store.count("answers") == 1 and done.degraded == ()
    assert done.replies["facts"].label == "answered"


def rewritten(pipeline, path, text):
    """The same pipeline with another text of its recipe."""
    path.write_text(text)
    graph = pipeline.recipe.named(GraphRef)[0]
    files = Conf((path.parent, ROOT / "conf"))
    recipe = load_recipe(str(path), str(SUPPORT / "fake_models.yaml"), files, {graph.name: graph.where})
    return replace(pipeline, recipe=recipe)


CALLS = {
    "open": 'get_open("Florida City")["mayor"]',
    "movie": 'get_movie("The Maze Runner")["year"]',
    "sports": 'get_nba_on_date("lakers", "2024-02-26")["opponent"]',
}
PERIOD = 10**9  # seconds: the present one lasts until 2033, so no test sees it end
GRAPHS = f"""
crag-mock:
  kind: server
  where: http://127.0.0.1:8000
  version: crag-mock-api-v5
  refresh: {{movie: {PERIOD}, sports: live}}
"""


@pytest.fixture
def answered(pipe, tmp_path):
    """Domain -> a pipeline whose question was answered from that domain's replies, and the questions."""
    (tmp_path / "graphs.yaml").write_text(GRAPHS)

    def made(domain):
        lines = json.dumps(
            {"user": f"an example\n{CALLS[domain]}\n{{{{ text }}}}\nCalls:", "variables": ["text"]}
        )
        (tmp_path / "made.yaml").write_text(RECIPE.replace("db3/calls-open", lines))
        pipeline, questions = pipe(url)
        pipeline.answer(questions)
        [done] = pipeline.answers(questions)
        assert done.replies["calls"].text == CALLS[domain] and done.replies["facts"].label == "answered"
        return pipeline, questions

    with serve(runpy.run_path(str(TESTS / "contrib/crag/smallgraph.py"))["build"]().tables) as url:
        yield made


def test_an_answer_is_old_once_a_reply_that_it_rests_on_no_longer_holds(answered):
    old = {}
    for domain in CALLS:
        pipeline, questions = answered(domain)
        merge_memo(pipeline.store)
        for when, clock in (("now", time.time), ("later", lambda: time.time() + PERIOD)):
            old[domain, when] = list(expired_answers(pipeline, questions, clock))
    assert {key for key, ids in old.items() if ids} == {
        ("movie", "later"),
        ("sports", "now"),
        ("sports", "later"),
    }


@pytest.mark.parametrize(("domain", "stale"), [("movie", False), ("sports", True)])
def test_a_refresh_plans_what_is_stale_with_that_reason_and_does_no_more(answered, tmp_path, domain, stale):
    pipeline, _ = answered(domain)

    def run(refresh):
        plans = []
        how = EvalOptions("crag", rule="official", on_plan=plans.append, refresh=refresh)
        done = evaluate(pipeline, [], tmp_path / "out", how)
        return {s.step: s for s in plans[0].steps}, {s.step: s.computed for s in done.record.steps}, done

    plan, asked, done = run(refresh=False)
    assert done.reused == 1 and not any(asked.values())
    plan, asked, done = run(refresh=True)
    assert done.reused == (0 if stale else 1)
    assert {name: set(s.reasons) for name, s in plan.items() if s.max_calls} == (
        {"kg_query": {"expired"}} if stale else {}
    )
    assert (asked["kg_query"] > 0) == stale and asked["generate:calls"] == asked["generate:llm"] == 0


@pytest.mark.parametrize(
    ("domain", "period", "again"),
    [
        ("movie", PERIOD, False),
        ("movie", 1, True),
        ("sports", PERIOD, True),
    ],
)
def test_a_later_change_plans_the_requests_whose_replies_do_not_hold(
    answered, tmp_path, domain, period, again
):
    (tmp_path / "graphs.yaml").write_text(GRAPHS.replace(str(PERIOD), str(period)))
    pipeline, _ = answered(domain)
    evaluate(pipeline, [], tmp_path / "out", EvalOptions("crag", rule="official"))
    made = (tmp_path / "made.yaml").read_text()
    changed = (tmp_path / "made.yaml", made.replace("into: llm, max_tokens: 50", "into: llm, max_tokens: 40"))
    plans, pipeline = [], rewritten(pipeline, *changed)
    time.sleep(period if period == 1 else 0)  # its end is the thing itself: no verdict hangs on more
    done = evaluate(
        pipeline, [], tmp_path / "two", EvalOptions("crag", rule="official", on_plan=plans.append)
    )
    planned = {s.step: s for s in plans[0].steps}
    asked = {s.step: s.computed for s in done.record.steps}
    assert all(asked[name] <= step.max_calls for name, step in planned.items())
    assert (asked["kg_query"] > 0) == (planned["kg_query"].max_calls > 0) == again
    assert planned["kg_query"].reasons.keys() == ({"expired"} if again else set())
    assert asked["generate:llm"] == planned["generate:llm"].max_calls == 1


def test_replies_go_when_their_period_is_over_and_with_the_last_run_that_asked_their_version(
    answered, tmp_path
):
    def run():
        pipeline, _ = answered("movie")
        evaluate(pipeline, [], tmp_path / "out", EvalOptions("crag", rule="official"))
        return pipeline.store

    store, table = run(), request_replies_of("crag-mock-api-v5").name
    rows = store.count(table)
    assert rows > 0 and prune(store, dry_run=False) == []
    later = time.time() + PERIOD
    for dry_run in (True, False):
        assert prune(store, dry_run, lambda: later) == [Removal("replies", table, rows)]
    assert store.count(table) == 0 and prune(store, False, lambda: later) == []
    (tmp_path / "graphs.yaml").write_text(GRAPHS.replace("api-v5", "api-v6"))
    run()
    assert [(r.kind, r.name) for r in prune(store, dry_run=False) if r.kind == "table"] == [("table", table)]
    assert not store.has(table) and store.count(request_replies_of("crag-mock-api-v6").name) == rows


def test_the_command_says_how_many_answers_are_old_and_plans_them_where_that_is_asked(
    answered, tmp_path, capsys, monkeypatch
):
    pipeline, _ = answered("sports")
    (tmp_path / "models.yaml").write_text((SUPPORT / "fake_models.yaml").read_text())
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    graph = f"crag-mock={pipeline.recipe.named(GraphRef)[0].where}"
    command = [
        "plan",
        str(tmp_path / "made.yaml"),
        "--models",
        str(tmp_path / "models.yaml"),
        "--graph",
        graph,
    ]
    command += ["--store", pipeline.store.uri, "--json"]
    said = []
    for more in ([], ["--refresh"]):
        assert main([*command, *more]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert [s["expired"] for s in said] == [1, 1]
    reasons = [{k for step in s["steps"] for k in step["reasons"]} for s in said]
    assert reasons == [set(), {"expired"}]
