"""A kit that remembers: an equal text to an equal model is embedded once, an equal pair scored once.

Knows the contracts of kits and what identifies a request; knows nothing of where values are kept except
through `Memo`, which is a map from key to numbers that may forget but never errs. Steps do not know of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from raypipe.identity import model_identity
from raypipe.records import digest
from raypipe.step import Embed, Index, Kit, Model, Role, Score, Tokenize


@dataclass(frozen=True, slots=True)
class MemoTable:
    """One map of a memo: all vectors, or all scores, of one model."""

    name: str  # embeddings-<model identity> or scores-<model identity>
    dim: int  # numbers per key; 0: a single number


def vectors_of(model: Model) -> MemoTable:
    """The map that keeps an embedder's vectors."""
    return MemoTable(f"embeddings-{model_identity(model)}", model.dim)


def scores_of(model: Model) -> MemoTable:
    """The map that keeps a reranker's scores."""
    return MemoTable(f"scores-{model_identity(model)}", 0)


class Memo(Protocol):
    """A map by value that outlives a call. What was put comes back bit for bit, or not at all."""

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(keys,) bool: which are known, and their values: (known, dim) or (known,) float32, in key order."""
        ...

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: np.ndarray) -> None:
        """Keeps finite values, one row per key. The first value of a key wins."""
        ...


@dataclass(slots=True)
class Count:
    """How many distinct requests of one kind were asked of a model, and how many were remembered."""

    asked: int = 0
    remembered: int = 0


@dataclass(slots=True)
class Tally:
    """What a kit counted: texts to embed and pairs to score, each once per call."""

    vectors: Count = field(default_factory=Count)
    scores: Count = field(default_factory=Count)

    @property
    def asked(self) -> int:
        return self.vectors.asked + self.scores.asked

    @property
    def remembered(self) -> int:
        return self.vectors.remembered + self.scores.remembered

    def add(self, other: Tally) -> None:
        """Adds what another kit counted."""
        for mine, theirs in ((self.vectors, other.vectors), (self.scores, other.scores)):
            mine.asked += theirs.asked
            mine.remembered += theirs.remembered


class MemoryMemo:
    """A memo in this process. Past `limit_bytes` of values it forgets what was put first."""

    def __init__(self, limit_bytes: float = float("inf")) -> None:
        self._rows: dict[tuple[str, str], tuple[np.ndarray, int]] = {}  # -> values of one put, row
        self._puts: deque[tuple[str, list[str], int]] = deque()  # table, keys, bytes
        self._bytes = 0
        self._limit = limit_bytes

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        found = [self._rows.get((table.name, k)) for k in keys]
        known = np.array([f is not None for f in found], bool)
        values = np.empty(_shape(table, int(known.sum())), np.float32)
        for i, (block, row) in enumerate(f for f in found if f is not None):
            values[i] = block[row]
        return known, values

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: np.ndarray) -> None:
        fresh: dict[str, int] = {}  # unknown key -> its first row
        for i, key in enumerate(keys):
            if (table.name, key) not in self._rows:
                fresh.setdefault(key, i)
        names = list(fresh)
        block = np.array(values[list(fresh.values())], np.float32)
        for row, key in enumerate(names):
            self._rows[table.name, key] = (block, row)
        self._puts.append((table.name, names, block.nbytes))
        self._bytes += block.nbytes
        while self._bytes > self._limit:
            name, gone, nbytes = self._puts.popleft()
            self._bytes -= nbytes
            for key in gone:
                del self._rows[name, key]


def _shape(table: MemoTable, rows: int) -> tuple[int, ...]:
    return (rows, table.dim) if table.dim else (rows,)


def remembering(kit: Kit, memo: Memo | None, tally: Tally) -> Kit:
    """The same kit with equal requests of a call asked once, known ones not at all, and all of them counted.

    `memo` None: nothing is kept between calls. A model is loaded by the first request that nobody remembers.
    """
    return _Remembering(kit, memo, tally)


class _Remembering:
    def __init__(self, kit: Kit, memo: Memo | None, tally: Tally) -> None:
        self._kit, self._memo, self._tally = kit, memo, tally

    def embedder(self, model: Model) -> Embed:
        table, identity = vectors_of(model), model_identity(model)

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            async def ask(rows: list[int]) -> np.ndarray:
                return await self._kit.embedder(model)([texts[i] for i in rows], role)

            keys = [digest(identity, role, t) for t in texts]
            return await self._through(table, keys, ask, self._tally.vectors)

        return embed

    def reranker(self, model: Model) -> Score:
        table, identity = scores_of(model), model_identity(model)

        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            async def ask(rows: list[int]) -> np.ndarray:
                return await self._kit.reranker(model)([pairs[i] for i in rows])

            keys = [digest(identity, query, passage) for query, passage in pairs]
            return await self._through(table, keys, ask, self._tally.scores)

        return score

    def tokenizer(self, model: Model) -> Tokenize:
        return self._kit.tokenizer(model)

    def index(self) -> Index:
        return self._kit.index()

    async def _through(
        self,
        table: MemoTable,
        keys: list[str],
        ask: Callable[[list[int]], Awaitable[np.ndarray]],
        count: Count,
    ) -> np.ndarray:
        """Values of all keys: (keys, dim) or (keys,) float32. `ask` gets row numbers, one per unknown key."""
        if not keys:
            return np.empty(_shape(table, 0), np.float32)
        first: dict[str, int] = {}  # distinct key -> first row that has it
        for i, key in enumerate(keys):
            first.setdefault(key, i)
        distinct, rows = list(first), np.fromiter(first.values(), np.int64)
        values = np.empty(_shape(table, len(distinct)), np.float32)
        known = np.zeros(len(distinct), bool)
        if self._memo is not None:
            known, remembered = await self._memo.get_many(table, distinct)
            values[known] = remembered
        unknown = np.flatnonzero(~known)
        count.remembered += len(distinct) - len(unknown)
        if len(unknown):
            asked = await ask(rows[unknown].tolist())
            if asked.shape != (expected := _shape(table, len(unknown))):
                raise ValueError(f"{table.name}: expected values of shape {expected}, got {asked.shape}")
            values[unknown] = asked
            count.asked += len(unknown)
            if self._memo is not None:
                # A broken number is the caller's fault to report; remembered, it would come back for ever.
                sound = np.isfinite(asked.reshape(len(asked), -1)).all(axis=1)
                kept = [distinct[i] for i in unknown[sound]]
                await self._memo.put_many(table, kept, asked[sound])
        place = {key: i for i, key in enumerate(distinct)}
        return values[[place[key] for key in keys]]
