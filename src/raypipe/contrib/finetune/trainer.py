"""Training of one worker by TRL's SFTTrainer, alone or in a torch process group.

TRL receives rows as token ids with labels, in their final order. It tokenizes, masks, cuts and shuffles
nothing. The loss of a step is the mean over all answer tokens of the effective batch. A stopped training
continues from a checkpoint of transformers' Trainer, with the same rows and the same dropout. The module
imports torch and TRL, so plans do not import it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub import constants
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoTokenizer, EarlyStoppingCallback, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from raypipe.contrib.finetune.model import lora_config, open_base
from raypipe.contrib.finetune.rows import TrainingRow
from raypipe.contrib.finetune.training_job import LookPoint, StepPoint, TrainedAdapter, TrainingJob
from raypipe.models.folder import ADAPTER

IGNORED = -100  # label of an untrained token, as in transformers
BEST = "best.safetensors"  # in a checkpoint: the adapter at the lowest held-out loss so far
STATE = "trainer_state.json"  # file of transformers' Trainer

Told = Callable[[StepPoint], None]
Save = Callable[[Path], None]


def train(
    job: TrainingJob, folder: Path, told: Told, save: Save, start: Path | None = None, workers: int = 1
) -> TrainedAdapter:
    """Trains to the end, from the checkpoint `start` or from a fresh adapter.

    Every worker calls this function with the same job and its own empty `folder`. On every worker, `told` is
    called after each step, and `save` with the folder of each checkpoint. Raises Diverged if a loss or
    gradient is not finite.
    """
    if job.device == "cpu":
        torch.set_num_threads(job.threads)
    points = _Points(job, told, save, start)
    trainer = _trainer(job, folder, workers, [points])
    if start is None or not _ended(job, start):
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    return _trained(job, trainer, points.last)


def _trainer(job: TrainingJob, folder: Path, workers: int, callbacks: list[TrainerCallback]) -> SFTTrainer:
    """Builds the SFTTrainer of one of `workers` from the preset."""
    base, compute = open_base(job)
    constants.HF_HUB_DISABLE_TELEMETRY = True  # otherwise TRL reports each training to its authors
    p = job.preset
    at_once = p.at_once(workers)
    looks = bool(job.held_out and p.evaluate_every)
    if p.patience and looks:
        callbacks = [*callbacks, EarlyStoppingCallback(p.patience)]
    config = SFTConfig(
        output_dir=str(folder),
        max_length=None,  # longer rows were refused or left out before
        max_steps=p.steps,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=p.effective_batch // workers // at_once,
        per_device_eval_batch_size=1,  # in larger batches, short and long ones would weigh the same
        train_sampling_strategy="sequential",  # in the order of `rows.row_order`
        learning_rate=p.lr,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(p.warmup * p.steps),
        weight_decay=0.0,
        max_grad_norm=p.max_grad_norm,
        seed=p.seed,
        gradient_checkpointing=p.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=compute is torch.bfloat16,
        fp16=compute is torch.float16,
        use_cpu=job.device == "cpu",
        dataloader_pin_memory=job.device != "cpu",
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=True,  # every token has the same weight on every worker
        eval_strategy="steps" if looks else "no",
        eval_steps=p.evaluate_every or None,
        metric_for_best_model="eval_loss" if looks else None,
        greater_is_better=False,
        save_strategy="steps",
        save_steps=p.save_every,
        save_total_limit=2,  # the last, and the best on the held-out rows
        logging_steps=1,
        logging_nan_inf_filter=False,  # keeps a non-finite loss visible, which ends the training
        disable_tqdm=True,
        report_to="none",
    )
    made = SFTTrainer(
        base,
        config,
        train_dataset=_dataset(job.rows).select(job.order()),
        eval_dataset=_dataset(job.held_out) if looks else None,
        processing_class=AutoTokenizer.from_pretrained(job.model.path, local_files_only=True),
        callbacks=callbacks,
        peft_config=lora_config(p),
    )
    made.remove_callback(PrinterCallback)
    return made


def _dataset(rows: Iterable[TrainingRow]) -> Dataset:
    rows = list(rows)
    labels = [[IGNORED] * row.cut + list(row.ids[row.cut :]) for row in rows]
    return Dataset.from_dict({"input_ids": [list(row.ids) for row in rows], "labels": labels})


class _Points(TrainerCallback):  # type: ignore[misc]
    """Callback that reports steps, saves after each look, and puts the best adapter into each checkpoint."""

    def __init__(self, job: TrainingJob, told: Told, save: Save, start: Path | None) -> None:
        self._job, self._told, self._save, self._start = job, told, save, start
        self.last = start  # last checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._start is not None and (self._start / BEST).is_file():
            shutil.copyfile(self._start / BEST, Path(args.output_dir) / BEST)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            point = _step_point(self._job, {**logs, "step": state.global_step})
            self._job.require_finite(point)
            self._told(point)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.last = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        best = Path(args.output_dir) / BEST
        if args.process_index == 0 and state.best_global_step == state.global_step:
            shutil.copyfile(self.last / ADAPTER[1], best)
        if best.is_file():
            shutil.copyfile(best, self.last / BEST)
        self._save(self.last)


def _step_point(job: TrainingJob, log: dict[str, Any]) -> StepPoint:
    epoch = (log["step"] - 1) * job.preset.effective_batch // len(job.rows)
    return StepPoint(log["step"], epoch, log["loss"], log["grad_norm"], log["learning_rate"])


def _ended(job: TrainingJob, checkpoint: Path) -> bool:
    state = json.loads((checkpoint / STATE).read_text())
    stopped = state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]
    return bool(stopped) or state["global_step"] >= job.preset.steps


def _trained(job: TrainingJob, trainer: SFTTrainer, checkpoint: Path | None) -> TrainedAdapter:
    """Returns the result from the last checkpoint. Only the first worker's checkpoint has an adapter; the
    other workers return an empty result."""
    assert checkpoint is not None  # the Trainer saves the last step
    if not trainer.is_world_process_zero():
        return TrainedAdapter({}, (), (), 0, (0.0, 0.0))
    state, best = json.loads((checkpoint / STATE).read_text()), checkpoint / BEST
    tensors = load_file(best if best.is_file() else checkpoint / ADAPTER[1])
    set_peft_model_state_dict(trainer.model, tensors)
    with trainer.model.disable_adapter():
        before = _logprob(job, trainer.model)
    logs = state["log_history"]
    return TrainedAdapter(
        tensors,
        tuple(_step_point(job, log) for log in logs if "loss" in log),
        tuple(LookPoint(log["step"], log["eval_loss"]) for log in logs if "eval_loss" in log),
        state["best_global_step"] or state["global_step"],
        (before, _logprob(job, trainer.model)),
    )


def _logprob(job: TrainingJob, net: Any) -> float:
    """Returns the mean log-probability of the first training row's answer tokens."""
    row = _dataset(job.rows[:1]).with_format("torch", device=str(net.device))[:1]
    net.eval()
    with torch.no_grad():
        return -float(net(**row).loss)
