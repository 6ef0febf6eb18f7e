"""The cache by value: equal texts, pairs and chats to an equal model are computed once.

Knows the contracts of kits and what identifies a request; knows nothing of where values are kept except
through `Memo`, which is a map from key to values that may forget but never errs. Steps do not know of it.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from raypipe.core.calls import SingleFlight, owned
from raypipe.core.digests import model_identity
from raypipe.core.llm import Chats, Generated, Generator, Replies, Sampling
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Embed, ForwardingKit, Kit, Model, Role, Score
from raypipe.core.records import Fault, digest
from raypipe.core.references import Reference, Request, domain_of
from raypipe.store.memo.counts import CallCount, CallCounts
from raypipe.store.memo.keys import reply_keys, request_key, score_keys, vector_keys
from raypipe.store.memo.salvage import Came, Send, each, in_pieces
from raypipe.text.thoughts import thought_tokens

T = TypeVar("T")
Values: TypeAlias = np.ndarray
"""A value per key: (keys, dim) or (keys,) float32, or (keys,) of `llm.Generated` as objects."""

ENTRY_BYTES = 300
"""Bytes of a cached value on top of its numbers, about: its key, and its places in two tables."""

REPLY_BYTES = 200
"""Bytes of a cached reply on top of its text and its entry, about."""


@dataclass(frozen=True, slots=True)
class MemoTable:
    """A map of a memo: all vectors, all scores or all replies of one model."""

    name: str  # embeddings-M, scores-M or replies-M; M: model identity
    dim: int = 0  # numbers per key; 0: a single number, or a reply

    @property
    def replies(self) -> bool:
        return self.name.startswith("replies-")

    def empty(self, keys: int) -> Values:
        """An uninitialised array for the values of `keys` keys."""
        return np.empty((keys, self.dim) if self.dim else keys, object if self.replies else np.float32)

    def nbytes(self, values: Values) -> int:
        """Returns what these values take in memory with their keys, about."""
        own = sum(len(v.text) + REPLY_BYTES for v in values) if self.replies else values.nbytes
        return len(values) * ENTRY_BYTES + own

    def storable(self, values: Values) -> np.ndarray:
        """(keys,) bool: which may be cached. A broken number or a fault is the caller's to report; cached, it
        would come back every time."""
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
    """The map that keeps a generator's replies, with and without its adapters."""
    return MemoTable(f"replies-{model_identity(replace(model, adapters=()))}")


def request_replies_of(version: str) -> MemoTable:
    """The map that keeps replies to a reference's requests, by its version: JSON texts."""
    return MemoTable(f"replies-{digest('graph', version)}")


class Memo(Protocol):
    """A map by value that outlives a call. What was put comes back bit for bit, or not at all."""

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        """(keys,) bool: which are known, and their values in key order."""
        ...

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        """Keeps sound values, one per key. The first value of a key wins."""
        ...


class MemoryMemo:
    """A memo in this process. Past `limit_bytes` of keys and values it forgets what was put first."""

    def __init__(self, limit_bytes: float = float("inf")) -> None:
        self._rows: dict[tuple[str, str], tuple[Values, int]] = {}  # -> values of one put, row
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


Salvage: TypeAlias = Callable[[list[int], Send], Awaitable[tuple[Came, Exception | None]]]
"""Sends unknown requests, and keeps what comes where one of them raises."""

Asking: TypeAlias = SingleFlight[tuple[str, str], Any]
"""Requests in flight: (memo table, key) -> its value."""


def cached(
    kit: Kit, memo: Memo | None, tally: CallCounts, asking: Asking | None = None,
    clock: Callable[[], float] = time.time,
) -> Kit:  # fmt: skip
    """The same kit behind the cache: equal requests are computed once, cached ones not at all, all are
    counted.

    `memo` None: nothing is kept between calls. The first request that is not cached loads the model. Kits
    that share `asking` also ask an equal request once while it is in flight: it counts as cached for the
    callers that wait. `clock` (seconds) tells when replies to requests have expired (`Reference.periods`).
    """
    return _Remembering(kit, memo, tally, SingleFlight() if asking is None else asking, clock)


class _Remembering(ForwardingKit[Kit]):
    def __init__(
        self, kit: Kit, memo: Memo | None, tally: CallCounts, asking: Asking, clock: Callable[[], float]
    ) -> None:
        super().__init__(kit)
        self._memo, self._tally, self._asking, self._clock = memo, tally, asking, clock

    def embedder(self, model: Model) -> Embed:
        table = vectors_of(model)

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            async def ask(rows: list[int]) -> np.ndarray:
                return await self._kit.embedder(model)([texts[i] for i in rows], role)

            keys = vector_keys(model_identity(model), role, texts)
            return await self._through(table, keys, ask, self._tally.vectors, in_pieces)

        return embed

    def reranker(self, model: Model) -> Score:
        table = scores_of(model)

        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            async def ask(rows: list[int]) -> np.ndarray:
                return await self._kit.reranker(model)([pairs[i] for i in rows])

            keys = score_keys(model_identity(model), pairs)
            return await self._through(table, keys, ask, self._tally.scores, in_pieces)

        return score

    def generator(self, model: Model) -> Generator:
        table = replies_of(model)
        # A generator from outside may compute a batch at a time, as an embedder does.
        send = in_pieces if is_path(model.loader) else each

        async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            async def ask(rows: list[int]) -> Values:
                replies = await self._kit.generator(model)([chats[i] for i in rows], sampling, adapter)
                self._count(replies)
                out = np.empty(len(replies), object)
                out[:] = replies
                return out

            keys = reply_keys(model, chats, sampling, adapter)
            replies: Replies
            with owned(keys):
                replies = (await self._through(table, keys, ask, self._tally.replies, send)).tolist()
            cut = (isinstance(reply, Generated) and reply.finish == "length" for reply in replies)
            self._tally.tokens.cut += sum(cut)
            return replies

        return generate

    def _count(self, replies: Sequence[Generated | Fault]) -> None:
        tokens = self._tally.tokens
        for reply in replies:
            if isinstance(reply, Generated):
                tokens.prompt += reply.prompt_tokens
                tokens.cached += reply.cached_tokens
                tokens.generated += reply.generated_tokens
                tokens.thoughts += thought_tokens(reply.text, reply.generated_tokens)

    def data(self, ref: Reference[T]) -> T:
        """Caches requests to a server one by one, for as long as their domain's replies hold."""
        table, periods = request_replies_of(ref.version), ref.periods() or {}

        def wrap(request: Request) -> Request:
            async def asked(path: str, body: Mapping[str, Any]) -> Any:
                async def ask(rows: list[int]) -> Values:
                    text = json.dumps(await request(path, body), ensure_ascii=False)
                    out = np.empty(1, object)
                    out[0] = Generated(text, "stop", 0, 0, 0)
                    return out

                period = periods.get(domain_of(path))
                if period == 0:
                    self._tally.replies.computed += 1
                    return await request(path, body)
                key = request_key(ref.version, path, body, period, self._clock())
                [reply] = await self._through(table, [key], ask, self._tally.replies, each)
                return json.loads(reply.text)

            return asked

        return ref.through(self._kit.data(ref), wrap, self.embedder)

    async def _through(
        self, table: MemoTable, keys: list[str], ask: Send, count: CallCount, send: Salvage
    ) -> Values:
        """Values of all keys. `ask` gets row numbers, one per unknown key; `send` says how many at a time."""
        if not keys:
            return table.empty(0)
        first: dict[str, int] = {}  # distinct key -> first row that has it
        for i, key in enumerate(keys):
            first.setdefault(key, i)
        distinct, values = list(first), table.empty(len(first))
        sent = set[int]()  # places

        async def find(places: list[int]) -> Values:
            async def asked(at: list[int]) -> Values:
                count.computed += len(at)
                sent.update(mine := [places[i] for i in at])
                return await ask([first[distinct[i]] for i in mine])

            return await self._found(table, [distinct[i] for i in places], asked, send)

        for i, value in enumerate(await self._asking.of([(table.name, key) for key in distinct], find)):
            values[i] = value
        count.cached += len(distinct) - len(sent)
        place = {key: i for i, key in enumerate(distinct)}
        return values[[place[key] for key in keys]]

    async def _found(self, table: MemoTable, keys: list[str], ask: Send, send: Salvage) -> Values:
        """Values of distinct keys. `ask` gets the positions of those that are not cached. What comes is kept,
        also where the call for another one raises."""
        values, known = table.empty(len(keys)), np.zeros(len(keys), bool)
        if self._memo is not None:
            known, kept = await self._memo.get_many(table, keys)
            values[known] = kept
        unknown = np.flatnonzero(~known).tolist()
        if not unknown:
            return values

        async def ask_whole(at: list[int]) -> Values:
            asked = await ask(at)
            if asked.shape != (expected := table.empty(len(at)).shape):
                raise ValueError(f"{table.name}: expected values of shape {expected}, got {asked.shape}")
            return asked

        came, error = await send(unknown, ask_whole)
        here = [i for at, _ in came for i in at]
        for at, some in came:
            values[at] = some
        if self._memo is not None and here:
            got = values[here]
            sound = table.storable(got)
            await self._memo.put_many(
                table, [keys[i] for i, s in zip(here, sound, strict=True) if s], got[sound]
            )
        if error is not None:
            raise error
        return values
