"""The loop: what it learns, alone, in a group, and from a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
from tuned import examples

from raypipe.contrib.finetune.rows import fitting, tokenized

pytestmark = pytest.mark.slow  # torch, transformers, peft


def job_of(base, chats, preset, **fields):
    from raypipe.contrib.finetune.loop import TrainingJob

    rows = {s: [tokenized(chats, e) for e in examples(48) if e.split == s] for s in ("train", "held-out")}
    train, _ = fitting(rows["train"], preset.max_seq_len, preset.too_long)
    made = TrainingJob(base, preset, tuple(train), tuple(rows["held-out"]), "cpu", 1, False)
    return dataclasses.replace(made, **fields)


def trained(job, start=None, stop_after=None):
    """The final state, and the checkpoints on the way, as bytes."""
    from raypipe.contrib.finetune.loop import WorkerGroup, train

    saved = []

    def save(state):
        saved.append(state.to_bytes())
        if state.step == stop_after:
            raise InterruptedError

    try:
        return train(job, WorkerGroup(), lambda point: None, save, start), saved
    except InterruptedError:
        return None, saved


@pytest.fixture(scope="module")
def job(base, chats):
    from tuned import CONF

    from raypipe.contrib.finetune.preset import read_preset

    sets = ("steps=12", "effective_batch=4", "save_every=2", "evaluate_every=6")
    return job_of(base, chats, read_preset(CONF.find("finetune", "tiny"), sets))


@pytest.fixture(scope="module")
def whole(job):
    return trained(job)


def equal(a, b):
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_loss_falls_by_half(whole):
    state, _ = whole
    assert state.steps[-1].loss < state.steps[0].loss / 2
    assert [p.step for p in state.looks] == [6, 12]
    assert state.looks[-1].loss < state.steps[0].loss / 2


def test_a_run_that_was_stopped_continues_at_its_checkpoint(job, whole):
    from raypipe.contrib.finetune.loop import TrainingState

    _, saved = trained(job, stop_after=4)
    start = TrainingState.from_bytes(saved[-1])
    assert start.steps == whole[0].steps[:4] and start.optimizer["state"]
    resumed, more = trained(job, TrainingState.from_bytes(saved[-1]))
    assert len(more) == 4 and [p.step for p in resumed.steps] == list(range(1, 13))
    assert resumed.steps[:4] == start.steps and resumed.looks[-1].loss < start.steps[0].loss / 2


def test_a_finished_run_is_not_trained_again(job, whole):
    from raypipe.contrib.finetune.loop import TrainingState

    again, saved = trained(job, TrainingState.from_bytes(whole[1][-1]))
    assert not saved and equal(again.adapter, whole[0].adapter)


class Threads:
    """Two workers as threads of one process."""

    def __init__(self, rank, barrier, slots):
        self.rank, self.world, self._barrier, self._slots = rank, 2, barrier, slots

    def sum(self, numbers):
        self._slots[self.rank] = numbers.clone()
        self._barrier.wait()
        numbers.copy_(self._slots[0] + self._slots[1])
        self._barrier.wait()


def test_gradients_of_two_workers_add_up_to_those_of_one(job):
    """Without dropout: torch's random numbers belong to the process."""
    from raypipe.contrib.finetune.loop import TrainingState, train

    quiet = dataclasses.replace(job.preset, lora_dropout=0.0, steps=4)
    job = dataclasses.replace(job, preset=quiet)
    _, saved = trained(job, stop_after=2)
    alone, _ = trained(job, TrainingState.from_bytes(saved[-1]))
    barrier, slots, states = threading.Barrier(2), {}, {}

    def work(rank):
        group = Threads(rank, barrier, slots)
        start = TrainingState.from_bytes(saved[-1])
        states[rank] = train(job, group, lambda p: None, lambda s: None, start)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    for one, two in zip(alone.steps, states[0].steps, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=1e-4)
    assert equal(states[0].adapter, states[1].adapter)


def test_the_loss_is_a_mean_over_the_answer_tokens_of_the_whole_batch(job):
    """Not a mean of rows' means, which is another gradient."""
    import torch

    from raypipe.contrib.finetune.loop import WorkerGroup, answer_loss, mean_loss
    from raypipe.contrib.finetune.model import open_trainable

    held = open_trainable(job.model, job.preset, "cpu", False)
    rows = sorted(job.rows, key=lambda r: r.trained)
    rows = [rows[0], rows[-1]]
    held.net.eval()
    with torch.no_grad():
        sums = [float(answer_loss(held.net, r, "cpu")) for r in rows]
        expected = sum(sums) / sum(r.trained for r in rows)
        assert mean_loss(held, rows, "cpu", WorkerGroup()) == pytest.approx(expected, rel=1e-6)
        logits = held.net(input_ids=torch.tensor([rows[0].ids])).logits[0].log_softmax(-1)
        by_hand = -sum(float(logits[i - 1, rows[0].ids[i]]) for i in range(rows[0].cut, len(rows[0].ids)))
    assert sums[0] == pytest.approx(by_hand, rel=1e-5)


def test_a_loss_that_is_no_number_ends_it_with_the_batch_named(job):
    from raypipe.contrib.finetune.loop import Diverged

    wild = dataclasses.replace(job, preset=dataclasses.replace(job.preset, lr=1e30))
    with pytest.raises(Diverged, match=r"step \d+: loss .*not finite.*labels q\d+, q\d+.*Lower lr"):
        trained(wild)


def test_training_ends_early_when_held_out_rows_get_no_better(job):
    preset = dataclasses.replace(job.preset, lr=1e-9, steps=40, evaluate_every=1, save_every=1, patience=2)
    flat = dataclasses.replace(job, preset=preset, rows=job.rows[:4], held_out=job.held_out[:2])
    state, _ = trained(flat)
    assert state.ended and state.step < 40
    assert state.step == state.best_look.step + 2 and state.taken == state.best_look.step


def test_peft_reads_an_adapter_that_names_its_base_by_digest(job, whole, tmp_path):
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM

    from raypipe.contrib.finetune.model import write_adapter

    state, _ = whole
    write_adapter(tmp_path / "a", state.final(), job.model, job.preset, {"labels": {"digest": "d"}})
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
    assert equal(loaded, state.final())


def test_gradient_checkpointing_changes_no_gradient(job):
    short = dataclasses.replace(job.preset, steps=1)
    thrifty = dataclasses.replace(short, gradient_checkpointing=True)
    a, _ = trained(dataclasses.replace(job, preset=short, held_out=()))
    b, _ = trained(dataclasses.replace(job, preset=thrifty, held_out=()))
    assert [p.loss for p in a.steps] == pytest.approx([p.loss for p in b.steps], rel=1e-6)


def test_a_base_of_half_precision_is_trained_with_norms_in_float32(job):
    import torch

    from raypipe.contrib.finetune.model import open_trainable

    half = dataclasses.replace(job.model, dtype="bfloat16")
    held = open_trainable(half, job.preset, "cpu", False)
    norms = [m for m in held.net.modules() if type(m).__name__.endswith("Norm")]
    assert norms and all(p.dtype == torch.float32 for m in norms for p in m.parameters())
    assert all(p.dtype == torch.float32 for p in held.weights.values())
    state, _ = trained(dataclasses.replace(job, model=half, preset=dataclasses.replace(job.preset, steps=2)))
    assert state.steps[-1].loss < state.steps[0].loss


def test_four_bits_are_off_with_the_reason_or_refused(job):
    from raypipe.contrib.finetune.model import four_bit
    from raypipe.core.errors import ConfError

    assert four_bit("auto", "cpu").on is False and four_bit("auto", "cpu").because
    with pytest.raises(ConfError, match=r"four_bit: true: .*raypipe\[qlora\]"):
        four_bit("true", "cpu")


def test_what_the_adapter_changes_is_told(whole):
    base, tuned = whole[0].effect
    assert tuned > base + 1
