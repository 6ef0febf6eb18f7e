"""Wrappers of generators: `routed` spreads chats over engines, `proven` tells if a server refuses all chats.

An engine caches the keys and values of prompts, so chats that begin alike are sent to the same engine. The
engine is chosen by rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads (Mirrokni, Thorup and
Zadimoghaddam 2018): no engine gets more than a fixed factor of the mean load.

A server may refuse every chat, because of an unknown field or a reached limit. So after a refusal, `proven`
sends a one-word chat with the same sampling. The first chat is to blame only if this chat is not refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeGuard

from raypipe.core.llm import Chat, Chats, Generated, Generator, Message, Replies, Sampling
from raypipe.core.records import Fault

HEADS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Lengths, in characters of the first user message, of the prefixes that may identify its context. 2,048
characters are about 500 tokens, 32 of vLLM's blocks. The lengths are fixed, so that questions of different
lengths about one context share at least one prefix."""

TAIL = 0.3  # share of a message at its end that may be the question, so it does not identify the context

SPREAD = 1.15  # most chats in flight on one engine, as a factor of the mean: work is equal within 20 %
BEHIND = 1.5  # a context moves if its engine exceeds this factor of the mean; of two, none can exceed 2
COMMON = 32  # a prefix of this many chats is common, such as instructions: every engine may cache it
KEPT = 16384  # most prefixes of one process, about 4 MB; the least recently used are dropped first


class EngineGone(Exception):
    """Error of a call to an engine that has left during a job. Other engines take the chats of the call."""


def prefixes(chat: Chat) -> tuple[str, str]:
    """Returns two prefixes of the chat's first user message, the longer one first. Chats about the same
    evidence share both prefixes, or only the shorter one if their questions differ in length. If the message
    is short, returns the whole message twice."""
    text = next((m.content for m in chat if m.role == "user"), "")
    fitting = [h for h in HEADS if h <= (1 - TAIL) * len(text)]
    long, short = (fitting[-1], fitting[-2]) if len(fitting) > 1 else (len(text), len(text))
    return text[:long], text[:short]


@dataclass(slots=True)
class _Home:
    engine: int  # engine that got the last chat with this prefix
    chats: int = 0  # chats with this prefix so far


class Router:
    """Router of one process's chats to engines 0, 1, ... `engines` - 1. Not thread-safe."""

    def __init__(self, engines: int) -> None:
        self.in_flight = [0] * engines  # chats in each engine
        self._homes: OrderedDict[bytes, _Home] = OrderedDict()

    def choose(self, chats: Chats, among: Sequence[int] | None = None) -> list[int]:
        """Returns an engine for each chat. Each chat counts as in flight there until `done` is called.
        `among` lists the engines that accept chats now; None means all engines."""
        up = range(len(self.in_flight)) if among is None else among
        return [self._one(tuple(_key(text) for text in prefixes(chat)), up) for chat in chats]

    def done(self, engine: int, chats: int) -> None:
        self.in_flight[engine] -= chats

    def _one(self, keys: tuple[bytes, ...], up: Sequence[int]) -> int:
        mean = (sum(self.in_flight[engine] for engine in up) + 1) / len(up)
        homes = [home for key in keys if (home := self._homes.get(key)) and home.engine in up]
        known = [home for home in homes if home.chats < COMMON]
        if known and self.in_flight[known[0].engine] + 1 <= math.ceil(BEHIND * mean):
            chosen = known[0].engine
        else:
            chosen = self._first_with_room(keys[0], math.ceil(SPREAD * mean), up)
        for key in dict.fromkeys(keys):
            home = self._homes.setdefault(key, _Home(chosen))
            home.engine, home.chats = chosen, home.chats + 1
            self._homes.move_to_end(key)
            if len(self._homes) > KEPT:
                self._homes.popitem(last=False)
        self.in_flight[chosen] += 1
        return chosen

    def _first_with_room(self, key: bytes, most: int, up: Sequence[int]) -> int:
        """Returns the first engine, in the hash order of `key`, with fewer than `most` chats in flight; there
        must be one. If `COMMON` chats had this prefix, returns the least loaded engine."""

        def rank(engine: int) -> bytes:
            return hashlib.blake2b(key, digest_size=8, salt=engine.to_bytes(2)).digest()

        order = sorted(up, key=rank)
        if (home := self._homes.get(key)) and home.chats >= COMMON:
            order.sort(key=lambda engine: self.in_flight[engine])
        return next(engine for engine in order if self.in_flight[engine] + 1 <= most)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def routed(
    engines: Sequence[Generator],
    joining: Sequence[Generator] = (),
    up: Callable[[], Sequence[int]] = lambda: (),
) -> Generator:
    """Combines equal engines into one generator, which prefers the engine that has cached a chat's beginning.

    `engines` are permanent engines. `joining` are engines that join and leave. `up` returns the indices in
    `joining` of the engines that accept chats now. If an engine of `joining` raises EngineGone, its chats are
    sent to the permanent engines. Replies keep the chats' order. Use the generator on one event loop."""
    router, every = Router(len(engines) + len(joining)), [*engines, *joining]
    permanent = range(len(engines))

    async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        return await shared(chats, sampling, adapter, [*permanent, *(len(engines) + n for n in up())])

    async def shared(chats: Chats, sampling: Sampling, adapter: str | None, among: Sequence[int]) -> Replies:
        rows: dict[int, list[int]] = {}
        for row, engine in enumerate(router.choose(chats, among)):
            rows.setdefault(engine, []).append(row)
        replies: dict[int, Generated | Fault] = {}

        async def one(engine: int, mine: list[int]) -> None:
            sent, answered = [chats[row] for row in mine], None
            try:
                with suppress(EngineGone):
                    answered = await every[engine](sent, sampling, adapter)
            finally:
                router.done(engine, len(mine))
            if answered is None:
                answered = await shared(sent, sampling, adapter, permanent)
            replies.update(zip(mine, answered, strict=True))

        await asyncio.gather(*(one(engine, mine) for engine, mine in rows.items()))
        return [replies[row] for row in range(len(chats))]

    return generate


REFUSED = "refused"  # reason of a fault: the model or its server refuses the request
READY = (Message("user", "ready"),)
OF_ALL = "; one-word chats are refused, too: correct the model's entry or the step's fields"


def proven(generate: Generator) -> Generator:
    """Wraps a generator and tests each refusal with a one-word chat of the same sampling. If this chat is
    refused, too, or gets a transient fault, the refusal becomes a transient fault."""
    refuses: set[tuple[Sampling, str | None]] = set()  # refused for every chat until one is answered
    probing = asyncio.Lock()  # rows refused at the same time share one refused probe

    async def checked(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        replies, key = await generate(chats, sampling, adapter), (sampling, adapter)
        if any(isinstance(r, Generated) for r in replies):
            refuses.discard(key)
        return [
            replace(reply, detail=reply.detail + OF_ALL, transient=True)
            if _is_refusal(reply) and await refuses_all(key)
            else reply
            for reply in replies
        ]

    async def refuses_all(key: tuple[Sampling, str | None]) -> bool:
        async with probing:
            if key not in refuses:
                [probe] = await generate([READY], *key)
                if isinstance(probe, Fault) and (probe.transient or _is_refusal(probe)):
                    refuses.add(key)
            return key in refuses

    return checked


def _is_refusal(reply: Generated | Fault) -> TypeGuard[Fault]:
    return isinstance(reply, Fault) and reply.reason == REFUSED and not reply.transient
