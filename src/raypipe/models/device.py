"""Device of a process: the networks that lie there, and what trouble with it looks like.

A library's error is a failed device, too little memory, or an input that it cannot take. Torch says most of
it in words of a RuntimeError, so the words are known here and nowhere else. What they do not say is raised as
it is: it may be the input's. Imports no library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

from raypipe.core.errors import OutOfMemory, RaypipeError, WorkerBroken
from raypipe.core.protocols import Model

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
    """A block in which a model of this name computes. Raises OutOfMemory and WorkerBroken for what is the
    device's trouble, and everything else as it comes."""
    try:
        yield
    except RaypipeError:
        raise
    except Exception as e:
        said = f"model {model!r} on {device}: {type(e).__name__}: {e}"
        if isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError" or _MEMORY.search(str(e)):
            raise OutOfMemory(f"{said}. Another process may hold the memory; smaller tasks need less") from e
        # AcceleratorError is torch's own class for an error of the device's runtime, since 2.8.
        if type(e).__name__ == "AcceleratorError" or (isinstance(e, RuntimeError) and _DEVICE.search(str(e))):
            raise WorkerBroken(f"{said}. See whether the device is well (`nvidia-smi`, `dmesg`)") from e
        raise


@contextmanager
def loading(model: str, device: str) -> Iterator[None]:
    """A block that loads a model: it sees no row, so no trouble in it is a row's. Raises WorkerBroken."""
    try:
        yield
    except RaypipeError:
        raise
    except Exception as e:
        raise WorkerBroken(f"model {model!r} could not be loaded on {device}: {type(e).__name__}: {e}") from e


T = TypeVar("T")
Key: TypeAlias = tuple[str, str, bool]
"""Weights, dtype, and whether it is a decoder."""


class SharedEncoders:
    """Loaded networks, each as long as a model of this process uses it."""

    def __init__(self) -> None:
        self._loaded: WeakValueDictionary[Key, Any] = WeakValueDictionary()

    def encoder(self, model: Model, load: Callable[[], T]) -> T:
        """The network of these weights in this dtype, which `load` makes where there is none."""
        # A MaxSim's identity has its formula behind that of its folder.
        key = model.weights.partition("+maxsim@")[0], model.dtype, model.pooling == "last"
        found: T | None = self._loaded.get(key)
        if found is None:
            found = load()
            self._loaded[key] = cast(Any, found)
        return found
