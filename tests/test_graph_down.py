"""A graph's server that is down: the row is answered without it, is not stored, and is asked again."""

import io
import json
import runpy
from pathlib import Path

import pytest

from raypipe import arrow
from raypipe.cli.opened import resolved
from raypipe.conf import Conf
from raypipe.evaluate.stale import forget_old
from raypipe.graph.server import serve
from raypipe.ingest import ingest
from raypipe.pipeline import Pipeline, Sizes, inline
from raypipe.report.progress import Progress
from raypipe.store import Store
from raypipe.work import Place

HERE = Path(__file__).parent
RECIPE = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - generate:
      {model: llama-3-8b, prompt: db3/calls-open, reply: calls, grammar: calls, into: calls, max_tokens: 300}
  - lookup: {graph: crag-mock, calls: calls}
  - generate: {model: llama-3-8b, prompt: crag/vanilla, into: llm, max_tokens: 50}
  - decide: {prefer: [llm]}
"""


@pytest.fixture
def pipe(tmp_path):
    """address of the graph -> a pipeline over one store with one question, and that question."""
    (tmp_path / "made.yaml").write_text(RECIPE)
    line = {
        "interaction_id": "q", "query": "who is the mayor of florida city?", "answer": "x", "alt_ans": [],
        "query_time": "03/05/2024, 23:18:31 PT", "search_results": [
            {"page_name": "Florida City", "page_url": "https://e.org/", "page_snippet": "", "page_result": "",
             "page_last_modified": ""}
        ],
    }  # fmt: skip
    (tmp_path / "q.jsonl").write_text(json.dumps(line))

    def made(graph):
        store = Store.create(str(tmp_path / "store"))
        graphs = {"crag-mock": graph}
        recipe = resolved(
            str(tmp_path / "made.yaml"), str(HERE / "fake_models.yaml"), Conf((HERE.parent / "conf",)), graphs
        )
        progress = Progress(io.StringIO(), silent=True)
        place = Place(store.uri, "sorted", "cpu", 1)
        pipeline = Pipeline(store, recipe, place, Sizes(50, 4), inline, progress)
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
    tables = runpy.run_path(str(HERE / "graph/smallgraph.py"))["build"]().tables
    with serve(tables) as url:
        again, questions = pipe(url)
        assert again.recipe.digest() == pipeline.recipe.digest(), "where a graph lies is no identity"
        again.answer(questions)
        [done] = again.answers(questions)
    assert again.store.count("answers") == 1 and done.degraded == ()
    assert done.replies["facts"].label == "answered"


def test_refresh_makes_answers_to_do_whose_domain_changes_and_asks_what_is_too_old_alone(pipe, tmp_path):
    requests = []
    tables = runpy.run_path(str(HERE / "graph/smallgraph.py"))["build"]().tables
    text = (tmp_path / "made.yaml").read_text()
    with serve(tables) as url:
        for domain, counted in (("open", 0), ("sports", 1)):
            (tmp_path / "made.yaml").write_text(
                text.replace("lookup: {", "lookup: {domain: domain, ").replace(
                    "question:\n", f"question:\n{LABEL.format(domain)}"
                )
            )
            pipeline, questions = pipe(url)
            pipeline.answer(questions)
            [done] = pipeline.answers(questions)
            assert done.replies["domain"].label == domain
            requests.append(forget_old(pipeline, questions))
            assert len(requests[-1]) == counted
            again = pipeline.answer(questions).counts
            assert sum(c.tally.replies.asked for c in again.values()) == 0, "an entry of open is static"
    assert requests == [[], ["q"]]


LABEL = """\
  - generate:
      model: llama-3-8b
      prompt: crag/vanilla
      into: domain
      reply: label
      labels: [nowhere]
      default: {}
      max_tokens: 5
"""
