"""The product of questions with vectors on a GPU: the same loop over blocks, with torch in NumPy's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from raypipe.models.device_errors import computing
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
