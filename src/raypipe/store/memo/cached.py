"""The cache by value behind a kit: equal texts, pairs and chats to an equal model are computed once.

Of requests one of which raises, what came for the others is kept, and is not sent again. Knows the contracts
of kits; knows nothing of where values are kept except through `Memo`. Steps do not know of it.
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

from raypipe.core.calls import SingleFlight, owned
from raypipe.core.digests import model_identity
from raypipe.core.errors import OutOfMemory, RaypipeError
from raypipe.core.llm import Chats, Generated, Generator, Replies, Sampling
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Embed, ForwardingKit, Kit, Model, Role, Score
from raypipe.core.references import Reference, Request, domain_of
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
    """Adds `times` each number of `more` to `counts`, a record of the same class, in place and in the records
    within it too: open kits hold these."""
    for f in fields(counts):
        mine, theirs = getattr(counts, f.name), getattr(more, f.name)
        if is_dataclass(mine):
            add_up(mine, theirs, times)
        else:
            setattr(counts, f.name, mine + times * theirs)


@dataclass(slots=True)
class CallCount:
    """Distinct requests of one kind: those sent to a model, also in vain, and those that were cached."""

    computed: int = 0
    cached: int = 0


@dataclass(slots=True)
class Tokens:
    """Tokens of computed replies; cached ones cost none."""

    prompt: int = 0  # of the rendered chats
    cached: int = 0  # of these, not computed again
    generated: int = 0  # of the replies
    thoughts: int = 0  # of these, thoughts, about
    cut: int = 0  # replies, computed or cached, that ended by their length


@dataclass(slots=True)
class CallCounts:
    """Counts of a kit: texts to embed, pairs to score and chats to answer, each once per call."""

    vectors: CallCount = field(default_factory=CallCount)
    scores: CallCount = field(default_factory=CallCount)
    replies: CallCount = field(default_factory=CallCount)
    tokens: Tokens = field(default_factory=Tokens)

    @classmethod
    def of(cls, tree: dict[str, dict[str, int]]) -> CallCounts:
        """From what `dataclasses.asdict` makes of one."""
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
        """Takes back the cached calls that were counted since `before`: the attempt failed, and the next one
        finds them again. What was computed stays counted, since it was sent."""
        for name in ("vectors", "scores", "replies"):
            getattr(self, name).cached = getattr(before, name).cached


Send: TypeAlias = Callable[[list[int]], Awaitable[np.ndarray]]
"""Row numbers -> one value each."""

Came: TypeAlias = list[tuple[list[int], np.ndarray]]
"""Row numbers, and what came for them."""


async def each(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends each row alone, all at the same time: what came, and the first error. For requests that are
    answered one by one, so that a row that raises costs itself."""
    sent = await asyncio.gather(*(send([row]) for row in rows), return_exceptions=True)
    came = [([row], value) for row, value in zip(rows, sent, strict=True) if isinstance(value, np.ndarray)]
    errors = [e for e in sent if isinstance(e, BaseException)]
    for e in errors:
        if not isinstance(e, Exception):
            raise e
    # A failure that is no row's fault is the news: the rest may follow from it.
    errors.sort(key=lambda e: not isinstance(e, RaypipeError))
    return came, errors[0] if errors else None  # type: ignore[return-value]


async def in_pieces(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends all rows at once, then, if that raises, in pieces of the square root of their number, then the
    rows of a piece that raises alone: what came, and the first error. For models that compute a batch at a
    time, of which nothing comes when it raises. Where no piece comes, rows are not tried alone."""
    came: Came = []
    error: Exception | None = None
    broken = [list(rows)]
    for size in (len(rows), math.isqrt(len(rows)), 1):
        pieces = [piece[at : at + size] for piece in broken for at in range(0, len(piece), size)]
        broken, error = [], None
        for piece in pieces:
            try:
                came.append((piece, await send(piece)))
            except Exception as e:
                error = e
                broken.append(piece)
                # Fewer rows may fare better, unless the error is no row's.
                if isinstance(e, RaypipeError) and not isinstance(e, OutOfMemory):
                    return came, e
        if error is None or (size < len(rows) and not came):
            break
    return came, error


T = TypeVar("T")

Salvage: TypeAlias = Callable[[list[int], Send], Awaitable[tuple[Came, Exception | None]]]
"""Sends unknown requests, and keeps what comes where one of them raises."""

Asking: TypeAlias = SingleFlight[tuple[str, str], Any]
"""Requests in flight: (memo table, key) -> its value."""


def cached(
    kit: Kit,
    memo: Memo | None,
    tally: CallCounts,
    asking: Asking | None = None,
    clock: Callable[[], float] = time.time,
) -> Kit:
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
        table, tokens = replies_of(model), self._tally.tokens
        # A generator from outside may compute a batch at a time, as an embedder does.
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
