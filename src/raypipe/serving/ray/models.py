"""Deployments of models, and the handles that call them. A replica has models of one kind, and computes calls
for vectors or scores in batches. A call is cancelled if its caller leaves. A call that is no stream is
retried if its replica dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Gauge

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model, Role
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit, warm_up

MICRO_BATCH = 16
"""Most calls in one batch. The next batch collects while one computes, so no call waits for others to arrive.
With fifty pairs per call this is 800 pairs, several batches of a model."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    model: Model
    inputs: Sequence[Any]
    role: Role = "query"  # role of texts to embed


class ModelDeployment:
    """The models of one deployment, loaded before the first request."""

    async def __init__(self, kit: Callable[[], LocalKit], models: Sequence[Model]) -> None:  # type: ignore[misc]
        what = "Chat requests queued or running in this process's engines."
        self._chats = Gauge("raypipe_engine_chats", what)
        self._kit = kit()
        await warm_up(self._kit, models)

    async def compute(self, model: Model, inputs: list[Any], role: Role = "query") -> np.ndarray:
        """Computes the vectors of texts or the scores of pairs. Concurrent calls share one batch."""
        return rows_of(await self._batched(ModelCall(model, inputs, role)))

    async def compute_unbatched(self, model: Model, inputs: list[Any], role: Role = "query") -> np.ndarray:
        """Computes the same as `compute`, in a batch of this call only."""
        if model.kind == "embedder":
            return await self._kit.embedder(model)(inputs, role)
        return await self._kit.reranker(model)(inputs)

    async def generate(
        self, model: Model, chats: tuple[Chat, ...], sampling: Sampling, adapter: str | None
    ) -> list[Generated | Fault]:
        """Generates a reply to each chat, in order; without chats, waits until the engine is ready."""
        return await self._kit.generator(model)(chats, sampling, adapter)

    async def stream(
        self, model: Model, chat: Chat, sampling: Sampling, adapter: str | None
    ) -> AsyncIterator[str | Generated | Fault]:
        """Yields the pieces of one reply, then the whole reply or its fault."""
        async for piece in self._kit.stream(model, chat, sampling, adapter):
            yield piece

    async def set_micro_batch(self, calls: int) -> None:
        self._batched.set_max_batch_size(calls)

    async def keep(self, models: tuple[Model, ...]) -> None:
        await self._kit.keep(models)

    async def ready(self) -> None:
        """Raises Unavailable if an engine is dead, or a server did not answer its last call."""
        await self._kit.healthy()
        if names := await self._kit.unavailable():
            raise Unavailable(f"no answer from the server of {', '.join(names)}")

    async def unfinished(self) -> int:
        return self._kit.unfinished()

    async def check_health(self) -> None:
        """Raises if an engine is dead. Serve calls it every few seconds, and then replaces the replica."""
        await self._kit.healthy()
        self._chats.set(self._kit.unfinished())

    @serve.batch(max_batch_size=MICRO_BATCH, batch_wait_timeout_s=0)  # type: ignore[untyped-decorator]
    async def _batched(self, calls: list[ModelCall]) -> list[np.ndarray | Exception]:
        return await micro_batch(calls, lambda c, inputs: self.compute_unbatched(c.model, inputs, c.role))


async def micro_batch(
    calls: Sequence[ModelCall], compute: Callable[[ModelCall, list[Any]], Any]
) -> list[np.ndarray | Exception]:
    """Computes calls in one batch per model and role. Returns the rows of each call, or the exception that
    its batch raised."""
    batches: dict[tuple[Model, Role], list[int]] = {}
    for i, call in enumerate(calls):
        batches.setdefault((call.model, call.role), []).append(i)
    results: dict[int, np.ndarray | Exception] = {}
    for at in batches.values():
        try:
            rows = await compute(calls[at[0]], [x for i in at for x in calls[i].inputs])
        except Exception as e:
            results.update(dict.fromkeys(at, e))
            continue
        ends = np.cumsum([len(calls[i].inputs) for i in at])[:-1]
        results.update(zip(at, np.split(rows, ends), strict=True))
    return [results[i] for i in range(len(calls))]


def rows_of(result: np.ndarray | Exception) -> np.ndarray:
    """Returns `result`, the rows of one call of a batch. Raises `result` if it is an exception."""
    if isinstance(result, Exception):
        raise result
    return result


MAX_ATTEMPTS = 3
"""Attempts per call. Models are pure functions, so a retry is safe. An input that kills replicas kills at
most this many, and one more for each replica that dies before it accepts the call, since Serve resends such a
call. The last attempts of one handle run one at a time. So if an input killed the replica of another call
twice, their last attempts through this handle do not run together."""

REPLICA_DIED = (RayActorError, ReplicaUnavailableError)


class RetryingHandle:
    """A method of a deployment that is called again if its replica dies. It is also called again if its batch
    raises an error that is not raypipe's, because the input of another call may be the cause. Retries call
    the method `unbatched`. If `unbatched` is None, they call the same method, and only after a death."""

    def __init__(self, handle: DeploymentHandle, method: str, unbatched: str | None = None) -> None:
        self._handle, self._method, self._unbatched = handle, method, unbatched or method
        self._last_attempt = asyncio.Lock()

    async def remote(self, *args: Any) -> Any:
        """Calls the method and returns its result. Raises Unavailable, Overloaded, or the method's error."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            # Any call in a dead replica's batch may have killed it: each retry computes only its own inputs.
            method = self._method if attempt == 1 else self._unbatched
            try:
                async with self._last_attempt if attempt == MAX_ATTEMPTS else nullcontext():
                    return await self._call(method, args)
            except REPLICA_DIED as e:
                if attempt == MAX_ATTEMPTS:
                    raise self._unavailable(f"{MAX_ATTEMPTS} replicas died of it: {e}") from e
            except Exception as e:
                own = self._own_error(e)
                if method == self._unbatched or isinstance(own, RaypipeError):
                    raise own from e
                # Another call's input may have broken the batch.
        raise AssertionError("the last attempt returns or raises")

    async def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        response = getattr(self._handle, method).remote(*args)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()  # else the model would compute without a caller
            raise

    async def stream(self, *args: Any) -> AsyncIterator[Any]:
        """Yields the results of a streaming method. Is never retried, since sent pieces cannot be taken back;
        raises as `remote` does."""
        response = getattr(self._handle.options(stream=True), self._method).remote(*args)
        ended = False
        try:
            async for piece in response:
                yield piece
            ended = True
        except REPLICA_DIED as e:
            raise self._unavailable(f"its replica died: {e}") from e
        except Exception as e:
            raise self._own_error(e) from e
        finally:
            if not ended:
                response.cancel()

    def _own_error(self, error: Exception) -> Exception:
        """Returns the error of raypipe that corresponds to `error`, or `error` itself if there is none."""
        if isinstance(error, BackPressureError):
            return Overloaded(f"{self._handle.deployment_name}: {error}")
        if isinstance(error, DeploymentUnavailableError):
            return self._unavailable(str(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        return cause if isinstance(cause, RaypipeError) else error

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._handle.deployment_name}: {why}")


class Broadcast:
    """A method of a deployment that is called in every running replica. Replicas that die are ignored."""

    def __init__(self, handle: DeploymentHandle, method: str) -> None:
        self._handle, self._method = handle, method

    async def remote(self, *args: Any) -> None:
        """Calls the method in all replicas and waits for them. Raises the first error of the method."""
        results = await self._handle.broadcast(self._method, *args).results_async(return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, REPLICA_DIED):
                raise result
