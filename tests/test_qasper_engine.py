"""The five QASPER recipes with a language model, over given papers: through Ray and the real vLLM on stand-in
weights, in one process, and by `ask`, with equal answers."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from test_qasper_recipes import RECIPES, made

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.config import Conf
from raypipe.evaluation.evaluate import evaluate
from raypipe.models.kit import LocalKit
from raypipe.pipeline.driver import Pipeline, TaskSizes, inline
from raypipe.pipeline.tasks import WorkerConfig
from raypipe.report.progress import Progress
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest
from raypipe.store import Store

pytestmark = [
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.drill,
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
]
CONF = Conf((Path(__file__).parents[1] / "conf",))
QUESTIONS = 4  # of the given papers: a prompt of 3,000 tokens takes an engine on a CPU a second


@pytest.mark.parametrize("name", RECIPES)
def test_the_given_papers_are_answered_alike_on_ray_in_one_process_and_by_ask(
    name, data, standins, team, pools, tmp_path
):
    pool = str(made(tmp_path) / "pool.jsonl")
    graphs = {"qasper-train": pool, "qasper-train-explained": pool}
    recipe = load_recipe(name, str(standins), CONF, graphs)
    papers = data / "qasper/train10_full_papers.json.gz"

    def run(out, runner):
        store = Store.create(str(tmp_path / f"store-{out}"))
        place = WorkerConfig(store.uri, "transformers", "cpu", 2, team.names)
        with Progress(io.StringIO(), silent=True) as progress:
            pipeline = Pipeline(store, recipe, place, TaskSizes(100, 2), runner, progress)
            done = evaluate(pipeline, [papers], "qasper", QUESTIONS, None, tmp_path / out)
        lines = (tmp_path / out / "predictions.jsonl").read_text().splitlines()
        return store, done, [json.loads(line) for line in lines]

    def on_ray(verb, fill, parts):
        there = team.engines.answer if verb == "answer" else None
        return pools.run_tasks(fill, parts, there) if there else inline(verb, fill, parts)

    _, _, there = run("ray", on_ray)
    store, done, here = run("process", inline)
    assert there == here and len(here) == QUESTIONS
    assert {line["outcome"] for line in here} == {"answered"} and done.report.scores.kind == "qasper"
    assert {bool(line["hits"]) for line in here} == {"documents" in name}

    async def asked():
        kit = LocalKit(None, "transformers", engines=team.names)
        answerer = Answerer(recipe, kit, store.uri)  # no memo: each question is computed again
        [stored] = arrow.question.records(store.rows("questions", "id", [here[0]["id"]]))
        return await answerer.answer(QueryRequest(stored))

    alone = asyncio.run(asked()).question
    assert (alone.answer, alone.order) == (here[0]["prediction"], _order(here[0]))


def _order(line):
    """The ranking of a line: its hits, which the recipes rank all."""
    return tuple(h["chunk"] for h in line["hits"])
