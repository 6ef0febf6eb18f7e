"""What this machine can do at most: products of matrices, copies of memory. Measured when first asked for."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 1024  # of the matrices: 4 MB each, as large as a layer's
TRIES = 9  # the best counts: a limit is what nothing else disturbs
BYTES = 256 << 20  # of a copy: larger than any cache


class Machine:
    """The limits of one core, each measured once."""

    @cached_property
    def gemm_fp32(self) -> float:
        """FLOP a second of a product of float32 matrices on one thread, by whichever of torch's is faster."""
        return gemm("float32")

    @cached_property
    def gemm_bf16(self) -> float:
        """FLOP a second of a product of bfloat16 matrices on one thread of torch."""
        return gemm("bfloat16")

    @cached_property
    def memcpy(self) -> float:
        source = np.ones(BYTES, np.uint8)
        target = np.empty_like(source)
        return BYTES / _best(lambda: np.copyto(target, source))

    def facts(self) -> dict[str, Any]:
        measured = {
            name: f"{self.__dict__[key] / scale:.1f} {unit}"
            for name, key, scale, unit in (
                ("GEMM fp32", "gemm_fp32", 1e9, "GFLOP/s a core"),
                ("GEMM bf16", "gemm_bf16", 1e9, "GFLOP/s a core"),
                ("memcpy", "memcpy", 1e9, "GB/s a core"),
            )
            if key in self.__dict__
        }
        return {"processor": processor(), "cores": len(os.sched_getaffinity(0)), **measured}


def gemm(dtype: str, packed: bool = True) -> float:
    """FLOP a second of a product on one thread. `packed`: by packed layers too, where this machine has them;
    training has none."""
    import torch

    from raypipe.models import cpu_linear

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
        ways = [lambda: a @ a]
        if packed and dtype == "float32" and cpu_linear.usable():
            layer = cpu_linear.PackedLinear(torch.nn.Linear(SIDE, SIDE, bias=False))
            ways.append(lambda: layer(a))
        with torch.inference_mode():
            return 2 * SIDE**3 / min(map(_best, ways))
    finally:
        torch.set_num_threads(threads)


def _best(call: Callable[[], Any]) -> float:
    """Seconds of CPU of the fastest of some calls."""
    call()
    took = []
    for _ in range(TRIES):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)


def processor() -> str:
    """The name of this machine's CPU."""
    return value_in(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def value_in(file: Path, name: str) -> str:
    """The value of the first line `name: value` of a file; "" where there is none."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((v.strip() for k, _, v in (x.partition(":") for x in lines) if k.strip() == name), "")
