"""A ranked collection at the endpoint, by `rank`, and by a scorer of its own: one index, one ranking."""

import asyncio
import json
import math

import numpy as np
import pytest
from collection_bench import RANKS, Bench, papers, queries, write_beir
from http_app import send, served
from reruns import CONF
from second_scorer import means

from raypipe.api.questions import ask, rank
from raypipe.api.session import Session, from_environment
from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.errors import ConfError
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.metrics.ranking import read_qrels, score
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.serving.answerer import Answerer
from raypipe.store.index import LanceIndex
from raypipe.store.vector_search import numpy_product

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A store in which a collection of 120 papers was ranked for eight questions, and promoted."""
    folder = tmp_path_factory.mktemp("served")
    made = Bench(folder, folder)
    beir = write_beir(folder / "beir", papers(1, 120), queries(8))
    evaluate(made.pipeline(RANKS), [beir], folder / "one", EvalOptions("beir"))
    promote(made.pipeline(RANKS).store, read(folder / "one"), [])
    return made


@pytest.fixture(scope="module")
def pipe(bench):
    return bench.pipeline(RANKS)


@pytest.fixture(scope="module")
def session(bench):
    environ = {"RAYPIPE_CONF": str(CONF.folders[0]), "RAYPIPE_HOME": str(bench.folder / "home")}
    return Session(from_environment(environ, bench.folder))


def answers(pipe):
    return list(pipe.answers(arrow.question.records(pipe.store.scan("questions").sort_by("id"))))


@pytest.mark.drill
def test_requests_in_flight_together_get_the_ranking_of_the_job_from_the_released_index(pipe):
    release = live(pipe.store)
    app = served(Answerer(pipe.recipe, LocalKit(None, "transformers"), pipe.store.uri, release=release))
    known = answers(pipe)
    body = [json.dumps({"query": q.text, "top": 10}).encode() for q in known] * 3
    headers = {"content-type": "application/json"}
    replies = send(app, *(("POST", "/v1/retrieve", {"content": b, "headers": headers}) for b in body))
    for q, reply in zip(known * 3, replies, strict=True):
        found = reply.json()
        assert reply.status_code == 200 and found["versions"]["release"] == release.id
        assert [p["chunk"] for p in found["passages"]] == list(q.order[:10])
        assert all(p["text"] for p in found["passages"])


def test_searches_that_arrive_together_share_products_and_find_what_each_finds_alone(pipe):
    opened = []

    def product(vectors):
        opened.append(len(vectors))
        return numpy_product(vectors)

    index = LanceIndex(searched(pipe.store, pipe.recipe), product)
    [model] = pipe.recipe.embedders()
    rows = np.random.default_rng(4).standard_normal((30, model.dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    async def together():
        return await asyncio.gather(*(index.search(model, row[None], [None], 9) for row in rows))

    found = asyncio.run(together())
    assert len(opened) <= 3 and sum(opened) == 30, "one began alone, and the others waited for it"
    assert found == [asyncio.run(index.search(model, row[None], [None], 9)) for row in rows]


def test_rank_over_the_store_is_scored_alike_by_two_scorers(bench, pipe, session):
    qrels = read_qrels(bench.folder / "beir/qrels.trec")
    for by in ("bm25", "dense", "fuse", "final"):
        found = rank(pipe.recipe, store=pipe.store, by=by, top=100, session=session)
        assert len(found.run) == 8 and all(found.run.values())
        ours, theirs = score(found.run, qrels).means, means(found.run, qrels)
        assert {m: ours[m] for m in theirs} == pytest.approx(theirs, abs=1e-9), by


def test_ask_ranks_papers_for_a_question_that_is_not_stored(pipe, session):
    said = ask(pipe.recipe, "w1 w3 w7 w11", store=pipe.store, session=session)
    rows = list(said.rows())
    assert said.outcome == "ranked" and rows and all(r.text for r in rows)
    assert {r.hit.source for r in rows} <= set(id_texts(pipe.store.scan("sources", ["id"])["id"]))


def test_a_question_of_stop_words_alone_is_ranked_by_vectors(pipe):
    kit = LocalKit(LanceIndex(searched(pipe.store, pipe.recipe)), "transformers")
    [found] = asyncio.run(QuestionExecutor(pipe.recipe, kit)([Question("q", "what is it and who were they")]))
    assert found.order and not any("bm25" in h.scores for h in found.hits)
    assert all(math.isfinite(s) for h in found.hits for s in h.scores.values()) and not found.faults


def test_weights_and_analyzers_that_nothing_writes_are_refused_before_anything_runs(bench, pipe):
    with pytest.raises(ConfError, match=r"fuse reads hits\.keywords, which no earlier step writes"):
        bench.pipeline(RANKS.replace("bm25: 1.0}", "keywords: 1.0}"))
    with pytest.raises(ConfError, match=r"bm25 reads index\.words_plain, which no earlier step writes"):
        bench.pipeline(RANKS.replace("bm25: {words: stems", "bm25: {words: plain"))
    with pytest.raises(ConfError, match=r"no words of analyzer 'plain'.*tokenize: \{analyzer: plain\}"):
        asyncio.run(LanceIndex(searched(pipe.store, pipe.recipe)).words("plain", None))
