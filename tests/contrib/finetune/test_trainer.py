"""The training of one worker: what it learns, and how it continues from a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from tuned import examples

from raypipe.contrib.finetune.rows import fitting, tokenized

pytestmark = pytest.mark.slow  # torch, transformers, peft


def job_of(base, chats, preset, **fields):
    from raypipe.contrib.finetune.training_job import TrainingJob

    rows = {s: [tokenized(chats, e) for e in examples(48) if e.split == s] for s in ("train", "held-out")}
    train, _ = fitting(rows["train"], preset.max_seq_len, preset.too_long)
    made = TrainingJob(base, preset, tuple(train), tuple(rows["held-out"]), "cpu", 1, False)
    return dataclasses.replace(made, **fields)


def trained(job, folder, start=None, stop_after=None):
    """The adapter, and copies of the checkpoints on the way. `stop_after`: the step that is the last."""
    from raypipe.contrib.finetune.trainer import train

    saved = []

    def save(checkpoint):
        saved.append(folder / "kept" / checkpoint.name)
        shutil.copytree(checkpoint, saved[-1])
        if stop_after and checkpoint.name.endswith(f"-{stop_after}"):
            raise InterruptedError

    try:
        return train(job, folder / "own", lambda point: None, save, start), saved
    except InterruptedError:
        return None, saved


@pytest.fixture(scope="module")
def job(base, chats):
    from tuned import CONF

    from raypipe.contrib.finetune.preset import read_preset

    sets = ("steps=12", "effective_batch=4", "save_every=2", "evaluate_every=6")
    return job_of(base, chats, read_preset(CONF.find("finetune", "tiny"), sets))


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    return trained(job, tmp_path_factory.mktemp("whole"))


def equal(a, b):
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_loss_falls_by_half_and_the_adapter_of_the_best_look_is_kept(whole):
    from safetensors.torch import load_file

    adapter, saved = whole
    assert min(p.loss for p in adapter.steps[-4:]) < adapter.steps[0].loss / 2
    assert [p.step for p in adapter.looks] == [6, 12] and [p.step for p in adapter.steps] == [*range(1, 13)]
    assert adapter.taken == adapter.best_look.step and adapter.best_look.loss < adapter.steps[0].loss / 2
    best = next(folder for folder in saved if folder.name == f"checkpoint-{adapter.taken}")
    assert equal(adapter.tensors, load_file(best / "adapter_model.safetensors"))


def test_a_run_that_was_stopped_ends_with_the_adapter_of_an_undisturbed_one(job, whole, tmp_path):
    _, saved = trained(job, tmp_path / "stopped", stop_after=8)
    resumed, more = trained(job, tmp_path / "resumed", saved[-1])
    assert [folder.name for folder in more] == ["checkpoint-10", "checkpoint-12"]
    assert equal(resumed.tensors, whole[0].tensors)
    assert (resumed.steps, resumed.looks, resumed.taken) == (whole[0].steps, whole[0].looks, whole[0].taken)


def test_a_finished_run_is_not_trained_again(job, whole, tmp_path):
    again, saved = trained(job, tmp_path, whole[1][-1])
    assert not saved and equal(again.tensors, whole[0].tensors)
    assert (again.steps, again.effect) == (whole[0].steps, whole[0].effect)


def test_the_loss_is_a_mean_over_the_answer_tokens_of_the_whole_batch(job, tmp_path):
    """Not a mean of rows' means, which is another gradient; and however many rows a forward pass has."""
    import torch
    from transformers import AutoModelForCausalLM

    rows = sorted(job.rows, key=lambda row: row.trained)
    batch, found = (*rows[:2], *rows[-2:]), []
    for count in (1, 4):
        preset = dataclasses.replace(
            job.preset, steps=1, evaluate_every=0, rows_at_once=count, lora_dropout=0.0
        )
        one = dataclasses.replace(job, preset=preset, rows=batch)
        found.append(trained(one, tmp_path / str(count))[0].steps[0].loss)
    net, total = AutoModelForCausalLM.from_pretrained(job.model.path).eval(), 0.0
    for row in batch:
        with torch.no_grad():
            logits = net(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
        total -= sum(float(logits[i - 1, row.ids[i]]) for i in range(row.cut, len(row.ids)))
    assert len({row.trained for row in batch}) > 1
    assert found == [pytest.approx(total / sum(row.trained for row in batch), rel=1e-5)] * 2


def test_a_loss_that_is_no_number_ends_it_with_the_batch_named(job, tmp_path):
    from raypipe.contrib.finetune.training_job import Diverged

    wild = dataclasses.replace(job, preset=dataclasses.replace(job.preset, lr=1e30))
    with pytest.raises(Diverged, match=r"step \d+: loss .*not finite.*labels q\d+, q\d+.*Lower lr"):
        trained(wild, tmp_path)


def test_training_ends_early_when_held_out_rows_get_no_better(job, whole, tmp_path):
    preset = dataclasses.replace(job.preset, lr=1e-9, steps=40, evaluate_every=1, save_every=1, patience=2)
    flat = dataclasses.replace(job, preset=preset, rows=job.rows[:4], held_out=job.held_out[:2])
    adapter, saved = trained(flat, tmp_path / "first")
    assert len(adapter.steps) < 40 and adapter.taken == adapter.best_look.step == len(adapter.steps) - 2
    again, more = trained(flat, tmp_path / "again", saved[-1])
    assert not more and equal(again.tensors, adapter.tensors)


def test_peft_reads_an_adapter_that_names_its_base_by_digest(job, whole, tmp_path):
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM

    from raypipe.contrib.finetune.model import write_adapter

    tensors = whole[0].tensors
    write_adapter(tmp_path / "a", tensors, job.model, job.preset, {"labels": {"digest": "d"}})
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    preset = job.preset
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 16, 0.1)
    assert config["bias"] == "none" and not config["use_dora"] and config["modules_to_save"] is None
    assert config["base_model_name_or_path"] == job.model.weights
    read = LoraConfig.from_pretrained(str(tmp_path / "a"))
    assert read.target_modules == set(preset.target_modules) and read.r == preset.r
    model = AutoModelForCausalLM.from_pretrained(job.model.path)
    model = PeftModel.from_pretrained(model, str(tmp_path / "a"))
    loaded = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    assert equal(loaded, tensors)


@pytest.mark.drill
def test_gradient_checkpointing_changes_no_gradient(job, tmp_path):
    short = dataclasses.replace(job.preset, steps=2, warmup=0.0)
    thrifty = dataclasses.replace(short, gradient_checkpointing=True)
    a, _ = trained(dataclasses.replace(job, preset=short, held_out=()), tmp_path / "a")
    b, _ = trained(dataclasses.replace(job, preset=thrifty, held_out=()), tmp_path / "b")
    assert [p.loss for p in a.steps] == pytest.approx([p.loss for p in b.steps], rel=1e-6)


@pytest.mark.drill
def test_an_adapter_of_a_base_of_half_precision_is_float32(job, tmp_path):
    import torch

    half = dataclasses.replace(job.model, dtype="bfloat16")
    adapter, _ = trained(dataclasses.replace(job, model=half), tmp_path)
    assert all(t.dtype == torch.float32 for t in adapter.tensors.values())
    assert adapter.best_look.loss < adapter.steps[0].loss / 2


def test_four_bits_are_off_with_the_reason_or_refused(job):
    from raypipe.contrib.finetune.model import four_bit
    from raypipe.core.errors import ConfError

    assert four_bit("auto", "cpu").on is False and four_bit("auto", "cpu").because
    with pytest.raises(ConfError, match=r"four_bit: true: .*raypipe\[qlora\]"):
        four_bit("true", "cpu")


def test_what_the_adapter_changes_is_told(whole):
    base, tuned = whole[0].effect
    assert tuned > base + 1
