"""A vLLM engine in this process: started by the first call, and again after it died.

Importing this module imports no vLLM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from raypipe.core.errors import Unavailable
from raypipe.core.llm import STEP, Chat, Chats, Generated, Replies, ReplyPieces, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.device import loading
from raypipe.models.engine import Engine, EngineDied
from raypipe.models.hosts import EngineLimits
from raypipe.text.thoughts import DraftText


class OwnEngine:
    def __init__(
        self,
        model: Model,
        limits: EngineLimits,
        started: Callable[[float], None],
        sink: Callable[[str], None] | None = None,
    ) -> None:
        """`started` gets the seconds that a start took, `sink` the pieces of a reply whose chat is sent
        alone."""
        self._model, self._limits, self._starting = model, limits, asyncio.Lock()
        self._told, self._sink = started, sink
        self._engine: Any = None  # where it runs

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        """A reply or a transient fault for each chat."""
        if self._sink is not None and len(chats) == 1:
            return [await self._told_on(self._sink, chats[0], sampling, adapter)]
        engine = await self._running()
        try:
            replies: Replies = await engine.generate(chats, sampling, adapter)
            return replies
        except EngineDied as e:
            return [await self._on_engine_death(engine, e)] * len(chats)

    async def stream(self, chat: Chat, sampling: Sampling, adapter: str | None = None) -> ReplyPieces:
        """The pieces of a reply, then the whole reply or its fault."""
        engine = await self._running()
        try:
            async for piece in engine.stream(chat, sampling, adapter):
                yield piece
        except EngineDied as e:
            yield await self._on_engine_death(engine, e)

    async def healthy(self) -> None:
        """Returns while the engine is alive, or was not started. Raises Unavailable."""
        if (engine := self._engine) is not None:
            try:
                await engine.healthy()
            except EngineDied as e:
                raise Unavailable(f"an engine of this process: {e}") from e

    def unfinished(self) -> int:
        return 0 if self._engine is None else int(self._engine.unfinished())

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    async def _told_on(
        self, sink: Callable[[str], None], chat: Chat, sampling: Sampling, adapter: str | None
    ) -> Generated | Fault:
        draft = DraftText(thinking=self._model.thought_tokens > 0)
        async for piece in self.stream(chat, sampling, adapter):
            if text := draft.add(piece) if isinstance(piece, str) else draft.rest():
                sink(text)
        assert not isinstance(piece, str)  # the last one is the reply
        return piece

    async def _running(self) -> Any:
        async with self._starting:
            if self._engine is None:
                start = time.perf_counter()
                with loading(self._model.path, self._limits.device):
                    self._engine = Engine(self._model, self._limits)
                    await self._engine.ready()
                self._told(time.perf_counter() - start)
            return self._engine

    async def _on_engine_death(self, engine: Any, died: Exception) -> Fault:
        """The fault of calls to an engine that died; the next call starts another."""
        if self._engine is engine:
            await self.close()
        return Fault(STEP, "engine_lost", str(died), transient=True)
