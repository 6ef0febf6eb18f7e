"""The five QASPER recipes with a language model, over two given papers: through Ray and the real vLLM on
stand-in weights, in one process, and by `ask`, with equal answers. One engine serves all of it."""

import asyncio
import gzip
import io
import json

import pytest
from checkout import ROOT
from test_qasper_recipes import MARKED, RECIPES

from raypipe.api.made_data import build_examples
from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest
from raypipe.store import Store

pytestmark = [
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.drill,
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
]
CONF = Conf((ROOT / "conf",))
QUESTIONS = 4  # of the two papers: a prompt of 3,000 tokens takes an engine on a CPU a second


@pytest.fixture(scope="module")
def papers(data, tmp_path_factory):
    """A folder with the two shortest of the given papers, and a pool of examples of all ten."""
    folder, given = tmp_path_factory.mktemp("papers"), data / "qasper/train10_full_papers.json.gz"
    with gzip.open(given, "rt", encoding="utf-8") as file:
        whole = json.load(file)
    short = sorted(whole, key=lambda id: len(json.dumps(whole[id]["full_text"])))[:2]
    (folder / "papers.json").write_text(json.dumps({id: whole[id] for id in short}), encoding="utf-8")
    build_examples(given, folder / "pool.jsonl")
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_two_given_papers_are_answered_alike_on_ray_in_one_process_and_by_ask(
    name, papers, standins, team, engine_groups, tmp_path
):
    pool = str(papers / "pool.jsonl")
    graphs = {"qasper-train": pool, "qasper-train-explained": pool}
    recipe = load_recipe(name, str(standins), CONF, graphs, sets=MARKED if name.endswith("cot") else [])

    def run(out, runner):
        store = Store.create(str(tmp_path / f"store-{out}"))
        place = WorkerConfig(store.uri, "transformers", "cpu", 2, team.first_engines)
        with Progress(io.StringIO(), silent=True) as progress:
            pipeline = Pipeline(store, recipe, place, TaskSizes(100, 2), runner, progress)
            done = evaluate(
                pipeline, [papers / "papers.json"], tmp_path / out, EvalOptions("qasper", limit=QUESTIONS)
            )
        lines = (tmp_path / out / "predictions.jsonl").read_text().splitlines()
        return pipeline, done, [json.loads(line) for line in lines]

    def on_ray(verb, fill, parts):
        there = team.engines.answer if verb == "answer" else None
        return engine_groups.run_tasks(fill, parts, there) if there else inline(verb, fill, parts)

    _, far, there = run("ray", on_ray)
    pipeline, done, here = run("process", inline)
    assert there == here and len(here) == QUESTIONS
    asks = 2 if "documents" in name else 1  # the rewriter, too
    for ran in (far, done):
        steps = [s for s in ran.record.steps if s.step.startswith("generate")]
        assert [s.computed for s in steps] == [QUESTIONS] * asks and not any(s.faults for s in steps)
        assert ran.scored.scores.kind == "qasper"
    assert {line["outcome"] for line in here} == {"answered"}
    assert {bool(line["hits"]) for line in here} == {"documents" in name}
    assert bool(pipeline.store.count(pipeline.recipe.passages_table)) == ("documents" in name), (
        "variant 1 has no index"
    )

    async def asked(id):  # by its id: papers may share the text of a question
        kit = LocalKit(None, "transformers", engines=team.first_engines)
        answerer = Answerer(recipe, kit, pipeline.store.uri)  # no memo: it is computed again
        return (await answerer.answer(QueryRequest(Question("asked", id)))).question

    for line in here:
        alone, ranked = asyncio.run(asked(line["id"])), tuple(h["chunk"] for h in line["hits"])
        assert (alone.answer, alone.order) == (line["prediction"], ranked)
