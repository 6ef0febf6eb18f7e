"""vLLM engines as named Ray actors: one per model and device group, shared by all steps and blocks of a job.

The first engines of a job are permanent. `reserved` gets the resources of all these engines or of none. Ray
restarts a dead engine after a pause, which grows with each restart (`pause_s`). Only the chats in flight are
sent again. A chat that kills its engine is tried at most three times and costs only its own row. In any
process of the job, `Client.generate` is an `llm.Generator`. This module depends on Ray; the engine does not.

Further engines join and leave while a job runs (`held`, `JoiningEngines`). The driver (the process that plans
the job) announces such an engine in the cluster once its model is loaded. The announcement has a token, which
differs for each start of the engine. Callers look for announcements at most every `LOOK_S` seconds. If the
engine leaves, `generators.routed` sends its chats to other engines.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypipe.core.errors import ClusterTooSmall, ConfError, RaypipeError, Unavailable
from raypipe.core.llm import STEP, Alone, Chat, Chats, Generated, Generator, Replies, Sampling
from raypipe.core.records import Fault
from raypipe.core.single_flight import SingleFlight
from raypipe.models.generators import EngineGone

RESTARTS = 12  # most restarts of an engine: four chats that kill it, or a broken machine, fail the job
LONGEST_PAUSE_S, WINDOW_S = 60.0, 600.0  # pause: 1, 2, 4, ... up to 60 s, by restarts in ten minutes


class EngineProtocol(Protocol):
    """Methods of an engine that its actor calls, as `models.engine.Engine` has them."""

    async def ready(self) -> None: ...
    async def generate(
        self, chats: Chats, sampling: Sampling, adapter: str | None, alone: Alone | None
    ) -> Replies: ...
    def close(self) -> None: ...


Make: TypeAlias = Callable[[], EngineProtocol]
"""Maker of an engine inside its actor. It is pickled: a function of a module, or a partial of one."""


def pause_s(starts: Sequence[float], now: float, longest: float = LONGEST_PAUSE_S) -> float:
    """Returns the seconds to wait before an engine is started again. `starts` are the times of the engine's
    starts, including `now`. The pause doubles with each restart in ten minutes.

    >>> [pause_s([0.0] * n, 1.0) for n in (1, 2, 3, 5, 9)], pause_s([0.0, 1.0, 2000.0], 2000.0)
    ([0.0, 1.0, 2.0, 8.0, 60.0], 0.0)
    """
    restarts = sum(now - start < WINDOW_S for start in starts) - 1
    return 0.0 if restarts < 1 else min(longest, 2.0 ** (restarts - 1))


def suspect(name: str, call: str) -> None:
    _internal_kv_put(f"raypipe-suspect-{name}", call, overwrite=True)


def suspected(name: str) -> str:
    """Returns the id of the last call that had an engine to itself; "" if there was none."""
    return (_internal_kv_get(f"raypipe-suspect-{name}") or b"").decode()


class EngineActor:
    def __init__(self, make: Make, name: str, longest_pause_s: float) -> None:
        """Keeps the settings. Makes no engine, since Ray would report an error here as the actor's death."""
        self._make, self._name, self._longest_pause_s = make, name, longest_pause_s
        self._engine: EngineProtocol | None = None
        self._making = asyncio.Lock()
        self._in_flight: SingleFlight[tuple[Chat, Sampling, str | None], Generated | Fault] = SingleFlight()

    async def _open(self) -> EngineProtocol:
        async with self._making:
            if self._engine is None:
                key, now = f"raypipe-starts-{self._name}", time.time()
                starts = [*json.loads(_internal_kv_get(key) or b"[]"), now][-RESTARTS:]
                _internal_kv_put(key, json.dumps(starts), overwrite=True)
                await asyncio.sleep(pause_s(starts, now, self._longest_pause_s))
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
        """Never returns, so a pending call ends only with the actor's death."""
        await asyncio.Event().wait()

    async def generate(
        self, chats: Chats, sampling: Sampling, adapter: str | None = None, alone: str = ""
    ) -> Replies:
        """Replies to chats. Computes equal requests in flight once. `alone` is the id of a call that must run
        without other chats in the engine; a call with "" may share the engine."""
        engine = await self._open()
        if alone:
            return await engine.generate(chats, sampling, adapter, lambda: suspect(self._name, alone))
        keys = [(chat, sampling, adapter) for chat in dict.fromkeys(chats)]

        async def ask(places: list[int]) -> Replies:
            return await engine.generate([keys[i][0] for i in places], sampling, adapter, None)

        replies = dict(zip(keys, await self._in_flight.of(keys, ask), strict=True))
        return [replies[chat, sampling, adapter] for chat in chats]

    async def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


NAMESPACE = "raypipe"
CALL = 32  # chats in one call: a lost call is sent again whole; smaller calls cost more messages
CLOSE_S = 30.0  # limit on the orderly end of an engine
CALLS = 1000  # concurrent calls of one engine; they wait in vLLM's queue, where they share batches


class EngineRaised(Exception):
    """An exception inside an engine: a defect, or a chat that the engine cannot accept."""


def name_of(identity: str, group: int = 0) -> str:
    return f"engine-{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{group}"


Needs: TypeAlias = Mapping[str, float]
"""CPU and GPU that Ray reserves for one engine, without the core of vLLM's own worker."""

Group: TypeAlias = tuple[Any, int]
"""A placement group and the number of the engine's bundle in it."""


def start_actor(
    name: str,
    make: Make,
    place: Needs,
    group: Group | None = None,
    longest_pause_s: float = LONGEST_PAUSE_S,
    permanent: bool = True,
) -> Client:
    """Starts the named engine unless it runs. Returns its client without waiting for the start.

    `make` makes the engine in the actor, and `place` names the CPUs and GPUs that the engine needs. `group`
    is the reserved bundle to run in; None means any place. `longest_pause_s` limits the pause before a
    restart. An engine that is not `permanent` may leave, and is not restarted if it dies."""
    where = PlacementGroupSchedulingStrategy(group[0], group[1]) if group else "DEFAULT"
    actor = ray.remote(EngineActor).options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        num_cpus=place.get("CPU", 0),
        num_gpus=place.get("GPU", 0),
        scheduling_strategy=where,
        max_concurrency=CALLS,
        max_restarts=RESTARTS if permanent else 0,
        max_task_retries=1 if permanent else 0,
    )
    return Client(actor.remote(make, name, longest_pause_s), name, permanent)


def find(name: str, permanent: bool = True) -> Client:
    """Returns a client of a running engine. If none runs, raises ConfError for a `permanent` engine, else
    EngineGone."""
    try:
        return Client(ray.get_actor(name, namespace=NAMESPACE), name, permanent)
    except ValueError as e:
        if not permanent:
            raise EngineGone(name) from e
        raise ConfError(f"no engine named {name} in this cluster: jobs start engines before blocks") from e


class Client:
    """Client of a named engine. The client can be pickled and sent to other processes of the job."""

    def __init__(self, handle: Any, name: str, permanent: bool) -> None:
        self._handle, self._name, self._permanent = handle, name, permanent

    def loading(self) -> Any:
        return self._handle.ready.remote()

    def lives(self) -> Any:
        """Returns an object reference that becomes ready when the engine dies."""
        return self._handle.forever.remote()

    def ready(self) -> None:
        """Waits until the engine has loaded. If it cannot load, ends the actor and raises ConfError,
        ModelMissing or Unavailable."""
        try:
            ray.get(self._handle.ready.remote())
        except BaseException as e:  # also if the waiting caller is stopped, since only it can end the engine
            ray.kill(self._handle)
            if not isinstance(e, RayTaskError):
                raise
            if isinstance(e.cause, RaypipeError):
                raise e.cause from e
            raise Unavailable(f"the engine {self._name} could not be started: {e.cause!r}") from e

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        parts = [chats[i : i + CALL] for i in range(0, len(chats), CALL)]
        replies = await asyncio.gather(*(self._call(part, sampling, adapter) for part in parts))
        return [reply for part in replies for reply in part]

    def close(self) -> None:
        """Ends the engine and its actor for all clients. No process remains."""
        try:
            with suppress(RayActorError, RayTaskError, GetTimeoutError):  # dead or stuck
                ray.get(self._handle.close.remote(), timeout=CLOSE_S)
        finally:
            ray.kill(self._handle)

    async def _call(self, chats: Chats, sampling: Sampling, adapter: str | None) -> Replies:
        try:
            return await self._request(self._handle.generate, chats, sampling, adapter)
        except RayActorError as e:
            if not self._permanent:
                raise EngineGone(self._name) from e
            # The engine died twice. A chat of this call may have killed it, or one of another call in flight.
            return [await self._alone(chat, sampling, adapter) for chat in chats]

    async def _alone(self, chat: Chat, sampling: Sampling, adapter: str | None) -> Generated | Fault:
        """Sends a chat a third time, as the only chat in the engine. If the engine dies while it computes
        this chat, the chat gets a final fault. If it dies before it computes the chat, the chat is sent
        again. If Ray has given up restarting the engine, the chat gets a transient fault."""
        once = self._handle.generate.options(max_task_retries=0)
        while True:
            try:
                await self._handle.ready.options(max_task_retries=-1).remote()
            except RayActorError as e:
                return Fault(STEP, "engine_lost", f"the engine died {RESTARTS} times: {e}", transient=True)
            call = uuid.uuid4().hex
            try:
                return (await self._request(once, [chat], sampling, adapter, call))[0]
            except RayActorError:
                if suspected(self._name) == call:
                    detail = "the engine died of this chat, three times"
                    return Fault(STEP, "kills_engine", detail, transient=False)

    async def _request(self, method: Any, *args: Any) -> Replies:
        ref = method.remote(*args)
        try:
            replies: Replies = await ref
        except asyncio.CancelledError:
            ray.cancel(ref)  # else the engine would keep computing for no caller
            raise
        except RayTaskError as e:
            own = isinstance(e.cause, RaypipeError)
            raise (e.cause if own else EngineRaised(f"the engine raised {e.cause!r}")) from e
        return replies


def held(place: Needs, name: str) -> PlacementGroup | None:
    """Requests the resources of one engine, without waiting. Returns their placement group, or None if the
    engine needs no resources. The group's name in Ray's state begins with `name`."""
    bundle = _bundle(place)
    return _group([bundle], name) if bundle else None


@contextmanager
def reserved(places: Sequence[Needs], wait_s: float, name: str = "engines") -> Iterator[list[Group | None]]:
    """Reserves the resources of all engines, or of none, until the with block ends. So two jobs cannot block
    each other, each with half of its engines. Yields a group per engine, and None for an engine that needs no
    resources. Raises ClusterTooSmall if the cluster does not grant the resources within `wait_s` seconds."""
    bundles = list(map(_bundle, places))
    taken = [b for b in bundles if b]
    if not taken:
        yield [None] * len(places)
        return
    group = _group(taken, name)
    try:
        if not group.wait(wait_s):
            free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            raise ClusterTooSmall(
                f"{len(taken)} engines need {taken} and did not get it within {wait_s:g} s: free is {free}. "
                "Wait for other work to end, or change engines.wait_s or `engines` in the cluster file"
            )
        numbers = itertools.count()
        yield [(group, next(numbers)) if b else None for b in bundles]
    finally:
        remove_placement_group(group)


def _bundle(place: Needs) -> dict[str, float]:
    return {kind: n for kind, n in place.items() if n}


def _group(bundles: list[dict[str, float]], name: str) -> PlacementGroup:
    return placement_group(bundles, strategy="PACK", name=f"{name}-{uuid.uuid4().hex}")


LOOK_S = 2.0  # seconds between two reads of the announcements; a read takes Ray's head a millisecond


def announce(name: str, token: str) -> None:
    _internal_kv_put(_key(name), token, overwrite=True)


def withdraw(name: str) -> None:
    _internal_kv_del(_key(name))


def _key(name: str) -> str:
    return f"raypipe-engine-{name}"


class JoiningEngines:
    """Engines that join and leave during a job, as one process sees them."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Keeps `names`, the engines that may join. The methods number the engines by this list."""
        self._names, self._clock = names, clock
        self._looked = float("-inf")
        self._up: dict[int, str] = {}  # number -> token of the engine's start
        self._clients: dict[int, tuple[str, Client]] = {}  # number -> token of the engine's start, client

    def up(self) -> list[int]:
        if self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            tokens = [_internal_kv_get(_key(name)) for name in self._names]
            self._up = {n: token.decode() for n, token in enumerate(tokens) if token}
        return list(self._up)

    def generator(self, number: int) -> Generator:
        async def generate(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            token = self._up.get(number, "")
            try:
                if number not in self._clients or self._clients[number][0] != token:
                    self._clients[number] = token, find(self._names[number], permanent=False)
                return await self._clients[number][1].generate(chats, sampling, adapter)
            except EngineGone:
                self._up.pop(number, None)  # counts as down until the next look
                raise

        return generate
