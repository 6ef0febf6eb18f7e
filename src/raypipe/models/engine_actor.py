"""The actor of a named vLLM engine: makes it after a pause, and runs calls in it, equal ones once.

What the cluster has to know of an engine that dies is recorded here: when it started, and which call was
alone in it. Who starts and calls actors is `engine_actors`. Knows Ray; the engine does not.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from raypipe.core.calls import SingleFlight
from raypipe.core.llm import Alone, Chat, Chats, Generated, Replies, Sampling
from raypipe.core.records import Fault

RESTARTS = 12  # of one engine; after four chats that kill it, or a machine that does, the job fails
LONGEST_PAUSE_S, WINDOW_S = 60.0, 600.0  # before a restart: 1, 2, 4, ... s by the restarts of ten minutes


class EngineProtocol(Protocol):
    """What an engine actor needs of an engine: `models.engine.Engine`, or a stand-in."""

    async def ready(self) -> None: ...
    async def generate(
        self, chats: Chats, sampling: Sampling, adapter: str | None, alone: Alone | None
    ) -> Replies: ...
    def close(self) -> None: ...


Make: TypeAlias = Callable[[], EngineProtocol]
"""Creates the engine inside its actor. A function of a module, or a partial of one: it is pickled."""


def pause_s(starts: Sequence[float], now: float, longest: float = LONGEST_PAUSE_S) -> float:
    """Seconds that an engine started at these times (the last is now) waits before it is made again.

    >>> [pause_s([0.0] * n, 1.0) for n in (1, 2, 3, 5, 9)], pause_s([0.0, 1.0, 2000.0], 2000.0)
    ([0.0, 1.0, 2.0, 8.0, 60.0], 0.0)
    """
    restarts = sum(now - start < WINDOW_S for start in starts) - 1
    return 0.0 if restarts < 1 else min(longest, 2.0 ** (restarts - 1))


def record_start(name: str, longest: float) -> float:
    """Records the start of a named engine in the cluster; returns the seconds to wait before it."""
    key, now = f"raypipe-starts-{name}", time.time()
    starts = [*json.loads(_internal_kv_get(key) or b"[]"), now][-RESTARTS:]
    _internal_kv_put(key, json.dumps(starts), overwrite=True)
    return pause_s(starts, now, longest)


def suspect(name: str, call: str) -> None:
    _internal_kv_put(f"raypipe-suspect-{name}", call, overwrite=True)


def suspected(name: str) -> str:
    """The last call that an engine ran alone; "" for none."""
    return (_internal_kv_get(f"raypipe-suspect-{name}") or b"").decode()


class EngineActor:
    def __init__(self, make: Make, name: str, longest_pause_s: float) -> None:
        """The first call makes the engine: what a constructor raises, Ray reports as a death."""
        self._make, self._name, self._longest_pause_s = make, name, longest_pause_s
        self._engine: EngineProtocol | None = None
        self._making = asyncio.Lock()
        self._in_flight: SingleFlight[tuple[Chat, Sampling, str | None], Generated | Fault] = SingleFlight()

    async def _open(self) -> EngineProtocol:
        async with self._making:
            if self._engine is None:
                await asyncio.sleep(record_start(self._name, self._longest_pause_s))
                engine = self._make()
                try:
                    await engine.ready()
                except BaseException:
                    engine.close()
                    raise
                self._engine = engine
        return self._engine

    async def ready(self) -> None:
        await self._open()

    async def forever(self) -> None:
        """Never answers."""
        await asyncio.Event().wait()

    async def generate(
        self, chats: Chats, sampling: Sampling, adapter: str | None = None, alone: str = ""
    ) -> Replies:
        """As `EngineProtocol.generate`. Equal requests are computed once while in flight. `alone`: the name
        of a call that runs with nothing else in the engine."""
        engine = await self._open()
        if alone:
            begun = functools.partial(suspect, self._name, alone)
            return await engine.generate(chats, sampling, adapter, begun)
        keys = [(chat, sampling, adapter) for chat in dict.fromkeys(chats)]

        async def ask(places: list[int]) -> Replies:
            return await engine.generate([keys[i][0] for i in places], sampling, adapter, None)

        found = dict(zip(keys, await self._in_flight.of(keys, ask), strict=True))
        return [found[chat, sampling, adapter] for chat in chats]

    async def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
