"""Map from the digest of a request to its value: a vector, a score, a reply, or a server's reply.

Two requests are equal if their keys are. Keys are stored, so the inputs of a digest never change. A memo may
lose values, but never returns a wrong one. Depends on identities of models and the contracts of requests.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from raypipe.core.digests import model_identity, stable
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model, Role
from raypipe.core.records import digest
from raypipe.core.references import domain_of


def vector_keys(identity: str, role: Role, texts: Sequence[str]) -> list[str]:
    """Returns one key per text: digest of the model's identity, the role and the text."""
    return [digest(identity, role, text) for text in texts]


def score_keys(identity: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns one key per (query, passage): digest of the model's identity and both texts."""
    return [digest(identity, query, passage) for query, passage in pairs]


def reply_keys(model: Model, chats: Sequence[Chat], sampling: Sampling, adapter: str | None) -> list[str]:
    """Returns one key per chat: digest of the base model, the sampling, the adapter's weights and all turns.

    The generator refuses an adapter that the model lacks, so no reply of it is ever stored.
    """
    base = model.original
    weights = dict(base.adapters).get(adapter, adapter) if adapter is not None else None
    how = digest(model_identity(replace(base, adapters=())), stable(sampling), stable(weights))
    return [digest(how, *(part for turn in chat for part in (turn.role, turn.content))) for chat in chats]


def request_key(version: str, path: str, body: Mapping[str, Any], period: float | None, now: float) -> str:
    """Returns the key of a server's reply: a digest of the reference's version and the request. With a
    refresh `period` (seconds), the key also has the period, the number of the period that contains `now`, and
    the domain, by which changes are counted.

    >>> request_key("v1", "/movie/get", {}, 60.0, 130.0).partition("@")[2]
    '60.0*2*movie'
    """
    key = digest(version, path, json.dumps(dict(body), sort_keys=True), "")
    return key if period is None else f"{key}@{period!r}*{int(now // period)}*{domain_of(path)}"


def period_of(key: str) -> tuple[str, str, float, int] | None:
    """Splits a key into request, domain, refresh period (seconds) and period number; None without a period.

    >>> period_of("abc@60.0*2*movie"), period_of("abc")
    (('abc', 'movie', 60.0, 2), None)
    """
    request, _, rest = key.partition("@")
    if not rest:
        return None
    period, number, *domain = rest.split("*")
    return request, domain[0] if domain else "", float(period), int(number)


def expired(key: str, now: float) -> bool:
    """Returns whether the refresh period in a key has ended. No run looks up such a key again.

    >>> [expired(request_key("v1", "", {}, period, 100.0), 130.0) for period in (None, 60.0, 120.0)]
    [False, True, True]
    >>> expired(request_key("v1", "", {}, 60.0, 130.0), 130.0)
    False
    """
    found = period_of(key)
    return found is not None and (found[3] + 1) * found[2] <= now


T = TypeVar("T")
Values: TypeAlias = np.ndarray
"""Values, one per key: (keys, dim) or (keys,) float32, or (keys,) `llm.Generated` objects."""

ENTRY_BYTES = 300
"""Approximate bytes of a cached value apart from its numbers: its key, and entries in a dict and a queue."""

REPLY_BYTES = 200
"""Approximate bytes of a cached reply apart from its text and its ENTRY_BYTES."""


@dataclass(frozen=True, slots=True)
class MemoTable:
    """A map of a memo: all vectors, all scores or all replies of one model."""

    name: str  # embeddings-M, scores-M or replies-M; M: the model's identity
    dim: int = 0  # numbers per vector; 0: a value is a single number, or a reply

    @property
    def replies(self) -> bool:
        return self.name.startswith("replies-")

    def empty(self, keys: int) -> Values:
        """Makes an uninitialised array for the values of `keys` keys."""
        return np.empty((keys, self.dim) if self.dim else keys, object if self.replies else np.float32)

    def nbytes(self, values: Values) -> int:
        """Estimates the bytes of these values in memory, with their keys."""
        own = sum(len(v.text) + REPLY_BYTES for v in values) if self.replies else values.nbytes
        return len(values) * ENTRY_BYTES + own

    def storable(self, values: Values) -> np.ndarray:
        """Marks the values that may be cached: (keys,) bool. A non-finite number or a fault may not, since it
        would be returned every time. Nor may a text with half a surrogate pair: no table holds it."""
        if self.replies:
            texts = [v.text if isinstance(v, Generated) else None for v in values]
            # No table can hold a lone surrogate.
            whole = [t is not None and t.encode("utf-8", "replace").decode() == t for t in texts]
            return np.array(whole, bool)
        finite: np.ndarray = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        return finite


def vectors_of(model: Model) -> MemoTable:
    return MemoTable(f"embeddings-{model_identity(model)}", model.dim)


def scores_of(model: Model) -> MemoTable:
    return MemoTable(f"scores-{model_identity(model)}", 0)


def replies_of(model: Model) -> MemoTable:
    """Returns the map for a generator's replies, with and without its adapters."""
    return MemoTable(f"replies-{model_identity(replace(model.original, adapters=()))}")


def request_replies_of(version: str) -> MemoTable:
    """Returns the map for a server's replies (JSON texts) to requests of a reference at this version."""
    return MemoTable(f"replies-{digest('graph', version)}")


class Memo(Protocol):
    """A map by value that outlives a call. A stored value is returned bit for bit, or not at all."""

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        """Returns which keys are known, (keys,) bool, and the values of the known keys in key order."""
        ...

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        """Stores storable values, one per key. The first value of a key wins."""
        ...


class MemoryMemo:
    """A memo in this process. Beyond `limit_bytes` of keys and values it drops the oldest entries."""

    def __init__(self, limit_bytes: float = float("inf")) -> None:
        self._rows: dict[tuple[str, str], tuple[Values, int]] = {}  # (table, key) -> values of a put, row
        self._puts: deque[tuple[str, list[str], int]] = deque()  # table, keys, bytes
        self._bytes = 0
        self._limit = limit_bytes

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        found = [self._rows.get((table.name, k)) for k in keys]
        known = np.array([f is not None for f in found], bool)
        values = table.empty(int(known.sum()))
        for i, (block, row) in enumerate(f for f in found if f is not None):
            values[i] = block[row]
        return known, values

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        fresh: dict[str, int] = {}  # unknown key -> its first row
        for i, key in enumerate(keys):
            if (table.name, key) not in self._rows:
                fresh.setdefault(key, i)
        names = list(fresh)
        block = table.empty(len(names))
        block[:] = values[list(fresh.values())]
        nbytes = table.nbytes(block)
        for row, key in enumerate(names):
            self._rows[table.name, key] = (block, row)
        self._puts.append((table.name, names, nbytes))
        self._bytes += nbytes
        while self._bytes > self._limit:
            name, gone, freed = self._puts.popleft()
            self._bytes -= freed
            for key in gone:
                del self._rows[name, key]
