"""What fits where: cluster files on paper, engines beside workers, models in memory, and what is refused."""

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cluster_fits
import numpy as np
import pytest
from checkout import ROOT, SUPPORT
from safetensors.numpy import save_file

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.core import config as conf
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.errors import ClusterTooSmall, ConfError
from raypipe.core.protocols import Model
from raypipe.models.weight_files import GIB, ModelSize, model_size
from raypipe.runs.cluster.capacity import (
    declared_nodes,
    preflight,
    preflight_engines,
    reachable,
    sized,
    without,
    workers,
)
from raypipe.runs.cluster.cluster_file import Cluster, Engines, Machines, Pool
from raypipe.runs.cluster.placement import asked_by, placement, refuse, sharing

CONF = Conf((ROOT / "conf",))
FILES = sorted(p.stem for p in (ROOT / "conf/clusters").glob("*.yaml"))


def file(name, **change):
    path = CONF.find("clusters", name)
    return conf.build(Cluster, {**conf.read_yaml(path), **change}, Where(str(path)))


LLAMA = Model("llama-3-8b", "generator", "vllm", "", "", "/nowhere", "w", "float16", max_model_len=8192)


@pytest.fixture
def model(tmp_path):
    """A generator's folder of 1.5 million parameters, and 4,096 bytes of keys and values for a token."""
    save_file({"a": np.zeros((1000, 1000), np.float16)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.zeros(500_000, np.float16)}, tmp_path / "model-2.safetensors")
    config = (
        '{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512}'
    )
    (tmp_path / "config.json").write_text(config)
    return replace(LLAMA, name="small", path=str(tmp_path))


@pytest.mark.parametrize("name", FILES)
def test_every_cluster_file_fits_the_machines_that_it_is_written_for(name):
    written = file(name)
    nodes = declared_nodes(written)
    made = sized(written, [LLAMA], nodes)
    preflight(made.pools, nodes)
    if made.engines:
        preflight_engines(made.engines, [LLAMA], nodes)
    refuse(made, [], [LLAMA])
    assert {"laptop", "one-gpu", "two-gpus", "eight-gpus", "autoscaling", "autoscaling-gpus"} == set(FILES)


def test_fit_becomes_as_many_as_there_is_room_for_engines_first():
    two = sized(file("two-gpus"), [LLAMA], declared_nodes(file("two-gpus")))
    assert (two.engines.count, two.engines.answer.size) == (2, 4)
    assert (two.pools["parse"].size, two.pools["embed"].size) == (16, 2)
    eight = sized(file("eight-gpus"), [LLAMA], declared_nodes(file("eight-gpus")))
    assert (eight.engines.count, eight.engines.answer.size) == (7, 8)
    halves = sized(file("eight-gpus"), [LLAMA, replace(LLAMA, name="b")], declared_nodes(file("eight-gpus")))
    assert halves.engines.count == 3, "two models share seven GPUs"
    wide = sized(file("eight-gpus"), [replace(LLAMA, tensor_parallel=4)], declared_nodes(file("eight-gpus")))
    assert wide.engines.count == 1, "a group of four GPUs, and workers on a fifth"
    alone = Engines(answer=Pool("fit", 1), cpus=1, replicas="fit")
    many = sized(file("laptop", engines=None), [LLAMA], [{"CPU": 2.0}])
    assert many.engines is None
    some = sized(replace(file("laptop"), engines=alone), [LLAMA], [{"CPU": 4.0}, {"CPU": 2.0}])
    assert (some.engines.count, some.engines.answer.size) == (5, 1)


def test_questions_are_cut_so_that_engines_stay_full_and_no_worker_is_idle():
    cut = sized(file("eight-gpus"), [LLAMA], declared_nodes(file("eight-gpus")))
    with_engines, without_any = (workers(cut, "answer", engines) for engines in (True, False))
    assert with_engines.count == 8 and with_engines.min_rows == 112, "7 engines x 128 chats / 8 workers"
    assert [with_engines.per_task(n, 50) for n in (8, 100, 2706)] == [1, 13, 50]
    assert [without_any.per_task(n, 50) for n in (8, 100, 2706)] == [1, 10, 50]
    assert workers(cut, "embed", engines=True).per_task(8 * 1000, 2000) == 250
    laptop = file("laptop")
    assert workers(laptop, "answer", engines=True).per_task(100, 10) == 10, "one worker keeps its engine full"
    assert workers(laptop, "answer", engines=False).per_task(10, 10) == 2


def test_what_nobody_fitted_has_no_number():
    with pytest.raises(ValueError, match="as many actors as fit"):
        _ = Pool("fit", 1).size
    with pytest.raises(ValueError, match="as many engines as fit"):
        _ = Engines(answer=Pool(1, 1), replicas="fit").count


def test_where_nothing_fits_one_is_asked_for_and_refused_with_numbers():
    made = sized(file("two-gpus"), [LLAMA], [{"CPU": 4.0}])
    with pytest.raises(ClusterTooSmall, match=r"pool embed: 1 actors x 1 GPU = 1 GPU, the cluster has 0"):
        preflight(made.pools, [{"CPU": 4.0}])


def test_a_cluster_that_grows_is_held_to_what_it_may_become():
    growing, fixed = file("autoscaling"), file("laptop")
    assert reachable(growing, [{"CPU": 0.0}]) == declared_nodes(growing)
    assert reachable(fixed, [{"CPU": 1.0}]) == [{"CPU": 1.0}]


def test_an_engine_takes_its_place_from_the_roomiest_node():
    nodes = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}]
    assert without(nodes, {"CPU": 1.0, "GPU": 1.0}) == [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 7.0, "GPU": 1.0}]
    assert without(nodes, {"CPU": 1.0, "GPU": 3.0}) == nodes


def test_engines_of_four_gpus_are_not_spread_over_two_machines_of_two():
    engines = Engines(answer=Pool(1, 1), cpus=1, gpus=1)
    wide = replace(LLAMA, tensor_parallel=4)
    preflight_engines(engines, [wide], [{"CPU": 8.0, "GPU": 4.0}])
    with pytest.raises(ClusterTooSmall, match="an engine needs 1 CPU and 4 GPU on one node"):
        preflight_engines(engines, [wide], [{"CPU": 8.0, "GPU": 2.0}] * 2)


def test_the_size_of_a_model_is_read_from_its_files(model):
    assert model_size(model) == ModelSize(1_500_000, 3_000_000, 2 * 4 * 4 * 64 * 2)
    assert model_size(replace(model, dtype="float32")).bytes == 6_000_000
    assert model_size(replace(model, path="/nowhere")) is None
    assert model_size(replace(model, kind="embedder", loader="flagembedding")).per_token == 0
    (Path(model.path) / "model-2.safetensors").write_bytes(b"cut")
    with pytest.raises(ConfError, match="cannot be read"):
        model_size(model)


def test_a_model_that_does_not_fit_a_gpu_is_refused_with_the_arithmetic(model):
    tiny = replace(file("one-gpu"), machines=(Machines(1, 8, 1, gpu_gib=2.0),))
    with pytest.raises(ClusterTooSmall) as refused:
        refuse(tiny, [], [model])
    said = "weights 0.00 + graphs and activations 2.00 + one context of 8192 0.03 = 2.03 of 1.50 GiB"
    assert said in str(refused.value) and "tensor_parallel" in str(refused.value)
    refuse(replace(tiny, machines=(Machines(1, 8, 1, gpu_gib=16.0),)), [], [model])


def test_a_context_that_does_not_fit_the_cache_of_a_cpu_is_refused_with_the_arithmetic(model):
    laptop = file("laptop")
    refuse(laptop, [], [model])
    with pytest.raises(ClusterTooSmall, match=r"65536 tokens x 8192 bytes .* = 0.50 GiB, .* is 0.25"):
        small = replace(laptop, engines=replace(laptop.engines, kv_cache_gib=0.25))
        refuse(small, [], [replace(model, max_model_len=65536, dtype="float32")])


def test_embedders_that_share_a_gpu_are_counted_once_for_each_actor():
    encoder = load_recipe("local", None, CONF).embedders()[0]
    shared = replace(
        file("one-gpu"), engines=None, pools={**file("one-gpu").pools, "answer": Pool(4, 1, 0.25)}
    )
    *_, answers = placement(shared, [encoder], [encoder])
    assert answers.device == "0.25 GPU, 4 on one"
    assert answers.required_gib == pytest.approx(4 * (model_size(encoder).bytes / GIB + 1.5))


def test_workers_beside_an_engine_share_what_it_leaves_of_the_gpu(model):
    encoder = load_recipe("local", None, CONF).embedders()[0]
    *_, engine, answers = placement(file("one-gpu"), [encoder], [encoder, model])
    assert (engine.device, engine.available_gib) == ("0.8 GPU", 60.0)
    assert (answers.device, answers.available_gib) == ("0.1 GPU, 2 on one", 20.0)
    eight = sized(file("eight-gpus"), [model], declared_nodes(file("eight-gpus")))
    *_, engine, answers = placement(eight, [encoder], [encoder, model])
    assert (engine.actors, answers.device, answers.available_gib) == (7, "0.125 GPU, 8 on one", 80.0)


@pytest.fixture(scope="module")
def recipes():
    return dict(cluster_fits.recipes())


def test_the_page_says_of_every_recipe_and_cluster_file_what_fits(recipes):
    """By the published sizes of all models, whether or not their files are here."""
    assert cluster_fits.PAGE.read_text().partition(cluster_fits.MARK)[2].lstrip() == cluster_fits.table()
    sizes = {m.name: model_size(m) for r in recipes.values() for m in r.models()}
    lacking = {m.name for r in recipes.values() for m in r.models() if sizes[m.name] is None}
    kinds = {m.kind for r in recipes.values() for m in r.models() if m.name in lacking - {"optional-llm"}}
    assert kinds == {"tokenizer"}, "every model with weights has a size"


@pytest.mark.parametrize("name", ["onewo-submitted", "onewo-llm"])
@pytest.mark.parametrize("where", ["two-gpus", "eight-gpus", "autoscaling-gpus"])
def test_eight_embedders_of_which_two_have_7_billion_parameters_run_next_to_language_models(
    recipes, name, where
):
    """Fewer workers share a GPU than the file says, and an engine next to one takes less memory."""
    written, recipe = file(where), recipes[name]
    sized, placed = cluster_fits.fit(recipe, written)
    held = sum(model_size(m).bytes / GIB for m in recipe.models() if m.kind == "embedder")
    answers = placed[-1]
    together = {"two-gpus": 1, "eight-gpus": 2, "autoscaling-gpus": 1}[where]
    assert answers.required_gib == pytest.approx(together * (held + 1.5))
    assert answers.required_gib < answers.available_gib
    assert held > 31 and answers.actors == {"two-gpus": 2, "eight-gpus": 2, "autoscaling-gpus": 8}[where]
    share = 0.9 if where == "eight-gpus" else 0.58
    assert sized.engines.gpu_memory_utilization == pytest.approx(share, abs=0.01)
    assert sharing(sharing(written, asked_by(recipe)), asked_by(recipe)) == sharing(
        written, asked_by(recipe)
    ), "a file that was changed once is not changed again"


def test_workers_that_still_do_not_fit_are_refused_with_what_helps(recipes):
    def on(gib):
        return replace(file("two-gpus"), machines=(Machines(1, 16, 2, gpu_gib=gib),))

    with pytest.raises(ClusterTooSmall, match=r"engines qwen.* of 6.80 GiB. Take .*whole GPUs for engines"):
        cluster_fits.fit(recipes["onewo-submitted"], on(40.0))
    with pytest.raises(ClusterTooSmall, match=r"embed .* of 24.00 GiB. Take .*fewer or smaller embedders"):
        cluster_fits.fit(recipes["onewo-submitted"], on(24.0))
    with pytest.raises(ConfError, match="float16 is not computed on a CPU"):
        cluster_fits.fit(recipes["onewo-submitted"], file("laptop"))


def test_mistakes_in_a_cluster_file_are_named():
    for change, said in (
        ({"machines": []}, "expected the machines"),
        ({"machines": [{"nodes": 1, "cpus": 2, "gpus": 1}]}, "expected both gpus and gpu_gib"),
        ({"pools": {"parse": {"actors": "fti", "cpus": 1}}}, "pools.parse.actors"),
        ({"grow": True}, "did you mean 'grows'"),
    ):
        with pytest.raises(ConfError, match=said):
            file("laptop", **change)


@pytest.mark.slow
def test_too_small_a_machine_is_refused_in_seconds_and_no_ray_is_started(world, tmp_path):
    """Exit code 5 names the pool, what it needs and what there is; within ten seconds."""
    if Path("/proc/driver/nvidia/gpus").is_dir():
        pytest.skip("this machine has GPUs")
    command = [sys.executable, "-m", "raypipe", "eval", "tests/support/fakes.yaml", "--data", str(world)]
    command += ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--cluster", "eight-gpus"]
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert re.search(r"pool embed: 1 actors x \d (CPU|GPU) = \d (CPU|GPU), the cluster has \d", done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # On the clock a quiet machine takes 3 s; in the middle of other tests only its own work counts.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_plan_says_where_each_pool_runs_and_what_is_planned_for_too_small_machines_is_refused(
    world, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path))
    words = ["plan", str(SUPPORT / "fakes.yaml"), "--data", str(world), "--store", str(tmp_path / "store")]
    assert main([*words, "--cluster", "two-gpus", "--json"]) == 0
    placed = json.loads(capsys.readouterr().out)["placement"]
    assert [(p["name"], p["actors"], p["device"]) for p in placed["pools"]] == [
        ("pool parse", 16, "cpu"),
        ("pool embed", 2, "1 GPU"),
        ("pool answer", 2, "1 GPU"),
    ]
    assert placed["pools"][1]["memory"] == [{"item": "room to compute", "gib": 1.5}]
    assert main([*words, "--cluster", "laptop"]) == 0
    assert "pool embed: 2 x 1 CPU" in capsys.readouterr().out
    small = tmp_path / "small.yaml"
    text = CONF.find("clusters", "laptop").read_text()
    small.write_text(text.replace("embed:  {actors: 2, cpus: 1}", "embed:  {actors: 2, cpus: 3}"))
    assert main([*words, "--cluster", str(small)]) == 5
    assert "pool embed: 2 actors x 3 CPU = 6 CPU, the cluster has 2" in capsys.readouterr().err
