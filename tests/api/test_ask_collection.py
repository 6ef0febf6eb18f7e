"""A question to a small invented collection, by a recipe of the shape of `collection-local` on fakes."""

import pytest
from collection_bench import Bench
from reruns import CONF

from raypipe.api.questions import ask
from raypipe.api.session import Session
from raypipe.api.settings import from_environment
from raypipe.core import arrow
from raypipe.pipeline.ingest import ingest
from raypipe.synth import write_collection

SHAPE = (
    (CONF.folders[0] / "recipes/collection-local.yaml")
    .read_text()
    .replace("all-MiniLM-L6-v2", "hash-embedder")
    .replace("minilm-maxsim", "overlap-reranker")
)


@pytest.mark.slow
def test_a_question_to_thirty_papers_ranks_papers_and_answers_nothing(tmp_path):
    write_collection(tmp_path / "papers", 30, 1, 3)
    bench = Bench(tmp_path, tmp_path)
    pipe = bench.pipeline(SHAPE)
    ingest(pipe.store, [tmp_path / "papers"], "beir", pipe.progress)
    pipe.index(None)
    [question] = arrow.question.records(pipe.store.scan("questions"))
    environ = {"RAYPIPE_CONF": str(CONF.folders[0]), "RAYPIPE_HOME": str(tmp_path / "home")}
    session = Session(from_environment(environ, tmp_path))
    said = ask(pipe.recipe, question.text, store=pipe.store, session=session)
    rows = list(said.rows())
    assert said.outcome != "fault" and rows and all(r["text"] for r in rows)
    assert {r["source"] for r in rows} <= set(pipe.store.scan("sources", ["id"])["id"].to_pylist())
