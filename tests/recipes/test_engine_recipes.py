"""Recipes with a language model through the real vLLM, on stand-in weights: as a job with the session's
engine, and, in `make test-all`, while that is killed, through an OpenAI server, and through the endpoint."""

import asyncio
import bz2
import io
import json
import runpy
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import httpx
import psutil
import publicdata
import pytest
import yaml
from checkout import ROOT
from shared_engine import REAPER, VLLM, engines_end, living, ours
from vllm_server import VllmServer

from raypipe.api.session import load_recipe
from raypipe.contrib.crag.server import serve as serve_graph
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.llm import Generated, Message, Sampling
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.steps.generate import Generate
from raypipe.store import Store
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions

pytestmark = [
    pytest.mark.drill,
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),  # Ray Serve's own classes
]
CONF = Conf((ROOT / "conf",))
SMALL, WHOLE = "crag-baseline", "db3-task1-700"


@pytest.fixture(scope="module")
def server(standins, tmp_path_factory):
    """`vllm serve` over the stand-in."""
    folder, log = standins.with_name("chat"), tmp_path_factory.mktemp("vllm") / "serve.log"
    made = VllmServer.started(folder, "tiny", "float32", log)
    yield made
    made.end()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store.create(str(tmp_path_factory.mktemp("engine") / "store"))


def run(recipe, team, store, data, out, fresh=False, on_ray=True, **place) -> tuple[Pipeline, Evaluation]:
    """An eval whose answers are made on Ray, beside the job's engine, or in this process by the same engine.
    The corpus half, which is tested elsewhere, is done in this process."""
    from raypipe.runs.cluster import engine_groups

    def runner(verb, fill, parts):
        there = team.engines.answer if on_ray and verb == "answer" else None
        return engine_groups.run_tasks(fill, parts, there) if there else inline(verb, fill, parts)

    where = WorkerConfig(store.uri, "transformers", "cpu", 2, team.first_engines, **place)
    with Progress(io.StringIO(), silent=True) as progress:
        pipeline = Pipeline(store, recipe, where, TaskSizes(100, 5), runner, progress)
        done = evaluate(pipeline, [data], out, EvalOptions("crag", limit=10, rule="official", fresh=fresh))
    return pipeline, done


def said(out):
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def generated(done):
    return next(s for s in done.record.steps if s.step.startswith("generate"))


def test_a_recipe_answers_every_question_asks_nothing_twice_and_fresh_asks_again(
    standins, team, store, world, tmp_path
):
    recipe = load_recipe(SMALL, str(standins), CONF)
    outs = [tmp_path / name for name in ("one", "two", "three")]
    first = run(recipe, team, store, world, outs[0])[1]
    answers = said(outs[0])
    assert len(answers) == 6 and len({p["prediction"] for p in answers}) == 6, "each has an answer of its own"
    assert all(p["outcome"] == "answered" and p["prediction"] and p["source"] == "web" for p in answers)
    step = generated(first)
    assert step.computed == 6 and step.faults == 0
    assert step.prompt_tokens > 6 * 100 and step.generated_tokens >= 6 * 40
    assert first.record.answer_cut.tokens == 75 and first.record.answer_cut.tokenizer == "llama-2-tokens"
    second = run(recipe, team, store, world, outs[1])[1]
    assert second.reused == 6 and not any(s.computed for s in second.record.steps)
    again = run(recipe, team, store, world, outs[2], fresh=True, on_ray=False)[1]
    assert generated(again).computed == 6
    assert sum(s.computed for s in again.record.steps) == 6, "vectors and scores are cached"
    assert said(outs[0]) == said(outs[1]) == said(outs[2])


def test_all_workers_and_this_process_share_the_one_engine(team):
    [model] = team.models
    assert (
        list(team.first_engines) == [model_identity(model)]
        and len(team.first_engines[model_identity(model)]) == 1
    )
    generate = LocalKit(None, engines=team.first_engines).generator(model)
    [reply] = asyncio.run(generate([(Message("user", "Who built the bridge?"),)], Sampling(max_tokens=5)))
    assert reply.generated_tokens == 5


@dataclass
class Done:
    """The ten real questions through a job, nothing remembered before."""

    recipe: object
    store: Store
    answers: list  # of Question
    said: list  # lines of predictions.jsonl


@pytest.fixture(scope="module")
def pages(data, tmp_path_factory):
    """The ten real questions, each with the first two of its pages."""
    file = tmp_path_factory.mktemp("pages") / "ten.jsonl"
    with bz2.open(data / "crag/dev_data.jsonl.bz2", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    short = [{**row, "search_results": row["search_results"][:2]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in short), encoding="utf-8")
    return file


def answers_of(pipeline, store):
    return list(pipeline.answers(arrow.question.records(store.dataset("questions").to_table())))


@pytest.fixture(scope="module")
def ten(standins, team, pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ten")
    recipe, store = load_recipe(WHOLE, str(standins), CONF), Store.create(str(folder / "store"))
    pipeline, _ = run(recipe, team, store, pages, folder / "out")
    return Done(recipe, store, answers_of(pipeline, store), said(folder / "out"))


def test_the_ten_real_questions_each_get_an_answer_with_its_evidence(ten):
    assert len(ten.answers) == len({q.answer for q in ten.answers}) == 10
    assert all(q.outcome == "answered" and q.replies["web"].quotes for q in ten.answers)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A small knowledge graph behind the mock API, and tables of public data: name -> where it is."""
    public = publicdata.tables(tmp_path_factory.mktemp("public"))
    with serve_graph(runpy.run_path(str(ROOT / "tests/contrib/crag/smallgraph.py"))["build"]().tables) as url:
        yield {"crag-mock": url, **public}


CITY = [{"function": "entity", "name": "Florida City", "attribute": "mayor"}]
HELD = {
    "grammar/one.lark": r'start: "get_open(\"Florida City\")[\"mayor\"]" | "None"',
    "schemas/one.yaml": json.dumps(
        {"anyOf": [{"const": {"calls": calls, "operation": "value"}} for calls in (CITY, [])]}
    ),
    "schemas/open.yaml": json.dumps({"const": {"domain": "open", "certainty": 99, "invalid": False}}),
}
"""A model with random weights finds nothing: here what it writes is one of two, of which one does."""
EDITS = {
    "db3-task1": [("default: open", "default: movie"), ("[oscar, academy, best]", "[office]")],
    "db3": [("grammar: calls", "grammar: one")],
    "weknow": [("schema: functions", "schema: one"), ("schema: weknow-domain", "schema: open")],
}
WEB = ("shortlist", "dense", "fuse", "rerank", "generate:web")


@pytest.mark.parametrize(
    "name",
    [
        "db3-task1-700-public",
        "db3-task1-2000-public",
        "db3-task2",
        "db3-task3",
        "weknow",
    ],
)
def test_what_the_graph_or_public_data_answered_asks_nothing_of_the_web(
    standins, team, ten, graphs, pages, tmp_path, name
):
    text = (ROOT / f"conf/recipes/{name}.yaml").read_text()
    for old, new in next(edits for start, edits in EDITS.items() if name.startswith(start)):
        assert old in text
        text = text.replace(old, new)
    for file, held in {**HELD, "made.yaml": text}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(held)
    files = Conf((tmp_path, ROOT / "conf"))
    recipe = load_recipe(str(tmp_path / "made.yaml"), str(standins), files, graphs)
    pipeline, done = run(recipe, team, ten.store, pages, tmp_path / "out", on_ray=False)
    answers, steps = answers_of(pipeline, ten.store), {s.step: s for s in done.record.steps}
    assert len(answers) == 10 and not any(
        r.fault for q in answers for n, r in q.replies.items() if n != "web"
    )
    known, first = ("known", "public") if "public" in name else ("kg", "facts")
    found = [q for q in answers if q.replies[first].label == "answered"]
    assert found and [q for q in answers if q.origin == known] == found
    assert all(q.outcome == "answered" for q in found)
    web = [s for s in WEB if s in steps]
    assert len(web) >= 4 and {s: steps[s].skipped for s in web} == dict.fromkeys(web, len(found))
    asked = steps["generate:web"]
    assert asked.computed + asked.cached == 10 - len(found), "the recipe of before may have asked the same"


def test_an_engine_killed_with_calls_in_flight_loses_no_row(team):
    """The actor that holds it; `make drill` kills its worker and its core, too."""
    from raypipe.models import engine_actors

    client = engine_actors.find(team.first_engines[model_identity(team.models[0])][0])
    texts = [f"The bridge of {i} " * (1 + i % 30) + f"\nWho was number {i}?" for i in range(40)]
    chats = [(Message("user", text),) for text in texts]
    cores = ours("VLLM::EngineCore")

    async def ask():
        replies = await client.generate(chats, Sampling(max_tokens=120))
        return [r.text if isinstance(r, Generated) else f"fault: {r.detail}" for r in replies]

    async def disturbed():
        call = asyncio.create_task(ask())
        await asyncio.sleep(0.8)
        assert not call.done()
        parents = {p.ppid(): " ".join(psutil.Process(p.ppid()).cmdline()) for p in cores.values()}
        actors = [pid for pid, title in parents.items() if "EngineActor" in title]
        assert len(actors) == 1, f"cores and who holds them: {parents}"
        psutil.Process(actors[0]).kill()
        return await call

    calm = asyncio.run(ask())
    assert asyncio.run(disturbed()) == calm and len(set(calm)) == 40


def test_the_same_recipe_through_an_openai_server_gives_equal_answers(
    standins, team, server, ten, pages, tmp_path
):
    tree = yaml.safe_load(standins.read_text())
    tree["llama-3-8b"] = {
        "kind": "generator",
        "loader": "openai",
        "endpoint": "here",
        "model": "tiny",
        "max_model_len": 8192,
        "dialect": "vllm",
        "tokenizer": "llama-2-tokens",
    }
    file = standins.with_name("models.openai.yaml")
    file.write_text(yaml.safe_dump(tree))
    recipe = load_recipe(WHOLE, str(file), CONF)
    at = {"here": EndpointAddress(server.ready())}
    _, done = run(recipe, team, ten.store, pages, tmp_path, endpoints=at)
    assert generated(done).computed == 10 and generated(done).prompt_tokens > 10_000
    assert said(tmp_path) == ten.said


class Nobody(LocalKit):
    """A kit whose models must not be asked."""

    def generator(self, model):
        async def refuse(chats, sampling, adapter=None):
            raise AssertionError(f"a prompt that no job rendered: {chats[0][-1].content[-300:]!r}")

        return refuse


@dataclass
class Endpoint:
    """A client of the endpoint, and the pids of engines that are not its own."""

    client: httpx.Client
    others: set

    def core(self):
        """The process in which its engine computes."""
        [found] = [p for pid, p in ours("VLLM::EngineCore").items() if pid not in self.others]
        return found


@pytest.fixture(scope="module")
def endpoint(ten, serve_port):
    """Over the job's store, with an engine of its own, without a memo: each request asks the engine."""
    from raypipe.serving.access import ServerConfig
    from raypipe.serving.ray import app as ray

    others = set(living(VLLM, REAPER))
    kit = partial(LocalKit, None, "transformers", "cpu", 1)
    try:
        config = ServerConfig(memo_mb=0)
        app = ray.build_application(ten.recipe, ten.store.uri, kit, 0, config)
        ray.start(app, "127.0.0.1", serve_port)
        with httpx.Client(base_url=f"http://127.0.0.1:{serve_port}", timeout=120) as client:
            client.post("/v1/answer", json={"query": "who?"})  # vLLM's first chat waits for its core
            yield Endpoint(client, others)
    finally:
        ray.stop()
    assert engines_end(others), "the endpoint's engine outlived it"


def test_the_ten_real_questions_through_http_have_equal_hits_prompts_and_answers(endpoint, ten):
    def ask(question):
        body = {"query": question.text, "time": question.asked_at, "include": ["hits", "prompts"]}
        body["deadline_s"] = 120  # ten at once on a CPU
        return endpoint.client.post("/v1/answer", json=body).json()

    with ThreadPoolExecutor(10) as threads:
        replies = list(threads.map(ask, ten.answers))
    step = next(s.step for s in ten.recipe.question if isinstance(s.step, Generate))
    tally, memo = CallCounts(), StoreMemo(ten.store.uri, memo_versions(ten.store))
    known = cached(Nobody(None), memo, tally).generator(step.model)
    parsed = ten.store.dataset(ten.recipe.texts_table).to_table(["source", "text"]).to_pylist()
    texts = {row["source"].hex(): row["text"] for row in parsed}
    flips = 0
    for reply, answered in zip(replies, ten.answers, strict=True):
        assert tuple(h["chunk"] for h in reply["hits"])[: len(answered.order)] == answered.order
        scores = {h.chunk: dict(h.scores) for h in answered.hits}
        assert {h["chunk"] for h in reply["hits"]} == scores.keys()
        for hit in reply["hits"]:
            assert hit["scores"] == pytest.approx(scores[hit["chunk"]], abs=1e-5)
        chats = [tuple(Message(**m) for m in chat) for chat in reply["prompts"]]
        assert len(asyncio.run(known(chats, step.sampling()))) == 1
        assert reply["usage"]["chats"] == 1, "the endpoint remembers nothing"
        flips += (reply["answer"], reply["outcome"]) != (answered.answer, answered.outcome)
        assert reply["citations"]
        for citation in reply["citations"]:
            assert texts[citation["source"]][slice(*citation["span"])] == citation["quote"] != ""
            assert citation["url"].startswith("http")
    print(f"answers that flipped between job and endpoint: {flips} of {len(replies)}")
    assert tally.replies.cached == 10
    assert flips == 0, "on a CPU a reply does not depend on its neighbours in the batch"


def until_unfinished(chats):
    """Waits until the endpoint's engine counts so many chats that it has not ended."""
    from ray import serve

    from raypipe.serving.ray import app as ray

    asked = serve.get_deployment_handle("generate", ray.APP_NAME).unfinished
    end = time.monotonic() + 60
    while (found := asked.remote().result(timeout_s=60)) != chats:
        assert time.monotonic() < end, f"{found} chats, not {chats}"
        time.sleep(0.1)


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_goes_takes_its_chat_out_of_the_engine(endpoint, ten, streams):
    [job, *_] = ten.answers
    body = {"query": job.text, "time": job.asked_at, "deadline_s": 120}
    raw = json.dumps({**body, "stream": streams}).encode()
    head = "POST /v1/answer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    engine = endpoint.core()
    engine.suspend()  # so that it cannot be done before the client goes
    try:
        with socket.create_connection(("127.0.0.1", endpoint.client.base_url.port)) as client:
            client.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
            until_unfinished(1)
        until_unfinished(0)
    finally:
        engine.resume()
    assert endpoint.client.post("/v1/answer", json=body).json()["answer"] == job.answer


def test_an_engine_killed_amid_an_answer_is_named_in_it_and_the_next_is_answered_by_another(endpoint, ten):
    job = next(a for a in ten.answers if a.text.startswith("who was"))  # `extract` has rules for others
    body = {"query": job.text, "time": job.asked_at, "deadline_s": 120}
    engine = endpoint.core()
    engine.suspend()  # so that it has the question in hand when it dies
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(endpoint.client.post, "/v1/answer", json=body)
        until_unfinished(1)
        engine.kill()
        said = asking.result(timeout=120).json()
    assert (said["outcome"], said["degraded"]) == ("abstained", ["generate:web"])
    end = time.monotonic() + 240
    while (said := endpoint.client.post("/v1/answer", json=body).json())["degraded"]:
        assert time.monotonic() < end, said
    assert (said["answer"], said["outcome"]) == (job.answer, job.outcome)
    assert endpoint.client.get("/readyz").json() == {"status": "ready", "unavailable": []}
