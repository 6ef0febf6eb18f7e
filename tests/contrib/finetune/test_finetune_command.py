"""`finetune`: its plan, its rows, and what it refuses before anything runs."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import pytest
import yaml
from checkout import ROOT
from rich.console import Console
from tuned import examples

from raypipe.contrib.finetune.label_files import write_labels
from raypipe.contrib.finetune.tables import print_finetune
from raypipe.core.errors import ClusterTooSmall, ConfError, DataError, ModelMissing

pytestmark = pytest.mark.slow  # transformers


def labels_of(count, **fields):
    return [replace(x, **fields) for x in examples(count)]


@pytest.fixture(scope="module")
def place(tmp_path_factory, trainable):
    """A folder with labels, a models file and a cluster file whose GPU is too small."""
    folder = tmp_path_factory.mktemp("finetune")
    write_labels(folder / "labels", labels_of(48), "r" * 32, "d" * 32)
    entry = {"kind": "generator", "loader": "vllm", "path": str(trainable), "max_model_len": 512}
    models = {"tiny": entry, "half": {**entry, "dtype": "float16"}, "short": {**entry, "max_model_len": 24}}
    (folder / "models.yaml").write_text(yaml.safe_dump(models))
    gpu = yaml.safe_load((ROOT / "conf/clusters/one-gpu.yaml").read_text())
    gpu["machines"][0]["gpu_gib"] = 0.5
    (folder / "gpu.yaml").write_text(yaml.safe_dump(gpu))
    return folder


@pytest.fixture(scope="module")
def session(place):
    from raypipe.api.session import Session

    return Session(models=str(place / "models.yaml"))


def planned(place, session, base="tiny", labels=None, **more):
    from raypipe.contrib.finetune.finetune import plan_finetune

    return plan_finetune(
        more.pop("preset", "tiny"), labels or place / "labels", base, place / "store", session=session, **more
    )


@pytest.mark.drill
def test_a_plan_says_steps_tokens_memory_and_time_and_starts_nothing(place, session):
    plan = planned(place, session).to_dict()
    assert not (place / "store").exists()
    e = plan["estimate"]
    assert (e["rows"], e["held_out"], e["left_out"], e["steps"]) == (36, 12, 0, 24)
    assert e["epochs"] == pytest.approx(24 * 8 / 36) and e["looks"] == 4
    assert 0 < e["trained"] < e["tokens"]
    assert e["adapted_layers"] == 4 * 6
    per_layer = 8 * (192 + 192 + 2 * (192 + 64) + 3 * (192 + 512))
    assert e["adapter_parameters"] == 4 * per_layer
    m = e["memory"]
    assert m["total"] == pytest.approx(m["weights"] + m["adapter"] + m["activations"] + m["logits"])
    assert m["weights"] == pytest.approx(e["parameters"] * 4 / 2**30)
    assert e["seconds"][0] < e["seconds"][1]
    assert plan["four_bit"] == {"on": False, "because": "the preset says so"}


def test_rows_are_shown_with_what_is_trained_marked(place, session):
    from raypipe.contrib.finetune.finetune import show_rows

    rows = show_rows("tiny", place / "labels", "tiny", 2, session=session)
    assert len(rows) == 2 and all(r.count("⟦") == 1 and r.endswith("<|end|>⟧") for r in rows)


def test_an_adapter_keeps_the_questions_that_it_was_trained_on_or_stopped_by(place, session, tmp_path):
    from raypipe.contrib.finetune.finetune_inputs import read_inputs

    assert read_inputs(session, "tiny", place / "labels", "tiny", None, ()).seen == ""
    labels = labels_of(48)
    write_labels(
        tmp_path, labels, "r" * 32, "d" * 32, questions={x.question_id: x.question_id for x in labels}
    )
    found = read_inputs(session, "tiny", tmp_path, "tiny", None, ())
    most = max(len(r.ids) for r in (*found.rows, *found.held_out))
    sets = (f"max_seq_len={most - 1}", "too_long=leave_out")
    fewer = read_inputs(session, "tiny", tmp_path, "tiny", None, sets)
    used = {r.id for r in (*fewer.rows, *fewer.held_out)}
    assert set(fewer.seen.split()) == used < set(found.seen.split())


@pytest.mark.parametrize(
    "more, error, says",
    [
        ({"base": "nothing"}, ConfError, "no model named 'nothing'"),
        ({"base": "half"}, ConfError, "float16, which is not trained on a CPU"),
        ({"base": "short"}, ConfError, r"serves 24 \(max_model_len\)"),
        ({"base": "scripted"}, ConfError, "expected a model of loader vllm"),
        ({"base": "llama-3-8b"}, ModelMissing, "hf download meta-llama"),
        ({"preset": "db4"}, ConfError, "no 'db4' under finetune/"),
        ({"workers": 3}, ConfError, "a divisor of the 8 rows of a step"),
        ({"sets": ("r=600",)}, ConfError, "r: expected 1 to 512, which vLLM serves at most, found 600"),
        ({"sets": ("max_seq_len=16",)}, DataError, "48 of 48 labels are longer than max_seq_len 16"),
        ({"sets": ("four_bit=true",)}, ConfError, "four_bit: true"),
        ({"sets": ("stepz=3",)}, ConfError, "did you mean 'steps'"),
        ({"sets": ("target_modules=[q_proj, qkv_proj]",)}, ConfError, "no qkv_proj; its linear layers are"),
        ({"sets": ("target_modules=[embed_tokens]",)}, ConfError, "no embed_tokens"),
        ({"name": "../web"}, ConfError, "--name '../web': expected letters"),
        ({"out": __file__}, ConfError, "--out: .* is a file"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_runs(place, session, more, error, says):
    with pytest.raises(error, match=says):
        planned(place, session, **more)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"label": "i don't know"}, "all 36 labels .*would learn to say it"),
        ({"split": "held-out"}, "split train"),
    ],
)
def test_labels_that_teach_one_thing_or_nothing_are_refused(place, session, tmp_path, fields, says):
    write_labels(tmp_path, labels_of(48, **fields), "r" * 32, "d" * 32)
    with pytest.raises(DataError, match=says):
        planned(place, session, labels=tmp_path)


def test_a_folder_without_labels_is_refused(place, session, tmp_path):
    with pytest.raises(DataError, match=r"labels\.json"):
        planned(place, session, labels=tmp_path)


@pytest.mark.parametrize(
    "file, text, says",
    [
        ("chat_template.jinja", None, "no chat template"),
        ("tokenizer.json", "{}", "the tokenizer in .* cannot be read"),
        ("generation_config.json", "{", "generation_config.json: not valid JSON"),
        ("config.json", '{"hidden_size": 8, "eos_token_id": 2}', "numbers as num_hidden_layers, vocab_size"),
    ],
)
def test_a_base_whose_files_are_odd_is_refused(place, tmp_path, trainable, file, text, says):
    from raypipe.api.session import Session

    shutil.copytree(trainable, tmp_path / "odd")
    (tmp_path / "odd" / file).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / "odd" / file).write_text(text)
    entry = {"kind": "generator", "loader": "vllm", "path": "odd", "max_model_len": 512}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"odd": entry}))
    with pytest.raises(ConfError, match=says):
        planned(place, Session(models=str(tmp_path / "models.yaml")), base="odd")


def test_a_models_file_of_a_person_is_not_written_again(place, session):
    with pytest.raises(ConfError, match=r"models\.yaml was not made by `raypipe finetune`"):
        planned(place, session, out=place)


def test_a_gpu_that_is_too_small_is_refused_with_the_arithmetic(place, session):
    import dataclasses

    small = dataclasses.replace(session, cluster=str(place / "gpu.yaml"))
    with pytest.raises(ClusterTooSmall, match=r"a worker needs .* GiB .*a GPU of the cluster file has 0\.5"):
        planned(place, small)


def test_an_entry_keeps_what_the_base_says_and_gets_one_adapter_after_another(session, tmp_path):
    from raypipe.contrib.finetune.finetune import entry_with, write_entry
    from raypipe.core import config
    from raypipe.core.config import Where
    from raypipe.models.entry import ModelEntry

    models, before = tmp_path / "models.yaml", session.catalog().entries["tiny"]
    (tmp_path / "kg").mkdir()
    for name in ("pruned", "kg", "web"):
        made = entry_with(session.catalog(), "tiny", name, str(tmp_path / name), models)
        write_entry(models, "tiny", made)
    assert made["adapters"] == {name: str(tmp_path / name) for name in ("kg", "web")}
    after = config.build(ModelEntry, config.read_yaml(models)["tiny"], Where("models.yaml"))
    assert (after.path, after.max_model_len, after.loader) == (before.path, 512, "vllm")
    write_entry(models, "another", {"kind": "generator"})
    assert set(config.read_yaml(models)) == {"tiny", "another"}


def test_an_adapter_that_changes_nothing_is_not_registered():
    from raypipe.contrib.finetune.engine_check import EngineReplies, NoEffect, require_effect

    require_effect((-2.0, -1.0), EngineReplies("a", "b", -1.0, -1.0))
    with pytest.raises(NoEffect, match="the adapter changes nothing: the first label"):
        require_effect((-2.0, -2.0), None)
    with pytest.raises(NoEffect, match="in the engine"):
        require_effect((-2.0, -1.0), EngineReplies("a", "a", -1.0, -1.0))


def record_of(place, session):
    """What a training writes, of two steps."""
    plan = planned(place, session).to_dict()
    step = {"step": 1, "epoch": 0, "loss": 4.0, "norm": 1.0, "lr": 0.01}
    return {
        "adapter": "a",
        "identity": "sha256:1",
        "base": "sha256:2",
        "base_name": "tiny",
        "preset": {"r": 8},
        "preset_name": "tiny",
        "plan": plan,
        "workers": 1,
        "device": "cpu",
        "seconds": 9.0,
        "token_s": 0.001,
        "labels": {
            "folder": "f",
            "digest": "d",
            "recipe": "",
            "data": "x",
            "rows": 36,
            "held_out": 12,
            "left_out": 0,
            "counts": {"rule": {"3.1": 48}, "domain": {"<b>": 48}},
        },
        "steps_done": 2,
        "step_taken": 2,
        "ended_early": False,
        "held_out_loss": 1.5,
        "steps": [step, {**step, "step": 2, "loss": 1.0}],
        "looks": [{"step": 2, "loss": 1.5}],
        "effect": {"base": -4.0, "adapter": -1.0},
        "engine": {"base": "x", "adapter": "y", "base_logprob": -1.0, "adapter_logprob": -2.0},
    }


def test_the_console_has_the_curve_with_the_held_out_loss(place, session):
    shown = io.StringIO()
    print_finetune(Console(file=shown, width=200), record_of(place, session) | {"folder": "f"}, "entry: 1\n")
    rows = [line.split() for line in shown.getvalue().splitlines()]
    assert ["1", "0", "4.0000", "1.000"] in rows and ["2", "0", "1.0000", "1.000", "1.5000"] in rows
    assert "step 2 was kept" in shown.getvalue()


def test_what_finetune_prints_fits_its_schema(place, session):
    from outputs import OUTPUTS
    from pydantic import TypeAdapter

    made = TypeAdapter(OUTPUTS["finetune"])
    made.validate_python(planned(place, session).to_dict())
    more = {"format": 1, "folder": "/f", "models": "", "entry": {}}
    made.validate_python(json.loads(json.dumps({**record_of(place, session), **more})))
