"""The training loop of one worker. The same code alone and in a group.

The loss of a step is the sum of its answer tokens' losses over their number in the whole effective batch,
which every worker knows from the plan; gradients are added by one sum over all workers. A stopped training
continues from its last checkpoint: the same rows in the same order, other draws of dropout. Torch is imported
by what trains: its import takes three seconds, and plans need none.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from raypipe.contrib.finetune.model import Device, Trainable, open_trainable
from raypipe.contrib.finetune.preset import Preset
from raypipe.contrib.finetune.rows import Batch, TrainingRow, batch_plan, learning_rate, share
from raypipe.core.errors import DataError
from raypipe.core.protocols import Model

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

    def batches(self) -> list[Batch]:
        lengths = [len(row.ids) for row in self.rows]
        p = self.preset
        return batch_plan(lengths, p.effective_batch, p.steps, p.seed, p.group_by_length)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers that train together, seen from one of them; by itself a group of one."""

    rank: int = 0  # of this worker
    world: int = 1  # how many workers there are

    def sum(self, numbers: Any) -> None:
        """Replaces a tensor by its sum over all workers."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step of training."""

    step: int  # from 1
    epoch: int  # from 0
    loss: float  # mean over the answer tokens of its batch, in nats
    norm: float  # of the gradient, before it is cut
    lr: float
    trained: int  # answer tokens of its batch


@dataclass(frozen=True, slots=True)
class LookPoint:
    """A look at the held-out rows."""

    step: int  # after which it was
    loss: float  # mean over their answer tokens


@dataclass(slots=True)
class TrainingState:
    """State of a training: all that the rest of it depends on."""

    step: int = 0  # steps done
    adapter: dict[str, Any] = field(default_factory=dict)  # name -> float32 tensor
    optimizer: dict[str, Any] = field(default_factory=dict)
    steps: list[StepPoint] = field(default_factory=list)
    looks: list[LookPoint] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)  # the adapter at the best look; {}: none was
    ended: bool = False  # nothing is left to do
    effect: tuple[float, float] = (0.0, 0.0)  # log-probability of one answer by base, and with the adapter

    @property
    def best_look(self) -> LookPoint | None:
        """The look with the lowest loss, the earliest of these; None: none was."""
        return min(self.looks, key=lambda p: (p.loss, p.step), default=None)

    def final(self) -> dict[str, Any]:
        """The adapter that counts: at the best look, else after the last step."""
        return self.best or self.adapter

    @property
    def taken(self) -> int:
        """After how many steps that was."""
        return self.best_look.step if self.best_look else self.step

    def to_bytes(self) -> bytes:
        """As a checkpoint: tensors and plain values alone."""
        import torch

        out = io.BytesIO()
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        points = {name: [asdict(p) for p in plain[name]] for name in ("steps", "looks")}
        torch.save({**plain, **points, "effect": list(self.effect)}, out)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes) -> TrainingState:
        """The state of a checkpoint. What is no tensor or plain value in it is refused."""
        import torch

        tree = torch.load(io.BytesIO(raw), weights_only=True, map_location="cpu")
        steps, looks = [StepPoint(**p) for p in tree["steps"]], [LookPoint(**p) for p in tree["looks"]]
        return cls(**{**tree, "steps": steps, "looks": looks, "effect": tuple(tree["effect"])})


Told = Callable[[StepPoint], None]
Save = Callable[[TrainingState], None]


def train(
    job: TrainingJob, group: WorkerGroup, told: Told, save: Save, start: TrainingState | None = None
) -> TrainingState:
    """Trains from `start`, or from a fresh adapter, to the end.

    Every worker of the group calls this with the same job. `told` is called after each step, `save` at each
    checkpoint and at the end, both on every worker. Raises Diverged.
    """
    import torch

    if job.device == "cpu":
        torch.set_num_threads(job.threads)
    preset, plan = job.preset, job.batches()
    held = open_trainable(job.model, preset, job.device, job.in_four_bits)
    # Betas, epsilon and weight decay are the defaults of transformers' AdamW, which db3 trained with.
    optimizer = torch.optim.AdamW(
        list(held.weights.values()), lr=preset.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0
    )
    state = start or TrainingState()
    if start is not None:
        held.put(start.adapter)
        optimizer.load_state_dict(start.optimizer)
    while not state.ended:
        if state.step < len(plan):
            batch = plan[state.step]
            rate = learning_rate(state.step, len(plan), preset.lr, preset.warmup)
            point = _step(held, optimizer, job, group, batch, state.step + 1, rate)
            state.step += 1
            state.steps.append(point)
            told(point)
        last = state.step == len(plan)
        if job.held_out and preset.evaluate_every and (last or state.step % preset.evaluate_every == 0):
            last = _look(held, job, group, state) or last
        if last or state.step % preset.save_every == 0:
            state.adapter, state.optimizer = held.tensors(), optimizer.state_dict()
            if last:
                state.ended, state.effect = True, _effect(held, job, state)
            save(state)
    return state


def _step(
    held: Trainable,
    optimizer: Any,
    job: TrainingJob,
    group: WorkerGroup,
    batch: Batch,
    step: int,
    rate: float,
) -> StepPoint:
    import torch

    held.net.train()
    optimizer.zero_grad(set_to_none=False)
    tokens = sum(job.rows[i].trained for i in batch.rows)
    total = torch.zeros((), dtype=torch.float64)
    for i in share(batch.rows, group.rank, group.world):
        with held.cast():
            loss = answer_loss(held.net, job.rows[i], job.device) / tokens
        (loss * held.scale).backward()
        total += loss.detach().double().cpu()
    norm, mean = _summed(held, group, total, job.preset.max_grad_norm)
    if not (math.isfinite(mean) and math.isfinite(norm)):
        ids = [job.rows[i].id for i in batch.rows]
        more = f", and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        raise Diverged(
            f"step {step}: loss {mean:g}, gradient norm {norm:g}: not finite numbers, in the batch of labels "
            f"{', '.join(ids[:NAMED])}{more}. Nothing was written. Lower lr (it was {rate:.3g} at this "
            "step), or look at these labels: raypipe finetune ... --show 3"
        )
    for g in optimizer.param_groups:
        g["lr"] = rate
    optimizer.step()
    return StepPoint(step, batch.epoch, mean, norm, rate, tokens)


def _summed(held: Trainable, group: WorkerGroup, total: Any, most: float) -> tuple[float, float]:
    """Gradients and loss over all workers; gradients cut to `most`. Norm before that, and loss."""
    import torch

    parameters = list(held.weights.values())
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    flat = torch.nn.utils.parameters_to_vector(p.grad for p in parameters)
    if held.scale != 1.0:
        flat /= held.scale
    group.sum(flat)
    group.sum(total)
    norm = float(flat.norm())
    if norm > most:
        flat *= most / norm
    torch.nn.utils.vector_to_parameters(flat, [p.grad for p in parameters])
    return norm, float(total)


def answer_loss(net: Any, row: TrainingRow, device: str) -> Any:
    """The sum of losses over a row's answer tokens, in nats, as a float32 scalar that has a gradient."""
    import torch

    ids = torch.tensor([row.ids], device=device)
    # From the token before the answer to the last but one: logits of the prompt are never computed.
    logits = net(input_ids=ids, logits_to_keep=row.trained + 1).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, ids[0, row.cut :], reduction="sum")


def _look(held: Trainable, job: TrainingJob, group: WorkerGroup, state: TrainingState) -> bool:
    """Looks at the held-out rows, keeps the adapter if it is the best so far. True: training ends early."""
    loss = mean_loss(held, job.held_out, job.device, group)
    before = state.best_look
    state.looks.append(LookPoint(state.step, loss))
    if before is None or loss < before.loss:
        state.best = held.tensors()
    since = sum(p.step > state.best_look.step for p in state.looks) if state.best_look else 0
    return 0 < job.preset.patience <= since


def mean_loss(held: Trainable, rows: Sequence[TrainingRow], device: str, group: WorkerGroup) -> float:
    """Mean loss over the answer tokens of some rows, in nats; no dropout, nothing is learned."""
    import torch

    held.net.eval()
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad(), held.cast():
        for i in share(range(len(rows)), group.rank, group.world):
            total += answer_loss(held.net, rows[i], device).double().cpu()
    group.sum(total)
    return float(total) / sum(row.trained for row in rows)


def _effect(held: Trainable, job: TrainingJob, state: TrainingState) -> tuple[float, float]:
    """The log-probability of the first training row's answer, by the base and with the final adapter."""
    held.put(state.final())
    with held.net.disable_adapter():
        base = mean_loss(held, job.rows[:1], job.device, WorkerGroup())
    return -base, -mean_loss(held, job.rows[:1], job.device, WorkerGroup())
