"""Products of matrices by torch: of questions with vectors on a GPU, and as a measure of this machine's
speed.

Torch is imported by what multiplies with it: its import takes three seconds.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.models.device import computing
from raypipe.store.vector_search import Product, numpy_product


def product_on(device: str) -> Product:
    """The product of a worker with this device: its GPU's where it has one. A pool of a GPU cluster that was
    given no GPU computes on its cores."""
    if not device.startswith("cuda"):
        return numpy_product
    import torch

    return torch_product(device) if torch.cuda.is_available() else numpy_product


def torch_product(device: str) -> Product:
    """The product on a device of torch (`store.vector_search.Product`). Blocks cross to it, scores come back:
    25 and 16 MB for 16,384 vectors of 384 numbers and 256 questions. Raises OutOfMemory and WorkerBroken."""
    import torch

    def opened(queries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        asked = torch.from_numpy(np.ascontiguousarray(queries)).to(device)

        def scores(block: np.ndarray) -> np.ndarray:
            with computing("the product of vectors", device), torch.inference_mode(), _float32(torch):
                vectors = torch.from_numpy(np.array(block)).to(device)  # a mapped block cannot be written
                found: np.ndarray = (asked @ vectors.T).cpu().numpy()
                return found

        return scores

    return opened


@contextmanager
def _float32(torch: Any) -> Iterator[None]:
    """A block in which products are of float32 numbers: TF32, which an engine in this process may have turned
    on, errs by 2**-11."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
