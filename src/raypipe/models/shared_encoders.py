"""The networks of one process by their weights, and the token vectors that it keeps while it is warm.

An embedder and a MaxSim reranker of one folder run the same network over the same tokens, so they share both:
the network is loaded once, and a text that one of them has just encoded is not encoded again by the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from raypipe.core.protocols import Model

T = TypeVar("T")
Key: TypeAlias = tuple[str, str, bool]
"""Weights, dtype, and whether it is a decoder."""

KEPT_BYTES = 192 << 20
"""Token vectors of some 800 passages of 700 characters at 384 dims: what a worker embeds of ten questions."""


class TokenVectors:
    """Hidden states by token ids: (tokens, dim) float32, `limit` bytes of those that were used last."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit, self.bytes = limit, 0
        self._held: OrderedDict[bytes, np.ndarray] = OrderedDict()

    def get(self, ids: bytes) -> np.ndarray | None:
        if (found := self._held.get(ids)) is not None:
            self._held.move_to_end(ids)
        return found

    def put(self, ids: bytes, hidden: np.ndarray) -> None:
        """`hidden` must own its memory: of a view, the whole batch would stay."""
        if hidden.nbytes > self._limit or ids in self._held:
            return
        self._held[ids] = hidden
        self.bytes += hidden.nbytes
        while self.bytes > self._limit:
            self.bytes -= self._held.popitem(last=False)[1].nbytes


class SharedEncoders:
    """Loaded networks, each as long as a model of this process uses it."""

    def __init__(self) -> None:
        self._loaded: WeakValueDictionary[Key, Any] = WeakValueDictionary()
        self._users: dict[Key, set[str]] = {}  # -> who asks for its tokens: embedder, maxsim
        self._kept: dict[Key, TokenVectors] = {}

    def encoder(self, model: Model, load: Callable[[], T]) -> T:
        """The network of these weights in this dtype, which `load` makes where there is none."""
        key = _key(model)
        found: T | None = self._loaded.get(key)
        if found is None:
            found = load()
            self._loaded[key] = cast(Any, found)
        return found

    def expect(self, model: Model) -> None:
        """Notes who will run a network: where an embedder and a MaxSim do, token vectors are kept."""
        if model.kind == "embedder" or model.loader == "maxsim":
            self._users.setdefault(_key(model), set()).add(model.kind)

    def kept(self, model: Model) -> TokenVectors | None:
        """The token vectors of these weights; None where only one kind of model uses them."""
        key = _key(model)
        if len(self._users.get(key, ())) < 2:
            return None
        return self._kept.setdefault(key, TokenVectors())

    def keep(self, models: Iterable[Model]) -> None:
        wanted = {_key(m) for m in models}
        for held in (self._users, self._kept):
            for key in [k for k in held if k not in wanted]:
                del held[key]


def _key(model: Model) -> Key:
    """A MaxSim's identity has its formula behind that of its folder."""
    return model.weights.partition("+maxsim@")[0], model.dtype, model.pooling == "last"
