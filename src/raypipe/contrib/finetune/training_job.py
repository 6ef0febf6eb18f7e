"""Records of a training: the job of each worker, and the points that it reports. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raypipe.contrib.finetune.preset import Preset
from raypipe.contrib.finetune.rows import TrainingRow, row_order
from raypipe.core.errors import DataError
from raypipe.core.protocols import Model

if TYPE_CHECKING:
    from raypipe.contrib.finetune.model import Device

NAMED = 8  # number of a batch's rows that an error names


class Diverged(DataError):
    """Error: a loss or gradient is not finite. The message names the batch."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    model: Model  # the base
    preset: Preset
    rows: tuple[TrainingRow, ...]
    held_out: tuple[TrainingRow, ...]  # (): no evaluation, and the last step's adapter is the result
    device: Device
    threads: int  # of torch, on a CPU
    in_four_bits: bool

    def order(self) -> list[int]:
        """Returns indices into `rows` for all steps, `effective_batch` per step."""
        lengths = [len(row.ids) for row in self.rows]
        p = self.preset
        return row_order(lengths, p.effective_batch, p.steps, p.seed, p.group_by_length)

    def require_finite(self, point: StepPoint) -> None:
        """Raises Diverged if a step's loss or gradient is not finite."""
        if math.isfinite(point.loss) and math.isfinite(point.norm):
            return
        size = self.preset.effective_batch
        batch = self.order()[(point.step - 1) * size : point.step * size]
        more = f", and {size - NAMED} more" if size > NAMED else ""
        raise Diverged(
            f"step {point.step}: loss {point.loss:g}, gradient norm {point.norm:g}: not finite numbers, in "
            f"the batch of labels {', '.join(self.rows[i].id for i in batch[:NAMED])}{more}. Nothing was "
            f"written. Lower lr, {point.lr:.3g} at this step, or look at these labels (--show 3)"
        )


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Values of one training step."""

    step: int  # from 1
    epoch: int  # from 0
    loss: float  # mean over the answer tokens of its batch, in nats
    norm: float  # of the gradient, before clipping
    lr: float  # learning rate


@dataclass(frozen=True, slots=True)
class LookPoint:
    """Evaluation on the held-out rows (a look)."""

    step: int  # last step before it
    loss: float  # mean over rows of each row's mean over its answer tokens, in nats


@dataclass(frozen=True, slots=True)
class TrainedAdapter:
    """Result of a finished training."""

    tensors: dict[str, Any]  # name in its file -> float32, at the best look; without looks, at the last step
    steps: tuple[StepPoint, ...]
    looks: tuple[LookPoint, ...]
    taken: int  # number of the step that the tensors are from
    effect: tuple[float, float]  # log-probabilities of one answer by the base and with the adapter, per token

    @property
    def best_look(self) -> LookPoint | None:
        """Look with the lowest loss, the earliest if several are equal. None: there was none."""
        return min(self.looks, key=lambda p: (p.loss, p.step), default=None)
