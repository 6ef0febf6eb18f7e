"""Calls from the gateway to a deployment: asked again where a replica died, ended where nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable

TRIES = 3
"""Of one call. Models are pure functions, so asking again is safe; an input that kills its replica kills no
more than this many. Last tries go one by one, so whoever met such an input twice does not meet it again."""

LOST = (RayActorError, ReplicaUnavailableError)


class Calls:
    """A method of a deployment, with the one that is asked when the first try cost its replica."""

    def __init__(self, handle: DeploymentHandle, method: str, alone: str | None = None) -> None:
        self._handle, self._method, self._alone = handle, method, alone or method
        self._last = asyncio.Lock()

    async def remote(self, *args: Any) -> Any:
        """The result. Raises Unavailable, Overloaded, and what the method raises."""
        for attempt in range(1, TRIES + 1):
            # Whoever was in the batch of a replica that died is a suspect: from here on each goes alone.
            name = self._method if attempt == 1 else self._alone
            try:
                async with self._last if attempt == TRIES else nullcontext():
                    return await self._asked(name, args)
            except LOST as e:
                if attempt == TRIES:
                    raise self._away(f"{TRIES} replicas died of it: {e}") from e
            except Exception as e:
                own = self._own(e)
                if name == self._alone or isinstance(own, RaypipeError):
                    raise own from e
                # The input of somebody else in the batch may be what broke it.
        raise AssertionError("the last try returns or raises")

    async def _asked(self, name: str, args: tuple[Any, ...]) -> Any:
        response = getattr(self._handle, name).remote(*args)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()  # else the model goes on for nobody
            raise

    async def stream(self, *args: Any) -> AsyncIterator[Any]:
        """What the method yields. Not asked again: what was heard cannot be taken back."""
        response = getattr(self._handle.options(stream=True), self._method).remote(*args)
        ended = False
        try:
            async for piece in response:
                yield piece
            ended = True
        except LOST as e:
            raise self._away(f"its replica died: {e}") from e
        except Exception as e:
            raise self._own(e) from e
        finally:
            if not ended:
                response.cancel()

    def _own(self, error: Exception) -> Exception:
        """What was raised, in our terms where it has one."""
        if isinstance(error, BackPressureError):
            return Overloaded(f"{self._handle.deployment_name}: {error}")
        if isinstance(error, DeploymentUnavailableError):
            return self._away(str(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        return cause if isinstance(cause, RaypipeError) else error

    def _away(self, why: str) -> Unavailable:
        return Unavailable(f"{self._handle.deployment_name}: {why}")
