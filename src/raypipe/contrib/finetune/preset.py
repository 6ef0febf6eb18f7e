"""Presets of `finetune`: hyperparameters of a training, as YAML files under conf/finetune.

All fields decide the adapter's numbers, so the adapter's recipe has them all. None is about machines.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.models.generator_files import RANKS

_SHORT = re.compile(r"\A\d+e-?\d+")  # YAML reads 2e-4 as text, and 2.0e-4 as a number


@dataclass(frozen=True, slots=True)
class Preset:
    r: int  # rank of the two factors
    lora_alpha: int  # the adapter's output is scaled by lora_alpha / r
    lora_dropout: float  # 0..1, share of an adapter's inputs that training drops
    target_modules: tuple[str, ...]  # names of the linear layers that get an adapter
    lr: float  # highest learning rate of AdamW
    warmup: float  # 0..1, share of the steps with a rising rate; it then falls as a cosine
    max_grad_norm: float  # longer gradients are scaled down to this norm
    effective_batch: int  # rows of one step, of all workers together
    rows_at_once: int  # rows of one forward pass of a worker, at most; gradients of a step accumulate
    steps: int  # steps of the training, at most
    max_seq_len: int  # tokens of a row, prompt and answer
    too_long: Literal["refuse", "leave_out"]  # treatment of longer rows; no row is cut
    group_by_length: bool  # true: a batch has rows of similar length
    gradient_checkpointing: bool  # true: activations are computed twice instead of stored
    four_bit: Literal["auto", "true", "false"]  # base in nf4; auto: on a CUDA device with bitsandbytes
    save_every: int  # steps between two checkpoints
    evaluate_every: int  # steps between two evaluations on the held-out rows (looks); 0: none
    patience: int  # looks without a lower loss after which training ends; 0: it runs to `steps`
    seed: int

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
            ("r", f"1 to {RANKS[-1]}, which vLLM serves at most", lambda x: 1 <= x <= RANKS[-1]),
            ("lora_alpha effective_batch rows_at_once steps save_every", "at least 1", lambda x: x >= 1),
            ("evaluate_every patience seed", "at least 0", lambda x: x >= 0),
            ("lora_dropout warmup", "0 or more, below 1", lambda x: 0 <= x < 1),
            ("lr max_grad_norm", "a number above 0", lambda x: 0 < x < math.inf),
            ("max_seq_len", "at least 8 tokens", lambda x: x >= 8),
            ("target_modules", "distinct names", lambda x: len({*x, ""}) == len(x) + 1 > 1),
        )
        for names, expected, holds in rules:
            for name in names.split():
                if not holds(value := getattr(self, name)):
                    found = list(value) if isinstance(value, tuple) else value
                    raise ValueError(f"{name}: expected {expected}, found {found!r}")
        if self.patience and not self.evaluate_every:
            raise ValueError("patience: expected with evaluate_every above 0, found 0")

    def at_once(self, workers: int) -> int:
        """Returns the rows of one forward pass of a worker. They divide the worker's share of a step."""
        return math.gcd(self.effective_batch // workers, self.rows_at_once)


def read_preset(path: Path, sets: tuple[str, ...] = ()) -> Preset:
    """Reads a preset's file. `sets`: FIELD=VALUE, replacing its fields. Raises ConfError naming the field."""
    tree = config.read_yaml(path)
    names = [f.name for f in dataclasses.fields(Preset)]
    for one in sets:
        name, sign, value = one.partition("=")
        if not sign or name not in names:
            raise Where(str(path)).error(
                f"--set {one}: expected FIELD=VALUE; {config.did_you_mean(name, names)}"
            )
        tree[name] = config.read_value(value, f"--set {one}")
    for name in ("lr", "lora_dropout", "warmup", "max_grad_norm"):
        if isinstance(text := tree.get(name), str) and _SHORT.fullmatch(text):
            tree[name] = float(text)
    if isinstance(on := tree.get("four_bit"), bool):
        tree["four_bit"] = str(on).lower()  # YAML reads true and false as booleans
    return config.build(Preset, tree, Where(str(path)))
