"""A training as data: what each worker gets, and the points that it tells of. No torch is imported here."""

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

NAMED = 8  # rows of a batch that an error names


class Diverged(DataError):
    """A loss or gradient is no finite number any more; the message names the batch."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    model: Model  # the base
    preset: Preset
    rows: tuple[TrainingRow, ...]
    held_out: tuple[TrainingRow, ...]  # none: nothing is looked at, and the last step counts
    device: Device
    threads: int  # of torch, on a CPU
    in_four_bits: bool

    def order(self) -> list[int]:
        """Places of the rows of all steps, `effective_batch` a step."""
        lengths = [len(row.ids) for row in self.rows]
        p = self.preset
        return row_order(lengths, p.effective_batch, p.steps, p.seed, p.group_by_length)

    def require_finite(self, point: StepPoint) -> None:
        """Raises Diverged, naming the batch, for a step whose loss or gradient is no finite number."""
        if math.isfinite(point.loss) and math.isfinite(point.norm):
            return
        size = self.preset.effective_batch
        batch = self.order()[(point.step - 1) * size : point.step * size]
        more = f", and {size - NAMED} more" if size > NAMED else ""
        raise Diverged(
            f"step {point.step}: loss {point.loss:g}, gradient norm {point.norm:g}: not finite numbers, in "
            f"the batch of labels {', '.join(self.rows[i].id for i in batch[:NAMED])}{more}. Nothing was "
            f"written. Lower lr (it was {point.lr:.3g} at this step), or look at these labels: raypipe "
            "finetune ... --show 3"
        )


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step of training."""

    step: int  # from 1
    epoch: int  # from 0
    loss: float  # mean over the answer tokens of its batch, in nats
    norm: float  # of the gradient, before it is cut
    lr: float


@dataclass(frozen=True, slots=True)
class LookPoint:
    """A look at the held-out rows."""

    step: int  # after which it was
    loss: float  # mean over the rows of the mean over a row's answer tokens, in nats


@dataclass(frozen=True, slots=True)
class TrainedAdapter:
    """A finished training."""

    tensors: dict[str, Any]  # name in the adapter's file -> float32 tensor: at the best look, else the last
    steps: tuple[StepPoint, ...]
    looks: tuple[LookPoint, ...]
    taken: int  # after how many steps the tensors are as they are
    effect: tuple[float, float]  # log-probability of one answer's tokens by the base, and with the adapter

    @property
    def best_look(self) -> LookPoint | None:
        """The look with the lowest loss, the earliest of these; None: none was."""
        return min(self.looks, key=lambda p: (p.loss, p.step), default=None)
