"""Two servers that call what they serve by one name are two models, in every digest and in the kit."""

import io
import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
import yaml
from chat_server import serving
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store

CONF = Conf((ROOT / "conf",))
RECIPE = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - generate: {model: draft, prompt: crag/vanilla, into: draft, max_tokens: 9}
  - generate: {model: writer, prompt: crag/vanilla, into: final, max_tokens: 9}
  - decide: {prefer: [final, draft]}
"""


@pytest.fixture
def servers():
    """Name -> (address, requests so far), of two endpoints that serve a model called `default`."""
    asked = Counter()

    def named(name):
        def reply(request, body):
            asked[name] += 1
            request.reply(f"i am {name} for {body['model']}")

        return reply

    with ExitStack() as stack:
        urls = {n: stack.enter_context(serving(named(n))).url for n in ("small", "big")}
        yield {n: EndpointAddress(url) for n, url in urls.items()}, asked


def recipe(folder, draft="small", writer="big", **more):
    """The recipe whose two steps ask the models behind these endpoints."""
    remote = {"kind": "generator", "loader": "openai", "model": "default", "max_model_len": 999, **more}
    entries = {"draft": {**remote, "endpoint": draft}, "writer": {**remote, "endpoint": writer}}
    (folder / "models.yaml").write_text(yaml.safe_dump(entries))
    (folder / "made.yaml").write_text(RECIPE)
    return load_recipe(str(folder / "made.yaml"), str(folder / "models.yaml"), CONF)


@pytest.mark.drill
@pytest.mark.slow
def test_each_server_gets_its_own_requests_and_exchanging_them_asks_both_again(world, tmp_path, servers):
    endpoints, asked = servers
    store = Store.create(str(tmp_path / "store"))

    def answers(made):
        asked.clear()
        with Progress(io.StringIO(), silent=True) as progress:
            place = WorkerConfig(store.uri, "transformers", "cpu", 1, endpoints=endpoints)
            pipe = Pipeline(store, made, place, TaskSizes(50, 6), inline, progress)
            evaluate(pipe, [world], tmp_path / "out", EvalOptions("crag", rule="official"))
        lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
        return {json.loads(line)["prediction"] for line in lines}, dict(asked)

    first = recipe(tmp_path)
    assert answers(first) == ({"i am big for default"}, {"small": 6, "big": 6})
    exchanged = recipe(tmp_path, draft="big", writer="small")
    assert exchanged.digest() != first.digest()
    assert answers(exchanged) == ({"i am small for default"}, {})
    assert answers(recipe(tmp_path, dialect="vllm"))[1] == {"small": 6, "big": 6}, "it decides what is sent"
    assert answers(first) == ({"i am big for default"}, {})


def test_a_kit_opens_one_client_for_each_endpoint_and_dialect(tmp_path):
    models = {
        m.weights: m for dialect in ("openai", "vllm") for m in recipe(tmp_path, dialect=dialect).models()
    }
    assert sorted(models) == sorted(
        f"openai:{d}@{e}:default" for d in ("openai", "vllm") for e in ("small", "big")
    )
    assert len(set(map(model_identity, models.values()))) == 4
    kit = LocalKit(
        None, endpoints={n: EndpointAddress(f"http://{n}.example.org/v1") for n in ("small", "big")}
    )
    assert len({kit.generator(m) for m in models.values()}) == 4
    clients = [close.__self__ for close in kit._closing_models.values()]
    assert {(c._at.url, c._model.dialect) for c in clients} == {
        (f"http://{n}.example.org/v1", d) for n in ("small", "big") for d in ("openai", "vllm")
    }
    one = next(iter(models.values()))
    assert kit.generator(replace(one, name="again")) is kit.generator(one), "one model under two names is one"
