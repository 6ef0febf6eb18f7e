"""Calls to a deployment: retried if a replica died, cancelled if the caller stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable

MAX_ATTEMPTS = 3
"""Of one call. Models are pure functions, so a retry is safe; an input that kills its replica kills at most
this many, and one more wherever a replica dies before it has accepted the call: Serve resends that by itself.
Last attempts run one at a time, so a call that met such an input twice does not meet it again."""

REPLICA_DIED = (RayActorError, ReplicaUnavailableError)


class RetryingHandle:
    """A method of a deployment that is retried if its replica dies, from then on with `unbatched`."""

    def __init__(self, handle: DeploymentHandle, method: str, unbatched: str | None = None) -> None:
        self._handle, self._method, self._unbatched = handle, method, unbatched or method
        self._last_attempt = asyncio.Lock()

    async def remote(self, *args: Any) -> Any:
        """The result. Raises Unavailable, Overloaded, and what the method raises."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            # Every call in the batch of a replica that died is a suspect: from here on each goes alone.
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
            response.cancel()  # else the model computes for no caller
            raise

    async def stream(self, *args: Any) -> AsyncIterator[Any]:
        """What the method yields. Never retried: the pieces already sent cannot be taken back."""
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
        """The error as one of raypipe's, if it has a counterpart."""
        if isinstance(error, BackPressureError):
            return Overloaded(f"{self._handle.deployment_name}: {error}")
        if isinstance(error, DeploymentUnavailableError):
            return self._unavailable(str(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        return cause if isinstance(cause, RaypipeError) else error

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._handle.deployment_name}: {why}")


class Broadcast:
    """A method of a deployment, called in every replica that runs; one that dies has nothing left to do."""

    def __init__(self, handle: DeploymentHandle, method: str) -> None:
        self._handle, self._method = handle, method

    async def remote(self, *args: Any) -> None:
        """Returns when all replicas have. Raises what the method raises."""
        results = await self._handle.broadcast(self._method, *args).results_async(return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, REPLICA_DIED):
                raise result
