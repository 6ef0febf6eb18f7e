"""Which of several equal engines a chat goes to: the one that has its context, unless that one falls behind.

An engine keeps the keys and values of what it has read, so chats that begin alike go to the same one. The
choice is by rendezvous hashing (Thaler and Ravishankar 1998), with loads bounded as in Mirrokni, Thorup and
Zadimoghaddam 2018: no engine gets more than a fixed factor of the mean. Knows texts and counts; no engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence

from raypipe.chat import Chat, Generate, Generated, Sampling
from raypipe.records import Fault

HEAD = 2048
"""Characters of the first user message that say which context it is: some 500 tokens, 32 of vLLM's blocks.
Less would be instructions that all chats of a step share; more would reach the question at the end."""

SPREAD = 1.15  # most in flight on one engine, as a factor of the mean: results within 20 % of each other
BEHIND = (
    1.5  # a context leaves its engine when that has this many times the mean in flight; below 2, or of two
)
# engines none could ever fall behind
REMEMBERED = 8192  # contexts of one process, the least recently used go first; 1 MB


def context_of(chat: Chat) -> str:
    """What chats about the same evidence have in common: how the first thing that a user says begins."""
    return next((m.content[:HEAD] for m in chat if m.role == "user"), "")


class Router:
    """Chooses among `engines` (0, 1, ...) for the chats of one process. Not for several threads."""

    def __init__(self, engines: int) -> None:
        self._in_flight = [0] * engines
        self._homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, contexts: Sequence[str]) -> list[int]:
        """An engine for each chat, which is in flight there till `done` is told."""
        return [self._one(context) for context in contexts]

    def done(self, engine: int, chats: int) -> None:
        """So many chats of an engine have their replies."""
        self._in_flight[engine] -= chats

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Chats on each engine that have no reply yet."""
        return tuple(self._in_flight)

    def _one(self, context: str) -> int:
        mean = (sum(self._in_flight) + 1) / len(self._in_flight)
        home = self._homes.get(context)
        if home is None or self._in_flight[home] + 1 > math.ceil(BEHIND * mean):
            home = self._first_with_room(context, math.ceil(SPREAD * mean))
        self._homes[context] = home
        self._homes.move_to_end(context)
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        self._in_flight[home] += 1
        return home

    def _first_with_room(self, context: str, most: int) -> int:
        """In an order of the engines that is the context's own, the first that has room. One always has."""
        order = sorted(range(len(self._in_flight)), key=lambda engine: _rank(context, engine))
        return next(engine for engine in order if self._in_flight[engine] + 1 <= most)


def _rank(context: str, engine: int) -> bytes:
    text = context.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8, salt=engine.to_bytes(2)).digest()


def routed(engines: Sequence[Generate]) -> Generate:
    """Several equal engines as one: a chat goes where its context was read before, and replies come in order.
    For one event loop."""
    router = Router(len(engines))

    async def generate(
        chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
    ) -> list[Generated | Fault]:
        chosen = router.choose([context_of(chat) for chat in chats])
        rows: dict[int, list[int]] = {}
        for row, engine in enumerate(chosen):
            rows.setdefault(engine, []).append(row)

        async def one(engine: int, mine: list[int]) -> list[Generated | Fault]:
            try:
                return await engines[engine]([chats[row] for row in mine], sampling, adapter)
            finally:
                router.done(engine, len(mine))

        parts = await asyncio.gather(*(one(engine, mine) for engine, mine in rows.items()))
        replies: dict[int, Generated | Fault] = {}
        for mine, part in zip(rows.values(), parts, strict=True):
            replies.update(zip(mine, part, strict=True))
        return [replies[row] for row in range(len(chats))]

    return generate
