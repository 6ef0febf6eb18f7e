"""The models of one kind in one process, shared by every request: calls that wait are computed together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from ray import serve
from ray.util.metrics import Gauge

from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model, Role
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit, held
from raypipe.pipeline.tasks import Place

T = TypeVar("T")

TOGETHER = 16
"""Calls computed as one, at most: while one batch computes, the next gathers, so nobody waits for company.
With fifty pairs a call this is 800 pairs, some batches of any model's own."""


@dataclass(frozen=True, slots=True)
class Call:
    """One caller's inputs."""

    model: Model
    inputs: Sequence[Any]
    role: Role = "query"  # of texts to embed

    @property
    def kind(self) -> Hashable:
        """Calls of one kind can be computed together."""
        return self.model, self.role


class Models:
    """The models of one deployment, loaded before the first request."""

    async def __init__(  # type: ignore[misc]
        self, place: Place, models: Sequence[Model]
    ) -> None:
        self._chats = Gauge("raypipe_engine_chats", "that the engines of this process have not ended yet")
        # engines None: this replica is the one that holds the engine of a vLLM model.
        self._kit: LocalKit = replace(place, engines=None).kit(None)
        await held(self._kit, models)

    async def embed(self, model: Model, texts: list[str], role: Role) -> np.ndarray:
        """(texts, dim) float32, unit rows."""
        vectors: np.ndarray = await self._embed_together(Call(model, texts, role))
        return vectors

    async def embed_alone(self, model: Model, texts: list[str], role: Role) -> np.ndarray:
        """As `embed`, with nobody else's texts in the batch."""
        return await self._kit.embedder(model)(texts, role)

    async def score(self, model: Model, pairs: list[tuple[str, str]]) -> np.ndarray:
        """(pairs,) float32, bigger is better."""
        scores: np.ndarray = await self._score_together(Call(model, pairs))
        return scores

    async def score_alone(self, model: Model, pairs: list[tuple[str, str]]) -> np.ndarray:
        """As `score`, with nobody else's pairs in the batch."""
        return await self._kit.reranker(model)(pairs)

    async def generate(
        self, model: Model, chats: tuple[Chat, ...], sampling: Sampling, adapter: str | None
    ) -> list[Generated | Fault]:
        """Replies in order; without chats, returns once the engine is ready. The engine batches by itself."""
        return await self._kit.generator(model)(chats, sampling, adapter)

    async def stream(
        self, model: Model, chat: Chat, sampling: Sampling, adapter: str | None
    ) -> AsyncIterator[str | Generated | Fault]:
        """The pieces of one reply, then the whole of it or its fault."""
        async for piece in self._kit.stream(model, chat, sampling, adapter):
            yield piece

    async def compute_together(self, calls: int) -> None:
        """From now on at most so many calls are computed as one."""
        for batched in (self._embed_together, self._score_together):
            batched.set_max_batch_size(calls)

    async def ready(self) -> None:
        """Returns while models can compute."""
        await self._kit.healthy()

    async def unfinished(self) -> int:
        """Chats that the engines of this replica are writing, or have waiting."""
        return self._kit.unfinished()

    async def check_health(self) -> None:
        """Asked by Serve every few seconds; a replica whose engine is dead is replaced."""
        await self._kit.healthy()
        self._chats.set(self._kit.unfinished())

    @serve.batch(max_batch_size=TOGETHER, batch_wait_timeout_s=0)  # type: ignore[untyped-decorator]
    async def _embed_together(self, calls: list[Call]) -> list[np.ndarray]:
        async def embed(call: Call, texts: list[Any]) -> np.ndarray:
            return await self._kit.embedder(call.model)(texts, call.role)

        return await together(calls, embed)

    @serve.batch(max_batch_size=TOGETHER, batch_wait_timeout_s=0)  # type: ignore[untyped-decorator]
    async def _score_together(self, calls: list[Call]) -> list[np.ndarray]:
        async def score(call: Call, pairs: list[Any]) -> np.ndarray:
            return await self._kit.reranker(call.model)(pairs)

        return await together(calls, score)


async def together(calls: Sequence[Call], compute: Callable[[Call, list[Any]], Any]) -> list[np.ndarray]:
    """Each call's rows, computed in one batch for each kind."""
    kinds: dict[Hashable, list[int]] = {}
    for i, call in enumerate(calls):
        kinds.setdefault(call.kind, []).append(i)
    found: dict[int, np.ndarray] = {}
    for at in kinds.values():
        rows = await compute(calls[at[0]], [x for i in at for x in calls[i].inputs])
        ends = np.cumsum([len(calls[i].inputs) for i in at])[:-1]
        found.update(zip(at, np.split(rows, ends), strict=True))
    return [found[i] for i in range(len(calls))]
