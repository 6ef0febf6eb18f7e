"""Estimate of a training before it starts: steps, tokens, memory of a worker, and time.

Memory is computed from the headers of the base's files. Time comes from the seconds per token of earlier
trainings of the same base. Without such a training, it is a bound from the machine's measured speed; if that
is missing too, it is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe.contrib.finetune.model import adapter_size
from raypipe.contrib.finetune.training_job import TrainingJob
from raypipe.core.errors import ClusterTooSmall, ConfError
from raypipe.models.folder import json_object, text_config
from raypipe.models.weight_files import BYTES, GIB, folder_headers

ADAPTER_BYTES = 20  # per number: weight, gradient, accumulated gradient, two moments of AdamW; float32
NF4_BYTES = 0.5625  # per weight: 4 bits, and a float32 scale for each 64 weights (QLoRA, section 3)
LAYER_BYTES = 34  # activations of a layer in half precision, per token and hidden dimension. Without the
# attention matrix, which sdpa does not store: Korthikanti et al. 2022, section 4.1
COLUMNS = 32_768  # vocabulary columns of the logits that TRL computes at a time; it never holds all of them
START_S = (15.0, 60.0)  # seconds until the first step: torch and peft load; measured 15 to 20 s, tiny model
SLOWER = (1.0, 6.0)  # factor from matrix speed to training time; measured on the stand-in with small layers
SPREAD = (0.8, 1.5)  # factor from an earlier training's time to the next one's, for the same base
RESERVE_GIB = 1.0  # of a GPU, for CUDA's context and the allocator's gaps


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory that one worker needs at its longest rows, in GiB."""

    weights: float  # of the base
    adapter: float  # with gradients and optimizer state
    activations: float
    logits: float
    total: float
    arithmetic: str  # the calculation, in words


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """Estimate of a training: its rows, steps, tokens, memory and time."""

    rows: int
    held_out: int
    left_out: int  # rows longer than max_seq_len
    steps: int  # at most
    epochs: float
    tokens: int  # in the rows of all steps, prompts and answers
    trained: int  # tokens of answers and their end marks in all steps
    longest: int  # tokens of the longest row
    looks: int  # evaluations on the held-out rows
    parameters: int  # of the base
    adapter_parameters: int
    adapted_layers: int
    memory: MemoryNeed
    seconds: tuple[float, float] | None  # fewest and most, from start to end; None: unknown
    rate_from: str  # source of `seconds`


def estimate(
    job: TrainingJob, left_out: int, workers: int, earlier: Sequence[float], flops: float | None
) -> TrainingEstimate:
    """Estimates a training. `earlier`: seconds per token of a worker in earlier trainings of this base.
    `flops`: FLOP per second of a core here; None: unknown. Raises ConfError if the base's config.json lacks a
    size."""
    rows, p, order = job.rows, job.preset, job.order()
    sizes = {name: math.prod(t.shape) for name, t in folder_headers(Path(job.model.path)).items()}
    parameters = sum(sizes.values())
    adapter, layers = adapter_size(Path(job.model.path), p.target_modules, p.r)
    tokens = sum(len(rows[i].ids) for i in order)
    looks = math.ceil(p.steps / p.evaluate_every) if job.held_out and p.evaluate_every else 0
    looked = looks * sum(len(row.ids) for row in job.held_out)
    work = ((6 if p.gradient_checkpointing else 4) * tokens + 2 * looked) * parameters
    seconds: tuple[float, float] | None = None
    rate_from = "not known: no training of this base is in the store; progress says it after the first step"
    if earlier:
        several = f"{len(earlier)} earlier trainings" if len(earlier) > 1 else "an earlier training"
        each, rate_from = tokens / workers, f"{several} of this base"
        seconds = START_S[0] + SPREAD[0] * min(earlier) * each, START_S[1] + SPREAD[1] * max(earlier) * each
    elif flops is not None:
        least = work / flops / workers
        rate_from = f"{flops / 1e9:.0f} GFLOP/s of one core, as it multiplies matrices here"
        seconds = START_S[0] + SLOWER[0] * least, START_S[1] + SLOWER[1] * least
    return TrainingEstimate(
        rows=len(rows),
        held_out=len(job.held_out),
        left_out=left_out,
        steps=p.steps,
        epochs=len(order) / len(rows),
        tokens=tokens,
        trained=sum(rows[i].trained for i in order),
        longest=max(len(row.ids) for row in rows),
        looks=looks,
        parameters=parameters,
        adapter_parameters=adapter,
        adapted_layers=layers,
        memory=_memory(job, workers, sizes, adapter),
        seconds=seconds,
        rate_from=rate_from,
    )


def _memory(job: TrainingJob, workers: int, sizes: Mapping[str, int], adapter: int) -> MemoryNeed:
    """Computes one worker's memory. `sizes`: base tensor -> elements. `adapter`: elements of its tensors."""
    place = Path(job.model.path) / "config.json"
    config, names = text_config(json_object(place)), ("num_hidden_layers", "hidden_size", "vocab_size")
    if lacking := [k for k in names if not isinstance(config.get(k), int)]:
        raise ConfError(f"{place}: expected numbers as {', '.join(lacking)}, found none. Fetch it again")
    layers, hidden, words = (config[k] for k in names)
    longest = max(job.rows, key=lambda r: len(r.ids))
    at_once = job.preset.at_once(workers)
    wide, length, parameters = BYTES[job.model.dtype], len(longest.ids), sum(sizes.values())
    if job.in_four_bits:  # all weights except embedding and output head, which keep their precision
        embedded = sum(n for name, n in sizes.items() if "embed" in name or "lm_head" in name)
        weights = (parameters - embedded) * NF4_BYTES + embedded * wide
        packed = (parameters - embedded) / 1e6
        how = f"{packed:,.1f} M x {NF4_BYTES} + {embedded / 1e6:,.1f} M x {wide}"
    else:
        weights, how = parameters * wide, f"{parameters / 1e6:,.1f} M x {wide}"
    layer = LAYER_BYTES * wide / 2 * at_once * length * hidden
    kept = layers * at_once * length * hidden * wide + layer
    active = kept if job.preset.gradient_checkpointing else layers * layer
    columns = min(words, COLUMNS)
    logits = at_once * (longest.trained + 1) * columns * (wide + 8)
    base, own, acts, tops = (n / GIB for n in (weights, adapter * ADAPTER_BYTES, active, logits))
    arithmetic = (
        f"weights {how} bytes; adapter {adapter / 1e6:,.2f} M x {ADAPTER_BYTES}; activations of "
        f"{at_once} x {length} tokens, {layers} layers of {hidden}, "
        f"{'one layer at a time' if job.preset.gradient_checkpointing else 'all kept'}; logits of "
        f"{at_once} x {longest.trained + 1} x {columns}"
    )
    return MemoryNeed(base, own, acts, tops, base + own + acts + tops, arithmetic)


def require_memory(need: MemoryNeed, gpu_gib: float) -> None:
    """Raises ClusterTooSmall if a GPU has too little memory. Without a GPU, `gpu_gib` is 0."""
    if gpu_gib and need.total + RESERVE_GIB > gpu_gib:
        raise ClusterTooSmall(
            f"a worker needs {need.total + RESERVE_GIB:.1f} GiB ({need.arithmetic}; {RESERVE_GIB:g} GiB for "
            f"CUDA), a GPU of the cluster file has {gpu_gib:g}. Take a larger GPU, set four_bit=true, "
            "gradient_checkpointing=true or rows_at_once=1, or a smaller max_seq_len with too_long=leave_out"
        )
