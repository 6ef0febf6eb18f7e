"""The networks of one process by their weights: an embedder and a MaxSim reranker of one folder share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

from raypipe.core.protocols import Model

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
