"""What one core of this machine can do at most: products of matrices, copies of memory."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from raypipe.core.environment import processor
from raypipe.models.device import SIDE, best, gemm

BYTES = 256 << 20  # of a copy: larger than any cache


class Machine:
    """The limits of one core, each measured when it is first asked for."""

    @cached_property
    def gemm_fp32(self) -> float:
        """FLOP a second of a product of float32 matrices, by whichever of torch's is faster."""
        import torch

        from raypipe.models import bert

        if not bert.usable():
            return gemm()
        layer = bert.PackedLinear(torch.nn.Linear(SIDE, SIDE, bias=False))
        return max(gemm(), gemm(layer))

    @cached_property
    def memcpy(self) -> float:
        source = np.ones(BYTES, np.uint8)
        target = np.empty_like(source)
        return BYTES / best(lambda: np.copyto(target, source))

    def facts(self) -> dict[str, Any]:
        shown = {"gemm_fp32": ("GEMM fp32", "GFLOP/s a core"), "memcpy": ("memcpy", "GB/s a core")}
        here = [(*shown[key], value) for key, value in self.__dict__.items()]
        measured = {name: f"{value / 1e9:.1f} {unit}" for name, unit, value in here}
        return {"processor": processor(), "cores": len(os.sched_getaffinity(0)), **measured}
