"""Device of a process: its loaded networks, matrix products, and the classification of its errors.

A library's error means a failed device, too little memory, or an input that it cannot process. Mostly the
text of torch's RuntimeError tells which, and no other module looks at that text. An unrecognised error is
raised unchanged, since the input may be its cause. Torch, which takes three seconds, is imported only by
products.
"""

from __future__ import annotations

import re
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from raypipe.core.errors import OutOfMemory, RaypipeError, WorkerBroken
from raypipe.core.protocols import Model

if TYPE_CHECKING:
    from raypipe.store.vector_search import Product

_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|ALLOC_FAILED", re.IGNORECASE
)
_DEVICE = re.compile(
    r"\b(CUDA|HIP|cuDNN|cuBLAS|cuBLASLt|cuSOLVER|NCCL|NVML|XPU|MPS)\b.{0,40}\b(error|failure|failed|unavailable)"
    r"|CU(DNN|BLAS|SOLVER|SPARSE|FFT)_STATUS|device-side assert|illegal memory access|launch failure"
    r"|no kernel image|device.{0,20}lost|uncorrectable ECC",
    re.IGNORECASE | re.DOTALL,
)


@contextmanager
def computing(model: str, device: str) -> Iterator[None]:
    """Turns device errors in a with block, in which a model computes, into OutOfMemory or WorkerBroken. Other
    errors pass unchanged."""
    try:
        yield
    except RaypipeError:
        raise
    except Exception as e:
        message = f"model {model!r} on {device}: {type(e).__name__}: {e}"
        if isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError" or _MEMORY.search(str(e)):
            raise OutOfMemory(f"{message}. Use smaller tasks, or end other work there") from e
        # AcceleratorError is torch's own class for an error of the device's runtime, since 2.8.
        if type(e).__name__ == "AcceleratorError" or (isinstance(e, RuntimeError) and _DEVICE.search(str(e))):
            raise WorkerBroken(f"{message}. Check the device (`nvidia-smi`, `dmesg`)") from e
        raise


@contextmanager
def loading(model: str, device: str) -> Iterator[None]:
    """Turns errors in a with block that loads a model into WorkerBroken. A RaypipeError passes unchanged."""
    try:
        yield
    except RaypipeError:
        raise
    except Exception as e:
        raise WorkerBroken(f"model {model!r} could not be loaded on {device}: {type(e).__name__}: {e}") from e


T = TypeVar("T")
Key: TypeAlias = tuple[str, str, bool]
"""Weights, dtype, and whether the network is a decoder."""


class SharedEncoders:
    """Loaded networks, which models of equal weights share. A network is kept while a model uses it."""

    def __init__(self) -> None:
        self._loaded: WeakValueDictionary[Key, Any] = WeakValueDictionary()

    def encoder(self, model: Model, load: Callable[[], T]) -> T:
        """Returns the network of a model's weights and dtype. Calls `load` if it is not loaded yet."""
        # The weights' name of a MaxSim reranker is its folder's, followed by "+maxsim@" and a formula.
        key = model.weights.partition("+maxsim@")[0], model.dtype, model.pooling == "last"
        network: T | None = self._loaded.get(key)
        if network is None:
            self._loaded[key] = network = cast(Any, load())
        return cast(T, network)


def product_on(device: str) -> Product:
    """Returns a worker's matrix product: on the GPU if `device` is cuda and the worker has a GPU, else on the
    cores. In a GPU cluster, a worker of a CPU pool has no GPU."""
    from raypipe.store.vector_search import numpy_product  # imports LanceDB, as searching workers do anyway

    if not device.startswith("cuda"):
        return numpy_product
    import torch

    return torch_product(device) if torch.cuda.is_available() else numpy_product


def torch_product(device: str) -> Product:
    """Returns the matrix product on a torch device; it raises OutOfMemory and WorkerBroken. For 16,384
    vectors of 384 numbers and 256 questions it copies 25 MB of vectors to the device, and 17 MB of scores
    back."""
    import torch

    matmul = torch.backends.cuda.matmul

    def opened(queries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        asked = torch.from_numpy(np.ascontiguousarray(queries)).to(device)

        def scores(block: np.ndarray) -> np.ndarray:
            # An engine in this process may have turned on TF32, whose error is 2**-11.
            before, matmul.allow_tf32 = matmul.allow_tf32, False
            try:
                with computing("the product of vectors", device), torch.inference_mode():
                    vectors = torch.from_numpy(np.array(block)).to(device)  # a mapped block cannot be written
                    product: np.ndarray = (asked @ vectors.T).cpu().numpy()
                    return product
            finally:
                matmul.allow_tf32 = before

        return scores

    return opened


SIDE = 1024  # rows and columns of the matrices: 4 MB each, as large as a layer's
TRIES = 9  # the fastest counts, since it is the least disturbed by other processes


def gemm(product: Callable[[Any], Any] = lambda a: a @ a) -> float:
    """Measures FLOP per second of the product of two (SIDE, SIDE) float32 matrices on one torch thread."""
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
    """Returns the CPU seconds of the fastest of `TRIES` calls."""
    call()
    return min(timeit.repeat(call, timer=time.process_time, number=1, repeat=TRIES))
