"""Engines that come and go while a job runs, next to those that stay.

Who starts one announces it in the cluster once it has loaded its model, under a token of that start; who asks
looks every `LOOK_S`. What was in flight on one that goes is sent to one that stays (`engine_routing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from raypipe.core.llm import Chats, Generator, Replies, Sampling
from raypipe.models.engine_actors import Client, find
from raypipe.models.engine_routing import EngineGone

LOOK_S = 2.0  # between two looks of a process: a request to Ray's head takes a millisecond


def announce(name: str, token: str) -> None:
    _internal_kv_put(_key(name), token, overwrite=True)


def withdraw(name: str) -> None:
    _internal_kv_del(_key(name))


def _key(name: str) -> str:
    return f"raypipe-engine-{name}"


class JoiningEngines:
    """The engines of these names that are up, as one process sees them."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names, self._clock = names, clock
        self._looked = float("-inf")
        self._up: dict[int, str] = {}  # number -> token
        self._clients: dict[int, tuple[str, Client]] = {}  # number -> token of its start, client

    def up(self) -> list[int]:
        if self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            found = {n: _internal_kv_get(_key(name)) for n, name in enumerate(self._names)}
            self._up = {n: token.decode() for n, token in found.items() if token}
        return list(self._up)

    def generator(self, number: int) -> Generator:
        async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            token = self._up.get(number, "")
            try:
                if number not in self._clients or self._clients[number][0] != token:
                    self._clients[number] = token, find(self._names[number], stays=False)
                return await self._clients[number][1].generate(chats, sampling, adapter)
            except EngineGone:
                self._up.pop(number, None)  # until the next look
                raise

        return generate
