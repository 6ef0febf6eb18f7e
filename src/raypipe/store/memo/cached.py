"""Cache in front of a kit (a step's access to models): each distinct request to a model is computed once.

If one of several requests raises, the results that arrived are kept. A retry of the call sends only the other
requests. This module depends on the contracts of kits, and on storage only through `Memo`.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from raypipe.core.call_context import owned
from raypipe.core.digests import model_identity
from raypipe.core.errors import OutOfMemory, RaypipeError
from raypipe.core.llm import Chats, Generated, Generator, Replies, Sampling
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Embed, ForwardingKit, Kit, Model, Role, Score
from raypipe.core.references import Reference, Request, domain_of
from raypipe.core.single_flight import SingleFlight
from raypipe.store.memo.memo import (
    Memo,
    MemoTable,
    Values,
    replies_of,
    reply_keys,
    request_key,
    request_replies_of,
    score_keys,
    scores_of,
    vector_keys,
    vectors_of,
)
from raypipe.text.thoughts import thought_tokens


def add_up(counts: Any, more: Any, times: int = 1) -> None:
    """Adds `times` x each number of `more` to `counts`, a record of the same class. Changes `counts` and its
    nested records in place, because open kits hold references to them."""
    for f in fields(counts):
        mine, theirs = getattr(counts, f.name), getattr(more, f.name)
        if is_dataclass(mine):
            add_up(mine, theirs, times)
        else:
            setattr(counts, f.name, mine + times * theirs)


@dataclass(slots=True)
class CallCount:
    """Distinct requests of one kind: sent to a model (failed ones included), and answered by the cache."""

    computed: int = 0  # sent; a request counts again if it is sent again
    cached: int = 0  # answered by the memo, or by an equal request in flight


@dataclass(slots=True)
class Tokens:
    """Tokens of computed replies; cached replies cost none."""

    prompt: int = 0  # tokens of the rendered chats
    cached: int = 0  # prompt tokens that the engine had cached
    generated: int = 0  # tokens of the replies
    thoughts: int = 0  # estimated tokens of thoughts in the replies
    cut: int = 0  # replies, computed or cached, that ended at their length limit


@dataclass(slots=True)
class CallCounts:
    """Counts of a kit's texts to embed, pairs to score and chats to answer. A call counts equal ones once."""

    vectors: CallCount = field(default_factory=CallCount)
    scores: CallCount = field(default_factory=CallCount)
    replies: CallCount = field(default_factory=CallCount)  # chats, and requests to a reference's server
    tokens: Tokens = field(default_factory=Tokens)

    @classmethod
    def of(cls, tree: dict[str, dict[str, int]]) -> CallCounts:
        """Builds the record from its dict of `dataclasses.asdict`."""
        counts = {name: CallCount(**tree[name]) for name in ("vectors", "scores", "replies")}
        return cls(**counts, tokens=Tokens(**tree["tokens"]))

    @property
    def computed(self) -> int:
        return sum(count.computed for count in (self.vectors, self.scores, self.replies))

    @property
    def cached(self) -> int:
        return sum(count.cached for count in (self.vectors, self.scores, self.replies))

    def add(self, other: CallCounts) -> None:
        add_up(self, other)

    def in_vain(self, before: CallCounts) -> None:
        """Resets the counts of cached requests to those of `before`, because the attempt failed and the next
        one looks the requests up again. Computed requests stay counted, because they were sent."""
        for name in ("vectors", "scores", "replies"):
            getattr(self, name).cached = getattr(before, name).cached


Send: TypeAlias = Callable[[list[int]], Awaitable[np.ndarray]]
"""Function that sends the requests with these row numbers, and returns a value for each."""

Came: TypeAlias = list[tuple[list[int], np.ndarray]]
"""Groups of row numbers, each with the values that arrived."""


async def each(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends each row in its own call, all concurrently. Returns the values that arrived, and an error if a
    row raised. For requests that are answered one by one: a row that raises then loses only its own value."""
    sent = await asyncio.gather(*(send([row]) for row in rows), return_exceptions=True)
    came = [([row], value) for row, value in zip(rows, sent, strict=True) if isinstance(value, np.ndarray)]
    errors = [e for e in sent if isinstance(e, BaseException)]
    for e in errors:
        if not isinstance(e, Exception):
            raise e
    # Errors that are no row's fault come first: other errors may follow from them.
    errors.sort(key=lambda e: not isinstance(e, RaypipeError))
    return came, errors[0] if errors else None  # type: ignore[return-value]


async def in_pieces(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends all rows in one call. If that raises, sends pieces (size: the square root of the number of rows),
    then each row of a failing piece in its own call. Returns the values that arrived, and the last error, if
    any. It suits models that compute whole batches, and return nothing if one row raises.

    Stops early if all pieces fail, and after an error that no row caused, except too little memory.
    """
    came: Came = []
    error: Exception | None = None
    broken = [list(rows)]
    for size in sorted({len(rows), math.isqrt(len(rows)), 1}, reverse=True):
        pieces = [piece[at : at + size] for piece in broken for at in range(0, len(piece), size)]
        broken, error = [], None
        for piece in pieces:
            try:
                came.append((piece, await send(piece)))
            except Exception as e:
                error = e
                broken.append(piece)
                # Fewer rows may succeed, except after an error that no row caused.
                if isinstance(e, RaypipeError) and not isinstance(e, OutOfMemory):
                    return came, e
        if error is None or (size < len(rows) and not came):
            break
    return came, error


T = TypeVar("T")

Salvage: TypeAlias = Callable[[list[int], Send], Awaitable[tuple[Came, Exception | None]]]
"""Function that sends uncached requests with a Send, and keeps the values that arrive if a request raises."""

Asking: TypeAlias = SingleFlight[tuple[str, str], Any]
"""Requests in flight: (memo table, key) -> its value."""


def cached(
    kit: Kit,
    memo: Memo | None,
    tally: CallCounts,
    asking: Asking | None = None,
    clock: Callable[[], float] = time.time,
) -> Kit:
    """Wraps a kit in a cache. The returned kit counts all requests in `tally`, computes equal requests of a
    call once, and does not compute requests whose values are in `memo`.

    If `memo` is None, nothing is kept between calls. The first uncached request loads the model. Kits that
    share `asking` also send an equal request once while it is in flight; for the waiting callers it counts as
    cached. `clock` (seconds) decides when replies of a reference's server expire (`Reference.periods`).
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
        table, tokens = replies_of(model), self._tally.tokens
        # A generator of other code may compute a batch at a time, as an embedder does.
        send = in_pieces if is_path(model.loader) else each

        async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            async def ask(rows: list[int]) -> Values:
                replies = await self._kit.generator(model)([chats[i] for i in rows], sampling, adapter)
                for reply in (r for r in replies if isinstance(r, Generated)):
                    tokens.prompt += reply.prompt_tokens
                    tokens.cached += reply.cached_tokens
                    tokens.generated += reply.generated_tokens
                    tokens.thoughts += thought_tokens(reply.text, reply.generated_tokens)
                out = np.empty(len(replies), object)
                out[:] = replies
                return out

            keys = reply_keys(model, chats, sampling, adapter)
            replies: Replies
            with owned(keys):
                replies = (await self._through(table, keys, ask, self._tally.replies, send)).tolist()
            tokens.cut += sum(isinstance(r, Generated) and r.finish == "length" for r in replies)
            return replies

        return generate

    def data(self, ref: Reference[T]) -> T:
        """Caches requests to a reference's server one by one. A reply is valid for the refresh period of its
        domain. With a period of 0, no reply is cached; without a period, replies never expire."""
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
        """Returns the values of all keys, which may repeat. `ask` gets a row number for each distinct
        uncached key; `send` groups the row numbers into calls."""
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
        """Returns the values of distinct keys. `ask` gets the positions of uncached keys, in groups that
        `send` makes. Stores the storable values that arrive, even if the call for another key raises."""
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
        for at, some in came:
            values[at] = some
        if self._memo is not None and (here := [i for at, _ in came for i in at]):
            got = values[here]
            sound = table.storable(got)
            await self._memo.put_many(
                table, [keys[i] for i, s in zip(here, sound, strict=True) if s], got[sound]
            )
        if error is not None:
            raise error
        return values
