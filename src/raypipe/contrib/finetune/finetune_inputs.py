"""Inputs of a training: preset, labels and base, read and checked before the training starts."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raypipe.api.session import Session
from raypipe.contrib.finetune.estimate import TrainingEstimate, estimate, require_memory
from raypipe.contrib.finetune.label_files import Label, LabelFolder, counts, read_labels
from raypipe.contrib.finetune.model import Device, FourBit, four_bit, require_modules
from raypipe.contrib.finetune.preset import Preset, read_preset
from raypipe.contrib.finetune.rows import ChatTokenizer, TrainingRow, fitting, open_chat_tokenizer, tokenized
from raypipe.contrib.finetune.training_job import TrainingJob
from raypipe.core.digests import stable
from raypipe.core.errors import ConfError, DataError, ModelMissing
from raypipe.core.llm import Chat
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.models import generator_files
from raypipe.models.device import gemm

THREADS = 1  # of a worker on a CPU: other numbers change an adapter's last bits; --workers uses more cores
TRAINER = 2  # version of the training: increased when the same inputs give another adapter


@dataclass(frozen=True, slots=True)
class FinetuneInputs:
    """Checked inputs of a training."""

    preset: Preset
    preset_name: str
    labels: LabelFolder
    model: Model  # the base, without adapters
    chats: ChatTokenizer
    rows: tuple[TrainingRow, ...]  # of labels to train on
    prompt: Chat  # of the first row
    held_out: tuple[TrainingRow, ...]
    left_out: int  # rows longer than max_seq_len
    device: Device
    gpu_gib: float  # memory of the smallest GPU of the cluster file; 0: no GPU
    workers: int
    four_bit: FourBit

    @property
    def run(self) -> str:
        """Digest, 32 hex digits, of all that decides the adapter's numbers, except the number of workers."""
        return digest(
            "finetune",
            str(TRAINER),
            stable(self.preset),
            self.model.weights,
            self.model.dtype,
            self.labels.digest,
            str(self.four_bit.on),
        )

    @property
    def seen(self) -> str:
        """Digests of all train and held-out questions, separated by spaces, as in `FittedOn.seen`. "": the
        labels do not record them."""
        known = self.labels.questions
        return " ".join(sorted({known[r.id] for r in (*self.rows, *self.held_out) if r.id in known}))

    @property
    def job(self) -> TrainingJob:
        """Training job that each worker receives."""
        return TrainingJob(
            self.model, self.preset, self.rows, self.held_out, self.device, THREADS, self.four_bit.on
        )

    def estimate(self, records: Sequence[str]) -> TrainingEstimate:
        """Estimates memory and time of the training. `records`: JSON texts of earlier trainings' records.
        Raises ClusterTooSmall if a GPU has too little memory."""
        of_base = (self.model.weights, self.device)
        trees = [t for t in map(json.loads, records) if (t["base"], t["device"]) == of_base]
        earlier = [t["token_s"] * t["workers"] for t in trees if t["token_s"]]
        flops = gemm() if self.device == "cpu" and not earlier else None
        found = estimate(self.job, self.left_out, self.workers, earlier, flops)
        require_memory(found.memory, self.gpu_gib)
        return found

    def label_facts(self) -> dict[str, Any]:
        """Returns the facts about the labels for the adapter's recipe."""
        return {
            "folder": str(self.labels.path),
            "digest": self.labels.digest,
            "recipe": self.labels.recipe,
            "data": self.labels.data,
            "rows": len(self.rows),
            "held_out": len(self.held_out),
            "left_out": self.left_out,
            "counts": counts(self.labels.labels),
        }


def read_inputs(
    session: Session,
    preset: str | Path,
    labels: str | Path,
    base: str,
    workers: int | None,
    sets: Sequence[str],
) -> FinetuneInputs:
    """Reads and checks all inputs, before a training starts. Raises ConfError, DataError and ModelMissing."""
    path = session.settings.conf.find("finetune", str(preset))
    chosen = read_preset(path, tuple(sets))
    given = read_labels(Path(session.settings.place(str(labels), "--labels")))
    model = base_model(session, base)
    require_modules(Path(model.path), chosen, base)
    cluster = session.cluster_file()
    device: Device = "cuda" if cluster.device.startswith("cuda") else "cpu"
    if device == "cpu" and model.dtype == "float16":
        raise ConfError(
            f"--base {base}: its dtype is float16, which is not trained on a CPU. Use an entry of dtype "
            "float32 or bfloat16, or a cluster file with GPUs"
        )
    chats = open_chat_tokenizer(Path(model.path), base, model.template)
    rows = {x.question_id: tokenized(chats, x) for x in given.labels}
    kept, longer = fitting(rows.values(), chosen.max_seq_len, chosen.too_long)
    short = {row.id for row in kept}
    train = [x for x in given.labels if x.split == "train" and x.question_id in short]
    held = [x for x in given.labels if x.split == "held-out" and x.question_id in short]
    _require_labels(given.path, train)
    _require_room(kept, model)
    gpus = int(sum(m.nodes * m.gpus for m in cluster.machines))
    count = workers or 1
    if workers is None and device == "cuda":
        count = max(n for n in range(1, max(1, gpus) + 1) if chosen.effective_batch % n == 0)
    if chosen.effective_batch % count:
        raise ConfError(
            f"--workers {count}: expected a divisor of the {chosen.effective_batch} rows of a step "
            "(effective_batch), so that each worker has as many. Set another number of either"
        )
    gpu_gib = min((m.gpu_gib for m in cluster.machines if m.gpus), default=0.0)
    return FinetuneInputs(
        chosen,
        path.stem,
        given,
        model,
        chats,
        tuple(rows[x.question_id] for x in train),
        train[0].messages,
        tuple(rows[x.question_id] for x in held),
        len(longer),
        device,
        gpu_gib if device == "cuda" else 0.0,
        count,
        four_bit(chosen.four_bit, device),
    )


def base_model(session: Session, name: str) -> Model:
    """Returns the base without the adapters of its entry, checked as an engine would check it. Raises
    ConfError if no engine here can serve it. Raises ModelMissing if its files, peft or trl are missing."""
    model = session.catalog().model(name)
    if model.loader != "vllm":
        raise ConfError(
            f"--base {name}: expected a model of loader vllm, found {model.kind} of loader {model.loader!r}"
        )
    model = replace(model, adapters=(), adapter_paths=())
    generator_files.check(model)
    for package in ("peft", "trl"):
        if importlib.util.find_spec(package) is None:
            raise ModelMissing(
                f"finetune needs the package {package}. Get it with: pip install 'raypipe[local]'"
            )
    return model


def _require_labels(where: Path, train: Sequence[Label]) -> None:
    if not train:
        raise DataError(f"{where}: expected labels of split train, found none: all of them are held out")
    if len({x.label for x in train}) == 1:
        raise DataError(
            f"{where}: all {len(train)} labels to train on say {train[0].label!r}; a model would learn to "
            "say it to everything. Label questions with an answer and questions without one"
        )


def _require_room(rows: Sequence[TrainingRow], model: Model) -> None:
    most = max(rows, key=lambda row: len(row.ids))
    if len(most.ids) > model.max_model_len:
        raise ConfError(
            f"label {most.id!r} has {len(most.ids)} tokens, its model {model.name!r} serves "
            f"{model.max_model_len} (max_model_len). Raise it in the models file, or give the recipe of the "
            "labels a smaller context_tokens"
        )
