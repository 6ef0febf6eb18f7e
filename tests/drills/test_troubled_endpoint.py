"""A run whose language model is behind an address in trouble: nothing is answered with nothing, every row is
counted with its reason, and once the trouble is over the next run answers all of them."""

import contextlib
import io
import json
import time

import pytest
import yaml
from chat_server import serving
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.hosts import EndpointAddress
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store

pytestmark = pytest.mark.slow
DRILL = pytest.mark.drill  # every reason: tests/models/test_openai.py

CONF = Conf((ROOT / "conf",))
SAID = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Velora"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 2},
}


class Mood:
    """What the endpoint does with the next request; with `but` it replies to chats of that text alone."""

    def __init__(self):
        self.status, self.kind, self.body, self.wait_s = 200, "application/json", json.dumps(SAID), 0.0
        self.but = ""

    def is_(self, status=200, kind="application/json", body=None, wait_s=0.0):
        self.status, self.kind, self.wait_s = status, kind, wait_s
        self.body = json.dumps(SAID) if body is None else body


@pytest.fixture
def endpoint():
    mood = Mood()

    def asked(request, body):
        time.sleep(mood.wait_s)
        with contextlib.suppress(OSError):  # whoever asked may have stopped waiting
            if mood.but == body["messages"][-1]["content"]:
                return request.reply("yes")
            request.send(mood.body, mood.status, {"Content-Type": mood.kind})

    with serving(asked) as server:
        yield server.url, mood


@pytest.fixture
def recipe(tmp_path):
    tree = yaml.safe_load((SUPPORT / "fake_models.yaml").read_text())
    remote = {
        "kind": "generator",
        "loader": "openai",
        "endpoint": "here",
        "model": "m",
        "max_model_len": 8192,
    }
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({**tree, "llama-3-8b": remote}))
    return load_recipe("crag-baseline", str(tmp_path / "models.yaml"), CONF)


def run(recipe, store, url, world, out):
    at = {"here": EndpointAddress(url, timeout_s=0.5, tries=1)}
    with Progress(io.StringIO(), silent=True) as progress:
        place = WorkerConfig(store.uri, "transformers", "cpu", 1, endpoints=at)
        pipeline = Pipeline(store, recipe, place, TaskSizes(50, 6), inline, progress)
        report = evaluate(pipeline, [world], out, EvalOptions("crag", rule="official")).record
    return report, [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        pytest.param(
            {"kind": "text/html", "body": "<html><body>Sign in</body></html>"},
            "not_the_protocol",
            marks=DRILL,
        ),
        pytest.param({"body": "{}"}, "not_the_protocol", marks=DRILL),
        pytest.param({"status": 429, "body": "slow down"}, "overloaded", marks=DRILL),
        pytest.param({"status": 503, "body": "starting"}, "unavailable", marks=DRILL),
        pytest.param({"status": 401, "body": "who are you?"}, "unauthorised", marks=DRILL),
        pytest.param({"status": 400, "body": "unknown field max_tokens"}, "refused", marks=DRILL),
        pytest.param({"wait_s": 1.0}, "timeout", marks=DRILL),
        ("down", "unreachable"),
    ],
    ids=str,
)
def test_trouble_leaves_rows_to_do_with_its_reason_and_the_next_run_does_them(
    endpoint, recipe, world, tmp_path, trouble, reason
):
    url, mood = endpoint
    store = Store.create(str(tmp_path / "store"))
    if trouble != "down":
        mood.is_(**trouble)
    there = "http://127.0.0.1:9/v1" if trouble == "down" else url
    first, lines = run(recipe, store, there, world, tmp_path / "one")
    assert [(f.reason, f.transient, f.rows) for f in first.faults] == [(reason, True, 6)]
    assert {line["prediction"] for line in lines} == {None}
    assert first.score.n_unscored == 6
    mood.is_()
    second, lines = run(recipe, store, url, world, tmp_path / "two")
    assert {line["prediction"] for line in lines} == {"Velora"} and not second.faults


def test_chats_that_an_endpoint_refuses_which_takes_another_are_faults_for_good(
    endpoint, recipe, world, tmp_path
):
    url, mood = endpoint
    mood.is_(400, body="too many tokens")
    mood.but = "ready"
    store = Store.create(str(tmp_path / "store"))
    first, lines = run(recipe, store, url, world, tmp_path / "one")
    assert [(f.reason, f.transient, f.rows) for f in first.faults] == [("refused", False, 6)]
    assert {(line["prediction"], line["outcome"]) for line in lines} == {(None, "fault")}
