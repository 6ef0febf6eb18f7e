"""The endpoint on a real Ray Serve: `raypipe serve` answers what the job and `raypipe ask` answered."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

import httpx
import pytest
import yaml
from serve_config import builder, unknown

from raypipe import arrow
from raypipe.cli import main
from raypipe.cli.opened import resolved
from raypipe.cli.serve import Endpoint
from raypipe.conf import Conf
from raypipe.errors import ConfError
from raypipe.ingest import ingest
from raypipe.pipeline import Pipeline, Sizes, inline
from raypipe.report.progress import Progress
from raypipe.store import Store
from raypipe.work import Place

HERE = Path(__file__).parent
ROOT = HERE.parent
FAKES = str(HERE / "fakes.yaml")
CONFIG = ROOT / "serve" / "local.yaml"
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # Ray's own classes
RECIPE = resolved(FAKES, None, Conf((ROOT / "conf",)))


@pytest.fixture(scope="module")
def store(world, tmp_path_factory):
    """A pipeline over a store with questions and pages, nothing indexed yet."""
    uri = str(tmp_path_factory.mktemp("serve") / "store")
    with Progress(io.StringIO(), silent=True) as progress:
        ingest(Store.create(uri), [world], "synth", progress)
        yield Pipeline(
            Store.open(uri), RECIPE, Place(uri, "sorted", "cpu", 1), Sizes(50, 3), inline, progress
        )


@pytest.fixture(scope="module")
def endpoint(store, tmp_path_factory):
    """A client of the running command, and what it said before the tables were there."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "serve.log"
    command = [sys.executable, "-m", "raypipe", "serve", FAKES, "--store", store.store.uri]
    env = {**os.environ, "RAYPIPE_CONF": str(ROOT / "conf")}
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], env=env, stdout=out, stderr=out)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_for(client, process, log)
                before = client.get("/readyz"), client.post("/v1/answer", json={"query": "who?"})
                asked = arrow.question.records(store.store.dataset("questions").to_table())
                store.index(asked)
                store.answer(asked)
                yield client, before
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143, log.read_text()


def wait_for(client, process, log):
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            if client.get("/healthz").is_success:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"not listening after minutes:\n{log.read_text()}")


def jobs(store):
    """What the job answered."""
    return list(store.answers(arrow.question.records(store.store.dataset("questions").to_table())))


@pytest.mark.ray
def test_it_listens_before_the_tables_are_there_and_says_so(endpoint):
    client, before = endpoint
    assert [r.status_code for r in before] == [503, 503]
    assert client.get("/readyz").status_code == 200  # without a restart


@pytest.mark.ray
def test_it_answers_what_the_job_answered_bit_for_bit_with_many_in_flight(endpoint, store, world):
    client, _ = endpoint
    lines = [json.loads(x) for f in world.glob("questions*.jsonl") for x in f.read_text().splitlines()]
    pages = {line["interaction_id"]: line["search_results"] for line in lines}

    def send(job, brings):
        body = {"query": job.text, "time": job.asked_at, "include": ["hits"]}
        return client.post("/v1/answer", json=body | ({"documents": pages[job.id]} if brings else {}))

    asked = [(job, brings) for job in jobs(store) for brings in (False, True)]
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda row: send(*row), asked))
    for (job, _), reply in zip(asked, replies, strict=True):
        said = reply.json()
        assert (said["answer"], said["outcome"]) == (job.answer, job.outcome)
        assert {h["chunk"]: h["scores"] for h in said["hits"]} == {h.chunk: dict(h.scores) for h in job.hits}
        assert tuple(h["chunk"] for h in said["hits"])[: len(job.order)] == job.order


@pytest.mark.ray
def test_it_answers_what_raypipe_ask_answers(endpoint, store, monkeypatch):
    client, _ = endpoint
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    job = next(q for q in jobs(store) if q.outcome == "answered")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["ask", FAKES, job.text, "--store", store.store.uri, "--json"]) == 0
    there, here = (
        client.post("/v1/answer", json={"query": job.text, "include": ["hits"]}).json(),
        json.loads(out.getvalue()),
    )
    for field in ("id", "query", "answer", "outcome", "confidence", "hits"):
        assert there[field] == here[field]
    assert there["citations"]


@pytest.mark.ray
def test_what_is_wrong_with_a_request_is_said_without_repeating_it(endpoint):
    client, _ = endpoint
    json_type = {"content-type": "application/json"}
    replies = {
        400: client.post("/v1/answer", content=b'{"query": "s3cr3t', headers=json_type),
        405: client.get("/v1/answer"),
        413: client.post("/v1/answer", content=b" " * 50_000_000, headers=json_type),
        415: client.post("/v1/answer", data={"query": "s3cr3t"}),
    }
    for status, reply in replies.items():
        assert reply.status_code == status and "s3cr3t" not in reply.text
        assert reply.headers["content-type"] == "application/problem+json"
    assert client.get("/healthz").is_success


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path))
    return yaml.safe_load(CONFIG.read_text())


def test_the_serve_config_has_no_key_that_serve_does_not_know(config):
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(config)
    assert list(unknown(ServeDeploySchema, config)) == []
    typo = {**config, "http_option": {}}
    typo["applications"] = [{**config["applications"][0], "deployments": [{"name": "x", "num_replica": 1}]}]
    assert list(unknown(ServeDeploySchema, typo)) == ["applications.deployments.num_replica", "http_option"]
    assert config["http_options"]["host"] == "127.0.0.1"


def test_the_serve_config_names_the_builder_and_the_deployments_that_it_makes(config):
    from ray.serve._private.build_app import build_app

    [app] = config["applications"]
    assert app["import_path"] == "serve.app:build" and builder()
    built = build_app(builder()(app["args"]), name="raypipe")
    made = {d.name: d for d in built.deployments}
    assert set(made) == {d["name"] for d in app["deployments"]} == {"gateway", "embed", "rerank"}
    assert built.ingress_deployment_name == "gateway"
    for d in app["deployments"]:
        assert made[d["name"]].ray_actor_options["num_cpus"] == d["ray_actor_options"]["num_cpus"]


def test_an_engine_gets_the_gpus_that_the_cluster_file_gives_it_and_the_models_beside_it_the_rest(config):
    from ray.serve._private.build_app import build_app

    app = builder()({"recipe": "db3-task1-700", "cluster": "one-gpu", "store": "/data/store"})
    made = build_app(app, name="raypipe").deployments
    held = {d.name: d.ray_actor_options.get("num_gpus", 0) for d in made}
    assert held == {"gateway": 0, "embed": 0.05, "rerank": 0.05, "generate": 0.8}
    assert sum(held.values()) <= 1, "one GPU holds them all"


def test_a_model_that_is_not_here_is_said_before_anything_starts(config, capsys, tmp_path):
    assert main(["serve", "crag-baseline", "--store", str(tmp_path / "store")]) == 4
    assert "hf download" in capsys.readouterr().err


def test_the_builder_refuses_arguments_that_nobody_knows(config):
    with pytest.raises(ConfError, match="unknown field 'recipee'; did you mean 'recipe'"):
        builder()({"recipee": "local"})
    with pytest.raises(ConfError, match="did you mean 'local'"):
        builder()({"recipe": "locall"})
    assert Endpoint().recipe == "local"
