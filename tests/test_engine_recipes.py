"""Recipes with a language model through the real engine: one actor on Ray, stand-in weights, whole runs."""

import asyncio
import io
import json
import shutil
import time
from pathlib import Path

import psutil
import pytest

from raypipe import conf
from raypipe.cli import main
from raypipe.cli.opened import resolved
from raypipe.conf import Conf, Where
from raypipe.evaluate import evaluate
from raypipe.identity import model_identity
from raypipe.pipeline import Pipeline, Sizes
from raypipe.report.progress import Progress
from raypipe.store import Store
from raypipe.work import Place

pytestmark = [pytest.mark.engine, pytest.mark.ray]
ROOT = Path(__file__).parents[1]
CONF = Conf((ROOT / "conf",))
RECIPES = ("db3-task1-700", "crag-baseline")
QUESTIONS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """conf/models.standin.yaml beside stand-ins of its own."""
    folder = tmp_path_factory.mktemp("standins")
    assert main(["models", "standins", str(folder / ".cache/standins")]) == 0
    (folder / "conf").mkdir()
    return shutil.copy(ROOT / "conf/models.standin.yaml", folder / "conf/models.standin.yaml")


@pytest.fixture(scope="module")
def team(local_ray, models):
    """One engine for this module, started as a job starts it, and gone afterwards."""
    from raypipe import cluster

    path = CONF.find("clusters", "laptop")
    file = conf.build(cluster.Cluster, conf.read_yaml(path), Where(str(path)))
    wanted = [m for name in RECIPES for m in resolved(name, str(models), CONF).models()]
    made = cluster.Team.of(file, wanted)
    assert made is not None and len(made.models) == 1, "both recipes name one model"
    made.preflight(cluster.nodes())
    before = cores()
    with made.at_work():
        yield made
    end = time.monotonic() + 30
    while cores() - before and time.monotonic() < end:
        time.sleep(0.2)
    assert not cores() - before, "the engine's process outlived the job"


def cores():
    """Living engine processes: vLLM gives its own a title."""
    found = set()
    for process in psutil.process_iter():
        try:
            if "VLLM::EngineCore" in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store.create(str(tmp_path_factory.mktemp("engine") / "store"))


def run(name, models, team, store, world, out, fresh=False):
    from raypipe import cluster

    def runner(verb, fill, parts):
        return cluster.run_parts(fill, parts, team.engines.answer)

    place = Place(store.uri, "sorted", "cpu", 1, team.names)
    with Progress(io.StringIO(), silent=True) as progress:
        pipeline = Pipeline(store, resolved(name, str(models), CONF), place, Sizes(50, 2), runner, progress)
        return evaluate(pipeline, [world], "crag", QUESTIONS, "official", out, fresh=fresh)


def generated(done):
    return next(s for s in done.report.steps if s.step.startswith("generate"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_every_question_an_answer_and_asks_nothing_twice(
    name, models, team, store, world, tmp_path
):
    first = run(name, models, team, store, world, tmp_path / "one")
    said = [json.loads(line) for line in (tmp_path / "one/predictions.jsonl").read_text().splitlines()]
    assert len(said) == QUESTIONS
    assert all(p["outcome"] == "answered" and p["prediction"] and p["source"] == "web" for p in said)
    assert len({p["prediction"] for p in said}) == QUESTIONS, "each has an answer of its own"
    step = generated(first)
    assert step.asked == QUESTIONS and step.faults == 0
    assert step.prompt_tokens > QUESTIONS * 100 and step.generated_tokens >= QUESTIONS * 50
    second = run(name, models, team, store, world, tmp_path / "two")
    assert second.reused == QUESTIONS and not any(s.asked for s in second.report.steps)
    assert (tmp_path / "two/predictions.jsonl").read_bytes() == (
        tmp_path / "one/predictions.jsonl"
    ).read_bytes()


def test_fresh_asks_the_engine_again_and_greedy_answers_stay(models, team, store, world, tmp_path):
    name = RECIPES[0]
    run(name, models, team, store, world, tmp_path / "one")
    again = run(name, models, team, store, world, tmp_path / "two", fresh=True)
    assert generated(again).asked == QUESTIONS
    assert sum(s.asked for s in again.report.steps) == QUESTIONS, "vectors and scores are remembered"
    assert (tmp_path / "two/predictions.jsonl").read_bytes() == (
        tmp_path / "one/predictions.jsonl"
    ).read_bytes()


def test_all_workers_and_this_process_share_the_one_engine(models, team):
    from raypipe.chat import Message, Sampling
    from raypipe.kit import LocalKit

    [model] = team.models
    assert list(team.names) == [model_identity(model)] and len(team.names[model_identity(model)]) == 1
    generate = LocalKit(None, engines=team.names).generator(model)
    [reply] = asyncio.run(generate([(Message("user", "Who built the bridge?"),)], Sampling(max_tokens=5)))
    assert reply.generated_tokens == 5
