"""The engines of a job, those that come and go among them, and tasks on one pool next to them.

The job's first engines have their places all or none. Each further one (`engines.replicas` with `min` and
`max`) has a placement group of its own, asked for only where the nodes that there are leave the workers their
room. One that dies is given up and asked for again; all of them go where another job waits for its first
engines, so that no two jobs hold half of what each needs. A thread of the driver does this; workers learn of
it by `models.engine_actors`.

What a task computes and stores is in `runs.pipeline`, what an engine is in `models.engine_actors`, what fits
is checked by `capacity.py` before anything starts, and how tasks run is in `running.py`.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group_table, remove_placement_group

from raypipe.core.digests import own_identity
from raypipe.core.protocols import Model
from raypipe.models import engine_actors as engines
from raypipe.models import load
from raypipe.models.engine import Engine
from raypipe.models.engine_actors import LOOK_S, Make, announce, held, reserved, withdraw
from raypipe.runs.cluster import connection
from raypipe.runs.cluster.capacity import Node, declared_nodes, most_engines, preflight_engines, startable
from raypipe.runs.cluster.file import LIMITS, Cluster, Engines, Pool, PoolName, Timeouts
from raypipe.runs.cluster.running import run
from raypipe.runs.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, Verb

FIRST = "raypipe-first-engines"  # name of the placement group that a job's engines wait for
TURN_S = 1.0  # between two looks at what is there
MOST_FAILURES = 3  # starts of one engine that may fail; then it is started no more

log = logging.getLogger("raypipe.engines")


@dataclass(slots=True)
class _Slot:
    name: str
    place: engines.Needs
    make: Make
    group: Any = None  # its placement group, once it is asked for
    client: engines.Client | None = None  # once it is started
    loading: Any = None  # reference to its answer that it has loaded
    lives: Any = None  # reference that is ready when it has died; None: it takes no chats yet
    failures: int = 0


@dataclass(slots=True)
class Joining:
    slots: list[_Slot] = field(default_factory=list)

    def add(self, name: str, place: engines.Needs, make: Make) -> None:
        self.slots.append(_Slot(name, place, make))

    @contextmanager
    def running(self, room: Callable[[], int]) -> Iterator[None]:
        """Starts and ends engines until the block ends, and then ends all. `room`: how many there may be on
        the nodes that there are."""
        if not self.slots:
            yield
            return
        stop = threading.Event()
        work = (lambda: self._turn(room())), stop, TURN_S
        thread = threading.Thread(target=take_turns, args=work, name="joining engines", daemon=True)
        thread.start()
        with ExitStack() as ending:  # one that cannot be ended keeps none of the others
            for slot in self.slots:
                ending.callback(_give_up, slot)
            try:
                yield
            finally:
                stop.set()
                thread.join()

    def _turn(self, room: int) -> None:
        tables: Sequence[Any] = list(placement_group_table().values())
        if any(t["name"].startswith(FIRST) and t["state"] == "PENDING" for t in tables):
            # A job waits for the place of its first engines.
            leaving = [slot for slot in self.slots if slot.group is not None]
            for slot in leaving:
                withdraw(slot.name)
            if any(slot.lives is not None for slot in leaving):
                time.sleep(2 * LOOK_S)  # until no worker sends them more
            for slot in leaving:
                _give_up(slot)
            return
        for number, slot in enumerate(self.slots):
            if slot.group is None:
                if number < room and slot.failures < MOST_FAILURES:
                    slot.group = held(slot.place, f"raypipe-engine-{slot.name}")
            elif slot.client is None:
                if placement_group_table(slot.group)["state"] == "CREATED":
                    where = slot.group, 0
                    slot.client = engines.start_actor(slot.name, slot.make, slot.place, where, stays=False)
                    slot.loading = slot.client.loading()
            elif slot.lives is None:
                self._loaded(slot)
            elif ray.wait([slot.lives], timeout=0)[0]:
                withdraw(slot.name)
                _give_up(slot)

    def _loaded(self, slot: _Slot) -> None:
        if not ray.wait([slot.loading], timeout=0)[0]:
            return
        try:
            ray.get(slot.loading)
        except RayError:  # the others serve; the first engines have shown that the model loads
            slot.failures += 1
            _give_up(slot)
            return
        assert slot.client is not None
        slot.lives = slot.client.lives()
        announce(slot.name, uuid.uuid4().hex)


def take_turns(turn: Callable[[], None], stop: threading.Event, every_s: float) -> None:
    """Takes a turn every so often until `stop` is set. One that raises is reported, the same trouble once as
    long as it lasts, and the next turn tries again: else no engine would join any more."""
    said = ""
    while not stop.wait(every_s):
        try:
            turn()
        except Exception as e:
            if (why := f"{type(e).__name__}: {e}") != said:
                log.warning(
                    "engines that join: expected a look at the cluster, found %s; it is tried again every "
                    "%g s, and the engines that are there keep working",
                    why,
                    every_s,
                )
            said = why
        else:
            said = ""


def _give_up(slot: _Slot) -> None:
    if slot.lives is not None:
        withdraw(slot.name)
    if slot.client is not None:
        slot.client.close()
    if slot.group is not None:
        remove_placement_group(slot.group)
    slot.group = slot.client = slot.loading = slot.lives = None


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """The engines that a job may start, by name. They are the job's own: it ends them."""

    engines: Engines
    device: str
    models: tuple[Model, ...]
    names: Mapping[str, tuple[str, ...]]  # model identity -> names in Ray; known before any is started
    # Nodes that an autoscaler may make of the cluster; none: it does not grow.
    declared: tuple[Node, ...] = ()
    passing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of engines that come and go

    @classmethod
    def of(cls, cluster: Cluster, models: Sequence[Model]) -> EngineGroup | None:
        """The group for the vLLM models among these on a sized cluster; None if there are none. Raises as
        `startable`."""
        wanted = {own_identity(m): m for m in startable(cluster, models)}
        if not wanted or (some := cluster.engines) is None:
            return None
        job = uuid.uuid4().hex  # two jobs at a time have engines of their own: each ends its own
        names = {i: [engines.name_of(f"{job}/{i}", n) for n in range(some.most)] for i in wanted}
        stay = {i: tuple(of[: some.count]) for i, of in names.items()}
        passing = {i: tuple(of[some.count :]) for i, of in names.items() if some.most > some.count}
        declared = tuple(declared_nodes(cluster)) if cluster.grows else ()
        return cls(some, cluster.device, tuple(wanted.values()), stay, declared, passing)

    def preflight(self, nodes: Sequence[Node]) -> None:
        """Raises ClusterTooSmall with numbers if the engines and their workers do not fit."""
        preflight_engines(self.engines, self.models, self.declared or nodes)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts the engines that stay, at the same time, and ends all however the block ends. Others come
        and go meanwhile."""
        wanted = [(model, name) for model in self.models for name in self.names[own_identity(model)]]
        places = [self.engines.needs(model) for model, _ in wanted]
        with reserved(places, self.engines.wait_s, FIRST) as groups, ExitStack() as stack:
            starting = [
                engines.start_actor(name, self._make(model), place, group)
                for (model, name), place, group in zip(wanted, places, groups, strict=True)
            ]
            for client in starting:
                stack.callback(client.close)
            for client in starting:
                client.ready()
            joining = Joining()  # those that come and go, one of each model after the other
            for number in range(self.engines.most - self.engines.count):
                for model in self.models:
                    name = self.passing[own_identity(model)][number]
                    joining.add(name, self.engines.needs(model), self._make(model))
            with joining.running(self._room):
                yield

    def _room(self) -> int:
        """Returns how many engines may come, on the nodes that there are or will be."""
        nodes = self.declared or connection.nodes()
        each = most_engines(self.engines, self.models, nodes) - self.engines.count
        return max(0, each) * len(self.models)

    def _make(self, model: Model) -> functools.partial[Engine]:
        load.require_startable(model)
        return functools.partial(Engine, model, self.engines.limits(self.device), exit_when_dead=True)


def run_with_engines(
    group: EngineGroup,
    work: TableTask,
    tasks: Sequence[Task],
    limits: Timeouts = LIMITS,
    said: Callable[[str], None] = lambda stats: None,
) -> Iterator[TaskResult | HandedBack]:
    """As `run_tasks`, with the group's engines up as long as it takes. Without tasks nothing is started."""
    if tasks:
        with group.running():
            yield from run_tasks(work, tasks, group.engines.answer, limits, "answer", said)


def run_tasks(
    work: TableTask,
    tasks: Sequence[Task],
    pool: Pool,
    limits: Timeouts = LIMITS,
    verb: Verb = "parse",
    said: Callable[[str], None] = lambda stats: None,
) -> Iterator[TaskResult | HandedBack]:
    """Runs every task on the workers of one pool (`running.run`)."""
    pools: dict[PoolName, Pool] = {"parse": pool, "embed": pool, "answer": pool}
    return run(verb, work, tasks, lambda: pools, limits, said)
