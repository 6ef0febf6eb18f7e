"""Generators over other generators: chats routed among equal engines, and refused chats judged.

An engine caches the keys and values of prompts, so chats that begin alike go to the same one. The choice is
by rendezvous hashing (Thaler and Ravishankar 1998), with loads bounded as in Mirrokni, Thorup and
Zadimoghaddam 2018: no engine gets more than a fixed factor of the mean.

A server may refuse every chat, for a field that it does not know or a limit that is reached. So a refusal is
its chat's own only if the model then takes another chat, of one word, with the same sampling.

Knows texts, counts and the contract of generators; no engine, no model and no HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from raypipe.core.llm import Chat, Chats, Generated, Generator, Message, Replies, Sampling
from raypipe.core.records import Fault

HEADS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Characters of the first user message that may say which context it is; 2,048 are some 500 tokens, 32 of
vLLM's blocks. Fixed lengths, so that questions of different lengths about one context have one in common."""

TAIL = 0.3  # share of a message that may be its question and what follows: it is no part of the context

SPREAD = 1.15  # most in flight on one engine, as a factor of the mean: results within 20 % of each other
BEHIND = 1.5  # a context moves when its engine has this many times the mean in flight; of two, none has 2
COMMON = 32  # chats that begin alike: instructions, or a context that every engine may as well read
KEPT = 16384  # prefixes in one process, the least recently used are dropped first; some 4 MB


class EngineGone(Exception):
    """An engine that need not stay has died or was ended: others take its chats."""


def prefixes(chat: Chat) -> tuple[str, str]:
    """The prefixes that chats about the same evidence share: the first user message's beginning, at two
    lengths, the longer first. Questions whose lengths differ share at least the shorter one."""
    text = next((m.content for m in chat if m.role == "user"), "")
    fitting = [h for h in HEADS if h <= (1 - TAIL) * len(text)]
    long, short = (fitting[-1], fitting[-2]) if len(fitting) > 1 else (len(text), len(text))
    return text[:long], text[:short]


@dataclass(slots=True)
class _Home:
    engine: int
    chats: int = 0


class Router:
    """Chooses among `engines` (0, 1, ...) for the chats of one process. Not for several threads."""

    def __init__(self, engines: int) -> None:
        self._in_flight = [0] * engines
        self._homes: OrderedDict[bytes, _Home] = OrderedDict()

    def choose(self, chats: Chats, among: Sequence[int] | None = None) -> list[int]:
        """Chooses an engine for each chat, which counts as in flight there until `done`. `among`: the engines
        that take chats now; None: all."""
        up = range(len(self._in_flight)) if among is None else among
        return [self._one(tuple(_key(text) for text in prefixes(chat)), up) for chat in chats]

    def done(self, engine: int, chats: int) -> None:
        self._in_flight[engine] -= chats

    @property
    def in_flight(self) -> tuple[int, ...]:
        return tuple(self._in_flight)

    def _one(self, keys: tuple[bytes, ...], up: Sequence[int]) -> int:
        mean = (sum(self._in_flight[engine] for engine in up) + 1) / len(up)
        homes = [home for key in keys if (home := self._homes.get(key)) and home.engine in up]
        known = [home for home in homes if home.chats < COMMON]
        if known and self._in_flight[known[0].engine] + 1 <= math.ceil(BEHIND * mean):
            chosen = known[0].engine
        else:
            chosen = self._first_with_room(keys[0], math.ceil(SPREAD * mean), up)
        for key in dict.fromkeys(keys):
            home = self._homes.setdefault(key, _Home(chosen))
            home.engine, home.chats = chosen, home.chats + 1
            self._homes.move_to_end(key)
            if len(self._homes) > KEPT:
                self._homes.popitem(last=False)
        self._in_flight[chosen] += 1
        return chosen

    def _first_with_room(self, key: bytes, most: int, up: Sequence[int]) -> int:
        """The first engine with room, in the key's own order. One always has room."""

        def rank(engine: int) -> bytes:
            return hashlib.blake2b(key, digest_size=8, salt=engine.to_bytes(2)).digest()

        order = sorted(up, key=rank)
        if (home := self._homes.get(key)) and home.chats >= COMMON:
            order.sort(key=lambda engine: self._in_flight[engine])
        return next(engine for engine in order if self._in_flight[engine] + 1 <= most)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def routed(
    engines: Sequence[Generator],
    passing: Sequence[Generator] = (),
    up: Callable[[], Sequence[int]] = lambda: (),
) -> Generator:
    """A generator over several equal engines: a chat goes where its prefix is cached; replies in order.

    `passing`: engines that come and go, and `up`: which of these take chats now. Where one raises because it
    went, its chats go to those that stay. For one event loop."""
    router, every = Router(len(engines) + len(passing)), [*engines, *passing]
    stay = range(len(engines))

    async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        return await shared(chats, sampling, adapter, [*stay, *(len(engines) + n for n in up())])

    async def shared(chats: Chats, sampling: Sampling, adapter: str | None, among: Sequence[int]) -> Replies:
        rows: dict[int, list[int]] = {}
        for row, engine in enumerate(router.choose(chats, among)):
            rows.setdefault(engine, []).append(row)
        replies: dict[int, Generated | Fault] = {}

        async def one(engine: int, mine: list[int]) -> None:
            sent, found = [chats[row] for row in mine], None
            try:
                found = await every[engine](sent, sampling, adapter)
            except EngineGone:
                pass  # its chats are sent again below
            finally:
                router.done(engine, len(mine))
            if found is None:
                found = await shared(sent, sampling, adapter, stay)
            replies.update(zip(mine, found, strict=True))

        await asyncio.gather(*(one(engine, mine) for engine, mine in rows.items()))
        return [replies[row] for row in range(len(chats))]

    return generate


REFUSED = "refused"  # reason of a fault: the model or its server takes no such request
READY = (Message("user", "ready"),)
OF_ALL = (
    "; a chat of one word is refused, too, so no row is to blame. Correct the model's entry or the step's "
    "fields, or name another model"
)


def proven(generate: Generator) -> Generator:
    """Wraps a generator: a refusal that no chat is to blame for becomes transient, so its row stays to do."""
    refuses: set[tuple[Sampling, str | None]] = set()  # every chat, until one is answered
    probing = asyncio.Lock()  # rows that are refused at the same time share the probe that is refused

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
