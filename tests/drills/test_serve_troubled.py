"""The endpoint on a real Ray Serve, over HTTP, while the language model that it asks is in trouble, the
client goes, or time is over. The model is a server of this process, which sees who asks and when they stop.
"""

import json
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import psutil
import pytest
import yaml
from chat_server import ChatServer
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.serving.access import ApiKeys, RequestLimits, ServerConfig

pytestmark = [
    pytest.mark.drill,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),  # Ray's own classes
]
CONF = Conf((ROOT / "conf",))
STAGE = "generate:web"
DEADLINE_S = 60.0  # of a request that says nothing: longer than a replica takes to come back
PAGE = {"page_result": "<p>Ada Lovelace wrote the first program.</p>", "page_url": "https://a.example/"}


class Upstream:
    """A chat endpoint that answers, keeps silent, or kills its client, as the question says."""

    def __init__(self):
        self.waiting = threading.Semaphore(0)  # released by each question that is kept waiting
        self.left = threading.Semaphore(0)  # by each of these whose client disconnected
        self.ending = threading.Event()
        self.killed = []
        self._server = ChatServer(self._answer)
        self.port, self.paths = self._server.server_port, self._server.paths

    def _answer(self, request, body):
        text = json.dumps(body)
        if "silence" in text:
            self.waiting.release()
            self.keep_waiting(request.connection)
        elif "poison" in text:
            self.kill(request.client_address[1])
        else:
            request.reply("Ada Lovelace")

    def keep_waiting(self, connection):
        """Says nothing until the client closes the connection."""
        while not self.ending.is_set():
            readable, _, _ = select.select([connection], [], [], 0.1)
            if readable and connection.recv(1, socket.MSG_PEEK) == b"":
                self.left.release()
                return

    def kill(self, port):
        """SIGKILL to the process that has this port."""
        for found in psutil.net_connections("tcp"):
            if found.laddr.port == port and found.raddr and found.raddr.port == self.port:
                self.killed.append(found.pid)
                psutil.Process(found.pid).kill()

    @contextmanager
    def away(self):
        """Nobody listens; afterwards it answers again where it did."""
        self._server.end()
        try:
            yield
        finally:
            self._server = ChatServer(self._answer, self.port)

    def end(self):
        self.ending.set()
        self._server.end()


@pytest.fixture(scope="module")
def upstream():
    made = Upstream()
    yield made
    made.end()


@pytest.fixture(scope="module")
def url(serve_port, upstream, tmp_path_factory):
    """An endpoint over no store: its requests bring their pages."""
    from raypipe.serving.ray import app as ray

    folder = tmp_path_factory.mktemp("troubled")
    tree = yaml.safe_load((SUPPORT / "fake_models.yaml").read_text())
    tree["llama-3-8b"] = {
        "kind": "generator",
        "loader": "openai",
        "endpoint": "here",
        "model": "m",
        "max_model_len": 8192,
    }
    (folder / "models.yaml").write_text(yaml.safe_dump(tree))
    recipe = load_recipe("crag-baseline", str(folder / "models.yaml"), CONF)
    at = {"here": EndpointAddress(f"http://127.0.0.1:{upstream.port}/v1", timeout_s=300, tries=1)}
    kit = partial(LocalKit, None, "transformers", "cpu", 1, endpoints=at)
    config = ServerConfig(ApiKeys(open=True), RequestLimits(deadline_s=DEADLINE_S))
    made = ray.build_application(recipe, str(folder / "none"), kit, 0, config)
    ray.start(made, "127.0.0.1", serve_port)
    yield f"http://127.0.0.1:{serve_port}"
    ray.stop()


def ask(url, query, **more):
    body = {"query": query, "documents": [PAGE], **more}
    return httpx.post(f"{url}/v1/answer", json=body, timeout=120)


def answered(url):
    said = ask(url, "who wrote the first program?").json()
    return (said["answer"], said["outcome"], said["degraded"]) == ("Ada Lovelace", "answered", [])


def test_a_question_is_answered_and_no_url_in_it_or_its_page_is_fetched(url, upstream):
    here = f"http://127.0.0.1:{upstream.port}"
    html = f'<p>Ada wrote it.</p><img src="{here}/image"><script src="{here}/script"></script>'
    html += f'<link rel="stylesheet" href="{here}/style"><iframe src="{here}/frame"></iframe>'
    page = {"page_result": html, "page_url": f"{here}/page", "page_snippet": f"see {here}/snippet"}
    said = ask(url, f"who wrote {here}/question ?", documents=[page]).json()
    assert (said["answer"], said["outcome"], said["degraded"]) == ("Ada Lovelace", "answered", [])
    assert set(upstream.paths) == {"/v1/chat/completions"}


def test_without_its_tables_it_is_alive_and_not_ready(url):
    assert httpx.get(f"{url}/healthz").status_code == 200
    for reply in (httpx.get(f"{url}/readyz"), httpx.post(f"{url}/v1/answer", json={"query": "who?"})):
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize("streams", [False, True])
def test_a_disconnected_client_cancels_the_work_down_to_the_model(url, upstream, streams):
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"query": "who keeps silence?", "documents": [PAGE], "stream": streams}).encode()
    head = f"POST /v1/answer HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert upstream.waiting.acquire(timeout=60), "the model was never called"
    assert upstream.left.acquire(timeout=60), "the model computes for no caller"
    assert answered(url)


def test_a_deadline_that_passes_is_i_dont_know_in_time_and_names_the_stage(url, upstream):
    start = time.monotonic()
    said = ask(url, "who keeps silence?", deadline_s=3.0).json()
    assert time.monotonic() - start < 30, "the model would have never answered"
    assert (said["answer"], said["outcome"]) == ("i don't know", "abstained")
    assert said["degraded"] == [STAGE]
    assert upstream.waiting.acquire(timeout=60) and upstream.left.acquire(timeout=60)


def test_a_question_that_kills_its_replica_kills_at_most_three_and_the_others_are_answered(url, upstream):
    with ThreadPoolExecutor(1) as thread:
        poison = thread.submit(ask, url, "who drank the poison?")
        replies = []
        while not poison.done():
            replies.append(ask(url, "who wrote the first program?"))
    said = poison.result().json()
    assert (said["outcome"], said["degraded"]) == ("abstained", [STAGE])
    assert 0 < len(set(upstream.killed)) <= 3
    assert {r.status_code for r in replies} == {200}
    assert answered(url)


def test_with_its_model_unavailable_the_answer_says_what_is_missing(url, upstream):
    with upstream.away():
        reply = ask(url, "who wrote the first program?")
    said = reply.json()
    assert reply.status_code == 200
    assert (said["answer"], said["outcome"], said["degraded"]) == ("i don't know", "abstained", [STAGE])
    assert answered(url)
