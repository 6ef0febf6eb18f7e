"""The endpoint on a real Ray Serve: what the job answered, a release that changes under load, and what is
refused. One start of `raypipe serve live` for all of it; what dies in it is in `test_serve_killed.py`."""

import asyncio
import gzip
import io
import json
import pickle
import re
import socket
import tarfile
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import httpx
import httpx2
import pytest
import yaml
from checkout import ROOT
from endpoint import AUTH, KEY, PART, QUESTIONS, SURE, live_endpoint, until
from http_app import events
from load import fire
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from reruns import CONF, MODELS
from serve_config import builder, unknown

from raypipe.api.cli.main import main
from raypipe.api.endpoint import ServeArgs, check_host
from raypipe.api.session import load_recipe
from raypipe.core.errors import ConfError
from raypipe.recipes.serialize import to_plain
from raypipe.runs.release import live, promote, rollback
from raypipe.serving.access import ApiKeys
from raypipe.store import Store

CONFIG = ROOT / "serve" / "local.yaml"
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # Ray's own classes
AUTO_MAP = {"auto_map": {"AutoModel": "own.Own"}}


@pytest.fixture(scope="module")
def running(released, tmp_path_factory):
    with live_endpoint(released, tmp_path_factory.mktemp("log") / "serve.log") as made:
        yield made


@pytest.mark.ray
def test_questions_get_the_answers_of_the_job_bit_for_bit_with_many_in_flight(running):
    bodies = []
    for job in running.jobs:
        body = {"query": job.text, "time": job.asked_at, "include": ["hits"], "deadline_s": 120}
        bodies += [body, {**body, "documents": running.pages[job.id]}]
    came = asyncio.run(fire(running.url, bodies, 8, AUTH))
    assert len(came) == 2 * QUESTIONS
    for i, reply in enumerate(came):
        job, said = running.jobs[i // 2], reply.body
        assert reply.status == 200, said
        assert (said["answer"], said["outcome"], said["degraded"]) == (job.answer, job.outcome, [])
        assert {h["chunk"]: h["scores"] for h in said["hits"]} == {h.chunk: dict(h.scores) for h in job.hits}
        assert tuple(h["chunk"] for h in said["hits"])[: len(job.order)] == job.order
    assert {q.outcome for q in running.jobs} > {"answered"}


@pytest.mark.ray
def test_an_agent_gets_the_answer_of_the_job_by_a_tool_of_the_same_port_with_the_same_key(running):
    job = next(q for q in running.jobs if q.outcome == "answered")

    async def asked():
        async with (
            httpx2.AsyncClient(headers=AUTH, timeout=120) as http,
            Client(streamable_http_client(f"{running.url}/mcp", http_client=http)) as client,
        ):
            calls = [client.call_tool("answer", {"query": job.text, "deadline_s": 120}) for _ in range(8)]
            return await asyncio.gather(*calls)

    for found in asyncio.run(asked()):
        assert not found.is_error and found.structured_content["answer"] == job.answer
    refused = httpx.post(f"{running.url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert refused.status_code == 401


@pytest.mark.ray
def test_it_answers_what_raypipe_ask_answers(running, monkeypatch):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    job = next(q for q in running.jobs if q.outcome == "answered")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["ask", "live", job.text, "--store", running.store.uri, "--json"]) == 0
    with running.client() as client:
        there = client.post(
            "/v1/answer", json={"query": job.text, "include": ["hits", "replies", "faults"]}
        ).json()
    here = json.loads(out.getvalue())
    for field in ("id", "query", "answer", "outcome", "confidence", "hits", "citations", "versions"):
        assert there[field] == here[field]
    assert there["citations"] and there["versions"]["release"]


@pytest.mark.ray
def test_stages_arrive_one_by_one_and_chats_and_batches_are_answered(running):
    job = next(q for q in running.jobs if q.outcome == "answered")
    with running.client() as client:
        with client.stream("POST", "/v1/answer", json={"query": job.text, "stream": True}) as reply:
            text = "".join(reply.iter_text())
        found = events(text)
        assert found[-1][0] == "answer" and json.loads(found[-1][1])["answer"] == job.answer
        assert [json.loads(d)["stage"] for n, d in found if n == "stage"][-1] == "decide"
        messages = [{"role": "user", "content": job.text}]
        chat = client.post("/v1/chat/completions", json={"model": "raypipe", "messages": messages}).json()
        assert chat["choices"][0]["message"]["content"] == job.answer
        batch = client.post("/v1/answer:batch", json={"queries": [{"query": job.text}] * 3}).json()
        assert [a["answer"] for a in batch["answers"]] == [job.answer] * 3
        assert client.get("/v1/index").json()["rows"]["texts"] > 0
        assert len(client.get("/healthz").headers.get_list("x-request-id")) == 1


@pytest.mark.ray
def test_an_error_repeats_nothing_of_the_request(running):
    json_type = {"content-type": "application/json"}
    packed = {**json_type, "content-encoding": "gzip"}
    with running.client() as client:
        replies = [
            (400, client.post("/v1/answer", content=b'{"query": "s3cr3t', headers=json_type)),
            (400, client.post("/v1/answer", content=b'{"query": "s3cr3t \xff"}', headers=json_type)),
            (400, client.post("/v1/answer", content=b'{"query": ' + b"[" * 100_000, headers=json_type)),
            (405, client.get("/v1/answer")),
            (413, client.post("/v1/answer", content=b" " * 50_000_000, headers=json_type)),
            (415, client.post("/v1/answer", data={"query": "s3cr3t"})),
            (415, client.post("/v1/answer", content=gzip.compress(b'{"query": "s3cr3t"}'), headers=packed)),
            (401, httpx.post(f"{running.url}/v1/answer", json={"query": "s3cr3t"})),
        ]
        for status, reply in replies:
            assert reply.status_code == status and "s3cr3t" not in reply.text
            assert reply.headers["content-type"] == "application/problem+json"
        assert client.get("/healthz").is_success


@pytest.mark.ray
def test_an_archive_is_never_unpacked_and_a_name_that_climbs_opens_nothing(running, tmp_path):
    climbs = "../" * 20 + str(tmp_path / "s3cr3t").lstrip("/")
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.add(__file__, arcname=climbs)
        archive = made.getvalue()
    host, port = running.url.removeprefix("http://").split(":")
    with running.client() as client:
        for kind, status in (("application/x-tar", 415), ("application/json", 400)):
            reply = client.post("/v1/answer", content=archive, headers={"content-type": kind})
            assert reply.status_code == status and "s3cr3t" not in reply.text
        page = {
            "page_result": archive.decode("latin-1"),
            "page_url": f"file:///{climbs}",
            "page_name": climbs,
        }
        reply = client.post("/v1/answer", json={"query": climbs, "documents": [page]})
        assert reply.status_code == 200 and reply.json()["outcome"] in ("answered", "abstained")
        body = {"query": "x", "filters": {"sources": ["../../etc/passwd", "' OR 1=1 --"]}}
        assert client.post("/v1/retrieve", json=body).json()["passages"] == []
    for path in ("/v1/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..\\..\\etc\\passwd"):
        with socket.create_connection((host, int(port))) as s:  # a client would make the path short itself
            s.sendall(f"GET {path} HTTP/1.0\r\nhost: {host}\r\n\r\n".encode())
            assert s.makefile("rb").readline().split()[1] == b"404"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_fifty_slow_clients_delay_no_other(running):
    host, port = running.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/answer HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\n"
        "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    ).encode()
    body = json.dumps({"query": "x", "stream": True}).ljust(1000).removeprefix("{").encode()
    with ExitStack() as open_ones:
        for i in range(51):
            s = open_ones.enter_context(socket.create_connection((host, int(port))))
            # Some send not even a whole head, some no whole body, and some never read their stream.
            s.sendall((head[:40], head, head + body)[i % 3])
        came = running.fire(20, 4)
    assert {c.status for c in came} == {200}
    assert max(c.seconds for c in came) < 10


@pytest.mark.drill
@pytest.mark.ray
def test_requests_over_the_limit_get_429_and_the_others_are_answered_in_time(running):
    came = running.fire(400, 400)
    assert {c.status for c in came} == {200, 429}
    for c in came:
        if c.status == 429:
            assert int(c.retry_after) > 0
        else:
            assert c.seconds < 40, "the deadline is 30 s"
    assert {c.status for c in running.fire(8, 2)} == {200}


@pytest.mark.ray
def test_promote_and_roll_back_under_load_lose_nothing_and_mix_nothing(running):
    first, second = running.runs
    came = running.under_load(60, 8, lambda: promote(running.store, second, []))
    assert {c.status for c in came} == {200}
    seen = {(c.body["versions"]["release"], c.body["versions"]["recipe"]) for c in came}
    assert {recipe for _, recipe in seen} == {first.digest, second.digest} and len(seen) == 2
    model = {first.digest: "hash-embedder", second.digest: "other-embedder"}
    for c in came:
        assert model[c.body["versions"]["recipe"]] in c.body["versions"]["models"]
    came = running.under_load(60, 8, lambda: rollback(running.store))
    assert {c.status for c in came} == {200}
    until(lambda: {c.body["versions"]["recipe"] for c in running.fire(8, 4)} == {first.digest}, 60)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("weights", "config", "says"),
    [("pytorch_model.bin", {}, "pickled weights only"), ("model.safetensors", AUTO_MAP, "code of its own")],
    ids=["pickles", "code"],
)
def test_a_release_with_a_model_that_must_not_be_opened_is_not_followed_and_nothing_of_it_runs(
    running, tmp_path, weights, config, says
):
    mark, folder = tmp_path / "ran", tmp_path / "model"
    folder.mkdir()
    (folder / weights).write_bytes(pickle.dumps(Bomb(mark)))
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    entry = f"evil: {{kind: reranker, loader: flagembedding-reranker, max_tokens: 64, path: {folder}}}\n"
    (tmp_path / "models.yaml").write_text(MODELS + entry)
    (tmp_path / "evil.yaml").write_text(
        SURE.replace("rerank: {model: overlap-reranker", "rerank: {model: evil")
    )
    recipe = load_recipe(str(tmp_path / "evil.yaml"), str(tmp_path / "models.yaml"), CONF)
    first, _ = running.runs
    changed = {"run": f"evil{weights[0]}", "recipe": to_plain(recipe), "digest": recipe.digest()}
    evil = first.model_copy(update=changed)
    assert running.fire(1, 1)[0].status == 200  # the release before it is open
    release = promote(running.store, evil, [])
    try:
        running.refuses(f"release {release.id} is not followed", first.digest)
        assert says in running.logs() and not mark.exists()
    finally:
        rollback(running.store)


@pytest.mark.ray
def test_a_release_whose_name_climbs_out_of_the_store_is_not_followed(running):
    files, (first, _) = running.store.files, running.runs
    pointer = files.read("_releases/live.json")
    files.write("../climbed.json", files.read(f"_releases/{live(running.store).id}.json"))
    try:
        climbs = {"live": "../../climbed", "history": ["../../climbed"]}
        files.write("_releases/live.json", json.dumps(climbs).encode())
        running.refuses("'../../climbed' cannot name a run", first.digest)
    finally:
        files.write("_releases/live.json", pointer)


@pytest.mark.ray
def test_its_first_lines_name_the_log_that_has_a_line_for_each_request_and_the_store(running):
    until(lambda: "answering on" in running.log.read_text(), 30)  # gateways answer a moment before
    lines = running.log.read_text().splitlines()
    assert lines[0] == "raypipe serve: opening live"
    log = Path(re.fullmatch(r"starting; each request is logged in (.+)", lines[1])[1])
    with running.client() as client:
        assert client.get("/v1/index", headers={"x-request-id": "looked-for"}).is_success
    until(lambda: "looked-for" in log.read_text(), 30)
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    [line] = [x for x in logged if x["request"] == "looked-for"]
    assert (line["event"], line["route"], line["status"]) == ("request", "/v1/index", 200)
    assert re.fullmatch(r"searching /.+: [\d,]+ sources", lines[2])
    filters = r"a key's filter finds nothing: filters\.part: .+"  # of this endpoint's second key
    shown = rf"(starting Ray|loading models) \(\d+ s\)|{filters}"
    starting = [x for x in lines[3:] if re.fullmatch(shown, x)]
    assert lines[len(starting) + 3].startswith(f"answering on {running.url}/v1/answer"), lines


@pytest.mark.ray
def test_a_key_with_a_filter_searches_its_part_alone(running):
    with running.client() as client:
        body = {"query": running.jobs[0].text, "include": ["hits"]}
        whole, part = (
            client.post("/v1/answer", json=body, headers=headers).json()
            for headers in ({}, {"authorization": f"Bearer {PART}"})
        )
    assert whole["hits"] and part["hits"] == []


@pytest.mark.ray
def test_no_key_and_no_question_is_in_any_log(running):
    """Of what happens here; the logs of all tests together are looked at when the endpoint has ended."""
    assert {c.status for c in running.fire(8, 4)} == {200}
    until(lambda: '"route": "/v1/answer"' in running.logs(), 30)
    assert running.secrets() == []


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)
    return yaml.safe_load(CONFIG.read_text())


def test_the_serve_config_has_no_key_that_serve_does_not_know(config):
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(config)
    assert list(unknown(ServeDeploySchema, config)) == []
    typo = {**config, "http_option": {}}
    typo["applications"] = [{**config["applications"][0], "deployments": [{"name": "x", "num_replica": 1}]}]
    assert list(unknown(ServeDeploySchema, typo)) == ["applications.deployments.num_replica", "http_option"]
    assert config["http_options"]["host"] == "127.0.0.1"


def test_the_serve_config_names_the_builder_and_the_deployments_that_it_makes(config, tmp_path, capsys):
    from ray.serve._private.build_app import build_app

    [app] = config["applications"]
    assert app["import_path"] == "serve.app:build" and builder()
    built = build_app(builder()(app["args"]), name="raypipe")
    lacking = f"nothing to search in {tmp_path}/stores/default: `raypipe ingest DIR --format files --store"
    assert lacking in capsys.readouterr().out
    made = {d.name: d for d in built.deployments}
    assert set(made) == {d["name"] for d in app["deployments"]} == {"gateway", "embed", "rerank"}
    assert built.ingress_deployment_name == "gateway"
    for d in app["deployments"]:
        assert made[d["name"]].ray_actor_options["num_cpus"] == d["ray_actor_options"]["num_cpus"]


def test_an_engine_gets_the_gpus_that_the_cluster_file_gives_it_and_the_other_models_the_rest(config):
    from ray.serve._private.build_app import build_app

    app = builder()({"recipe": "db3-task1-700", "cluster": "one-gpu", "store": "/data/store"})
    made = build_app(app, name="raypipe").deployments
    held = {d.name: d.ray_actor_options.get("num_gpus", 0) for d in made}
    assert held == {"gateway": 0, "embed": 0.05, "rerank": 0.05, "generate": 0.8}
    assert sum(held.values()) <= 1, "one GPU holds them all"


@pytest.fixture
def empty(tmp_path):
    """The address of a store with no tables of any recipe."""
    return Store.create(str(tmp_path / "store")).uri


def test_a_model_that_is_missing_is_reported_before_anything_starts(config, capsys, empty):
    assert main(["serve", "crag-baseline", "--store", empty]) == 4
    assert "hf download" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["local", "live"])
def test_a_store_that_is_not_there_is_exit_code_2_before_anything_starts(config, capsys, tmp_path, recipe):
    absent = tmp_path / "absent"
    assert main(["serve", recipe, "--store", str(absent)]) == 2
    assert f"there is no store at {absent}" in capsys.readouterr().err and not absent.exists()


def test_a_port_that_is_none_or_is_taken_is_exit_code_2_before_anything_starts(config, capsys, empty):
    for port in ("99999999", "0", "-1", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["serve", "local", "--store", empty, "--port", port])
        assert "argument --port: " in capsys.readouterr().err
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "local", "--store", empty, "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"--port {port}: cannot listen there" in said and "Choose another port" in said
    assert main(["serve", "local", "--store", empty, "--host", "192.0.2.7", "--auth", "none"]) == 2
    assert "--host 192.0.2.7 --port 8000: cannot listen there" in capsys.readouterr().err


def test_the_builder_refuses_unknown_arguments(config):
    with pytest.raises(ConfError, match="unknown field 'recipee'; did you mean 'recipe'"):
        builder()({"recipee": "local"})
    with pytest.raises(ConfError, match="did you mean 'local'"):
        builder()({"recipe": "locall"})
    assert ServeArgs().recipe == "local"


def test_it_does_not_listen_to_others_without_keys_unless_auth_is_none(config, capsys, tmp_path):
    store = ["--store", str(tmp_path / "store")]
    for host in ("0.0.0.0", "192.0.2.7", "::", "example.org"):
        assert main(["serve", "local", *store, "--host", host]) == 2
        assert "--auth none" in capsys.readouterr().err
    check_host("0.0.0.0", ApiKeys(open=True))
    check_host("0.0.0.0", ApiKeys.of([KEY]))
    for host in ("127.0.0.1", "localhost", "::1"):
        check_host(host, ApiKeys())


def test_keys_come_from_the_environment_and_a_file_and_a_wrong_one_is_not_repeated(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# for the team\n{KEY}\n\nanother-key-of-length\n")
    keys = ServeArgs(keys=str(file)).server_config({"RAYPIPE_KEYS": "a-third-key-of-length, "}).keys
    assert all(keys.accepts(k) for k in (KEY, "another-key-of-length", "a-third-key-of-length"))
    assert not keys.accepts("") and not keys.accepts("# for the team")
    file.write_text("# none\n")
    for endpoint, environ, says in (
        (ServeArgs(keys=str(file)), {}, "expected a key a line"),
        (ServeArgs(keys=str(tmp_path / "absent")), {}, "cannot be read"),
        (ServeArgs(), {"RAYPIPE_KEYS": "s3cr3t"}, "key 1: expected at least 16"),
        (ServeArgs(auth="none"), {"RAYPIPE_KEYS": KEY}, "found both"),
    ):
        with pytest.raises(ConfError, match=says) as e:
            endpoint.server_config(environ)
        assert "s3cr3t" not in str(e.value) and KEY not in str(e.value)


def test_a_deployment_has_the_models_of_its_kind_and_a_limit_of_zero_is_refused(config):
    from ray.serve._private.build_app import build_app

    app = builder()({"recipe": "local", "limits": {"max_ongoing_requests": 4}})
    models = {
        d.name: d.init_args[1] for d in build_app(app, name="raypipe").deployments if d.name != "gateway"
    }
    assert {m.name for m in models["embed"]} == {"all-MiniLM-L6-v2"}
    with pytest.raises(ConfError, match="limits: expected max_ongoing_requests"):
        builder()({"limits": {"max_ongoing_requests": 0}})
