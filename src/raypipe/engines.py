"""Engines as named Ray actors: one per model and device group, shared by every step and block of a job.

`start` brings one up or finds the one that is there; `Client.generate` keeps the contract of `chat.Generate`
from any process of the job. An engine that dies is restarted, and only what was in flight is asked again. A
chat that kills its engine costs its own row and at most three attempts. Knows Ray; the engine does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from raypipe.chat import STEP, Chat, Generated, Sampling
from raypipe.errors import ConfError, RaypipeError
from raypipe.flights import Flights
from raypipe.records import Fault

NAMESPACE = "raypipe"
CALL = 32  # chats in one call: a lost call is asked again whole, and small ones cost more messages
RESTARTS = 12  # of one engine; four chats that kill it, or a machine that does, and the job is told
CLOSE_S = 30.0
CALLS = 1000  # at once on one engine; they wait in vLLM's queue, which is where they share batches


class Asked(Protocol):
    """What an actor holds: `models.engine.Engine`, or something that behaves like it."""

    async def ready(self) -> None: ...
    async def healthy(self) -> None: ...
    async def generate(
        self, chats: Sequence[Chat], sampling: Sampling, adapter: str | None, alone: bool
    ) -> list[Generated | Fault]: ...
    def stream(
        self, chat: Chat, sampling: Sampling, adapter: str | None, name: str
    ) -> AsyncIterator[str | Generated | Fault]: ...
    async def abort(self, name: str) -> bool: ...
    def close(self) -> None: ...


Make: TypeAlias = Callable[[], Asked]
"""Makes the engine inside its actor. A function of a module, or a partial of one, so that it can be sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one engine takes of the cluster."""

    cpus: float = 0.5  # its worker's own core is vLLM's business
    gpus: float = 0  # those of its tensor-parallel group, or a share of one


class EngineActor:
    """One engine in an actor of its own. The class is plain, so that a deployment can hold it as well."""

    def __init__(self, make: Make) -> None:
        """The first call makes the engine: what a constructor raises, Ray reports as a death."""
        self._make = make
        self._engine: Asked | None = None
        self._making = asyncio.Lock()
        self._flights: Flights[tuple[Chat, Sampling, str | None], Generated | Fault] = Flights()

    async def _open(self) -> Asked:
        async with self._making:
            if self._engine is None:
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

    async def check_health(self) -> None:
        if self._engine is not None:
            await self._engine.healthy()

    async def generate(
        self, chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None, alone: bool = False
    ) -> list[Generated | Fault]:
        """As `Asked.generate`. Equal requests of any callers are asked once while in flight."""
        engine = await self._open()
        if alone:
            return await engine.generate(chats, sampling, adapter, alone)
        keys = [(chat, sampling, adapter) for chat in dict.fromkeys(chats)]

        async def ask(places: list[int]) -> list[Generated | Fault]:
            return await engine.generate([keys[i][0] for i in places], sampling, adapter, False)

        found = dict(zip(keys, await self._flights.of(keys, ask), strict=True))
        return [found[chat, sampling, adapter] for chat in chats]

    async def stream(
        self, chat: Chat, sampling: Sampling, adapter: str | None, name: str
    ) -> AsyncIterator[str | Generated | Fault]:
        async for piece in (await self._open()).stream(chat, sampling, adapter, name):
            yield piece

    async def abort(self, name: str) -> bool:
        return self._engine is not None and await self._engine.abort(name)

    async def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def name_of(identity: str, group: int = 0) -> str:
    """An engine's name in the cluster: by what it computes, and which of several it is."""
    return f"engine-{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{group}"


def start(name: str, make: Make, place: Place) -> Client:
    """The engine of that name, brought up if it is not there. Raises ConfError or ModelMissing where it
    cannot be. Takes as long as loading does; other callers of the same name wait for the same one."""
    actor = ray.remote(EngineActor).options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        num_cpus=place.cpus,
        num_gpus=place.gpus,
        max_concurrency=CALLS,
        max_restarts=RESTARTS,
        max_task_retries=1,
    )
    handle = actor.remote(make)
    try:
        ray.get(handle.ready.remote())
    except RayTaskError as e:
        ray.kill(handle)
        raise _own(e) from e
    except BaseException:  # whoever waited was stopped: nobody else would end it
        ray.kill(handle)
        raise
    return Client(handle)


def find(name: str) -> Client:
    """The engine of that name. Raises ConfError if the job started none."""
    try:
        return Client(ray.get_actor(name, namespace=NAMESPACE))
    except ValueError as e:
        raise ConfError(
            f"no engine named {name} in this cluster: the job starts engines before blocks"
        ) from e


class Client:
    """An engine as a caller sees it. May be sent to other processes of the job."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def generate(
        self, chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
    ) -> list[Generated | Fault]:
        """As `chat.Generate`."""
        parts = [chats[i : i + CALL] for i in range(0, len(chats), CALL)]
        replies = await asyncio.gather(*(self._call(part, sampling, adapter) for part in parts))
        return [reply for part in replies for reply in part]

    async def stream(
        self, chat: Chat, sampling: Sampling, adapter: str | None = None
    ) -> AsyncIterator[str | Generated | Fault]:
        """As `Engine.stream`. Not asked again when the engine dies: what was heard cannot be taken back."""
        name, last = uuid.uuid4().hex, False
        streaming = self._handle.stream.options(num_returns="streaming", max_task_retries=0)
        try:
            async for ref in streaming.remote(chat, sampling, adapter, name):
                piece = await ref
                last = not isinstance(piece, str)
                yield piece
        except RayTaskError as e:
            raise _own(e) from e
        except RayActorError as e:
            last = True
            yield Fault(STEP, "engine_lost", f"the engine died while it wrote: {e}", transient=True)
        finally:
            if not last:  # Ray does not tell the actor that nobody listens
                self._handle.abort.remote(name)

    def close(self) -> None:
        """Ends the engine and its actor, for everyone: no process is left."""
        try:
            ray.get(self._handle.close.remote(), timeout=CLOSE_S)
        except (RayActorError, RayTaskError, GetTimeoutError):
            pass  # dead or stuck: killing it is what is left
        finally:
            ray.kill(self._handle)

    async def _call(
        self, chats: Sequence[Chat], sampling: Sampling, adapter: str | None
    ) -> list[Generated | Fault]:
        try:
            return await self._asked(self._handle.generate, chats, sampling, adapter)
        except RayActorError:
            # Lost twice. One of these chats may have done it, or one of another call that was in flight.
            return [await self._alone(chat, sampling, adapter) for chat in chats]

    async def _alone(self, chat: Chat, sampling: Sampling, adapter: str | None) -> Generated | Fault:
        """A third and last attempt, with nothing else in the engine: if it dies now, this chat did it."""
        try:
            await self._handle.ready.options(max_task_retries=-1).remote()
        except RayActorError as e:
            return Fault(STEP, "engine_lost", f"the engine died {RESTARTS} times: {e}", transient=True)
        once = self._handle.generate.options(max_task_retries=0)
        try:
            return (await self._asked(once, [chat], sampling, adapter, True))[0]
        except RayActorError:
            return Fault(STEP, "kills_engine", "the engine died of this chat, three times", transient=False)

    async def _asked(self, method: Any, *args: Any) -> list[Generated | Fault]:
        ref = method.remote(*args)
        try:
            replies: list[Generated | Fault] = await ref
        except asyncio.CancelledError:
            ray.cancel(ref)  # else the engine would go on for nobody
            raise
        except RayTaskError as e:
            raise _own(e) from e
        return replies


def _own(e: RayTaskError) -> Exception:
    """What the engine raised, without Ray's wrapping, where it is an error of ours."""
    cause: Exception = e.cause
    return cause if isinstance(cause, RaypipeError) else e
