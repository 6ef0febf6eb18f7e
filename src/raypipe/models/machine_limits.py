"""What this machine is, and how fast it multiplies matrices."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDE = 1024  # of the matrices: 4 MB each, as large as a layer's
TRIES = 9  # the best counts: a limit is what nothing else disturbs


def gemm(product: Callable[[Any], Any] = lambda a: a @ a) -> float:
    """FLOP a second of a product of a (SIDE, SIDE) float32 matrix with another, on one thread of torch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(SIDE, SIDE)
        with torch.inference_mode():
            return 2 * SIDE**3 / best(lambda: product(a))
    finally:
        torch.set_num_threads(threads)


def best(call: Callable[[], Any]) -> float:
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
