"""The order of rows: which rows make each step, decided before anything runs.

A pure function of lengths, batch size, steps and seed. It does not depend on the number of workers, of which
worker r takes every world-th row of a batch, and a run that was stopped continues at its step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

MEGA = 50
"""Batches within which rows are sorted by length: as transformers' own LengthGroupedSampler does."""


@dataclass(frozen=True, slots=True)
class Batch:
    epoch: int  # from 0
    rows: tuple[int, ...]  # their places among the training rows


def batches(
    lengths: Sequence[int], effective_batch: int, steps: int, seed: int, grouped: bool
) -> list[Batch]:
    """The batches of all steps, in order: epoch after epoch, each row once an epoch; the last batch of an
    epoch has what is left.

    >>> [b.rows for b in batches([5, 9, 7], 2, 3, 0, False)]
    [(0, 2), (1,), (0, 1)]
    """
    made: list[Batch] = []
    for epoch in range(math.ceil(steps / max(1, math.ceil(len(lengths) / effective_batch)))):
        made += [Batch(epoch, rows) for rows in _epoch(lengths, effective_batch, seed, epoch, grouped)]
    return made[:steps]


def _epoch(lengths: Sequence[int], size: int, seed: int, epoch: int, grouped: bool) -> list[tuple[int, ...]]:
    draw = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    if not grouped:
        return [tuple(order[i : i + size]) for i in range(0, len(order), size)]
    cut: list[tuple[int, ...]] = []
    for i in range(0, len(order), MEGA * size):
        # Longest first, so that too little memory shows early; equal lengths stay as they were drawn.
        mega = sorted(order[i : i + MEGA * size], key=lambda row: -lengths[row])
        cut += [tuple(mega[j : j + size]) for j in range(0, len(mega), size)]
    head, rest = cut[:1], cut[1:]
    draw.shuffle(rest)
    return head + rest


def share(rows: Sequence[int], rank: int, world: int) -> Sequence[int]:
    return rows[rank::world]


def learning_rate(step: int, steps: int, lr: float, warmup: float) -> float:
    """The rate of a step, from 0: it rises over the first `warmup` share of steps, then falls as a cosine.

    >>> [round(learning_rate(i, 10, 1.0, 0.2), 2) for i in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return lr * (step + 1) / rising
    return lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
