"""The flip rate: an eval asks some chats of an engine twice, once for each machine and model."""

import asyncio
import functools
import io
import json
import sys
from pathlib import Path

import pytest
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.llm import Generated
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.hosts import EngineLimits
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store

QUESTIONS = 6


class Batched:
    """An engine whose replies to texts of an odd length end otherwise where nothing else is in it."""

    def __init__(self, log):
        self._log, self._flying = Path(log), 0

    async def ready(self):
        pass

    async def generate(self, chats, sampling, adapter, alone):
        self._flying += len(chats)
        await asyncio.sleep(0.2)
        batch = self._flying
        await asyncio.sleep(0.1)
        self._flying -= len(chats)
        with self._log.open("a") as log:
            log.write(f"{batch}\n" * len(chats))
        return [Generated(self._reply(chat[-1].content, batch), "stop", 9, 0, 3) for chat in chats]

    def _reply(self, text, batch):
        return f"It is {len(text)}{'.' if batch == 1 and len(text) % 2 else ''}"

    def close(self):
        pass


@pytest.fixture
def run(local_ray, tmp_path):
    """A function: evals of a recipe with such an engine, each on a store of its own."""
    from raypipe.models import engine_actors

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors have no tests to import
    folder = tmp_path / "own-chat"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    recipe = load_recipe("vanilla", None, Conf((ROOT / "conf",)), llm=str(folder))
    [model] = [m for m in recipe.models() if m.kind == "generator"]
    client = engine_actors.start_actor("flips", functools.partial(Batched, str(tmp_path / "log")), {})
    write(tmp_path / "world", QUESTIONS, pages=2, seed=7, page_chars=1500)

    def go(name, measured=(), **limits):
        store = Store.create(str(tmp_path / name))
        worker = WorkerConfig(
            store.uri,
            "transformers",
            "cpu",
            1,
            {model_identity(model): ("flips",)},
            engine_limits=EngineLimits(**limits),
        )
        silent = Progress(io.StringIO(), silent=True)
        pipe = Pipeline(store, recipe, worker, TaskSizes(100, QUESTIONS), inline, silent)
        (tmp_path / "log").write_text("")
        plans = []
        options = EvalOptions("crag", rule="words", on_plan=plans.append)
        done = evaluate(pipe, [tmp_path / "world"], tmp_path / f"{name}-out", options, measured=measured)
        return done, [int(n) for n in (tmp_path / "log").read_text().split()], plans[0].twice

    yield go
    client.close()


@pytest.mark.drill
@pytest.mark.ray
def test_an_eval_says_how_often_replies_differ_alone_and_asks_once_for_a_machine_and_model(run):
    first, calls, twice = run("first")
    assert min(calls[:QUESTIONS]) > 1 and calls[QUESTIONS:] == [1] * QUESTIONS, "together, then each alone"
    rate = first.record.flips
    assert rate.asked == QUESTIONS and 0 < rate.differ < QUESTIONS
    assert twice == QUESTIONS
    [step] = [s for s in first.record.steps if s.step == "generate:llm"]
    assert step.computed == QUESTIONS == step.planned, "the step's own chats are counted apart"
    again, calls, twice = run("second", measured=[first.record])
    assert len(calls) == QUESTIONS and again.record.flips == rate and twice == 0
    invariant, calls, _ = run("third", batch_invariant=True)
    assert len(calls) == QUESTIONS and invariant.record.flips is None
