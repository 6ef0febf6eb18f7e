"""A graph's folder belongs to a recipe by its digest: an edited one is refused and never answered from."""

import asyncio
import io
import json

import pytest
from checkout import ROOT

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.record import read
from raypipe.runs.release import promote
from raypipe.serving.answerer import NotReady
from raypipe.serving.query import QueryRequest
from raypipe.serving.release_follower import ReleaseFollower
from raypipe.store import Store

pytestmark = pytest.mark.slow

RECIPE = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - match_calls:
      graph: world
      embedder: hash-embedder
      least: 0.3
      bank:
        examples:
          - domain: movie
            calls: 'get_movie({movie})["year"]'
            questions: ["when was {movie} released?"]
  - kg_query: {graph: world, calls: calls, into: facts, rule: rule, answer: kg}
  - decide: {prefer: [kg]}
"""
QUESTION = "when was The Lantern Maker released?"
BEFORE, AFTER = (json.dumps([{"title": "The Lantern Maker", "year": year}]) for year in (2018, 2019))


class Place:
    """A graph's folder, a recipe that asks it, and a store with one question."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "kg/movie.json"
        self.file.parent.mkdir()
        self.file.write_text(BEFORE)
        (folder / "made.yaml").write_text(RECIPE)
        name = {"page_name": "Lanterns", "page_url": "https://e.org/", "page_snippet": ""}
        name |= {"page_result": "", "page_last_modified": ""}
        line = {"interaction_id": "q", "query": QUESTION, "answer": "2018", "alt_ans": []}
        line |= {"query_time": "03/05/2024, 23:18:31 PT", "search_results": [name]}
        (folder / "q.jsonl").write_text(json.dumps(line))
        self.store = Store.create(str(folder / "store"))

    def pipeline(self):
        recipe = load_recipe(
            str(self.folder / "made.yaml"), None, Conf((ROOT / "conf",)), {"": str(self.file.parent)}
        )
        place = WorkerConfig(self.store.uri, "transformers", "cpu", 1)
        silent = Progress(io.StringIO(), silent=True)
        return Pipeline(self.store, recipe, place, TaskSizes(50, 4), inline, silent)

    def answer(self, pipe, out="out"):
        evaluate(pipe, [self.folder / "q.jsonl"], self.folder / out, EvalOptions("crag", rule="official"))
        return json.loads((self.folder / out / "predictions.jsonl").read_text())["prediction"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_folder_that_changes_before_the_answer_ends_the_run_and_nothing_of_it_is_stored(place):
    pipe = place.pipeline()
    place.file.write_text(AFTER)
    with pytest.raises(ConfError, match="graph 'world'"):
        place.answer(pipe)
    assert place.store.count("answers") == 0 == place.store.count("faults")
    place.file.write_text(BEFORE)
    assert place.answer(pipe) == "2018"
    place.file.write_text(AFTER)
    assert place.answer(place.pipeline(), "new") == "2019", "a new version is another recipe"


def test_a_release_answers_from_the_folder_that_it_was_made_with_or_says_why_not(place, capsys):
    place.answer(place.pipeline())
    promote(place.store, read(place.folder / "out"), [])

    def online(follower):
        async def ask():
            return (await (await follower.current()).answer(QueryRequest(Question("x", QUESTION)))).question

        return asyncio.run(ask()).answer

    running = ReleaseFollower(LocalKit(None, "transformers"), place.store.uri)
    assert online(running) == "2018"
    place.file.write_text(AFTER)
    assert online(running) == "2018", "tables that are open stay as they were"
    with pytest.raises(NotReady, match=r"graph 'world': .*Restore it on every machine"):
        online(ReleaseFollower(LocalKit(None, "transformers"), place.store.uri))
    ask = ["ask", "live", QUESTION, "--store", place.store.uri]
    capsys.readouterr()
    assert main(ask) == 2
    assert "is not what the recipe was resolved with" in capsys.readouterr().err
    assert main(["serve", "live", "--store", place.store.uri]) == 2, "before a port is opened"
    assert "is not what the recipe was resolved with" in capsys.readouterr().err
    place.file.write_text(BEFORE)
    assert main(ask) == 0 and "2018" in capsys.readouterr().out
