"""Engines of a job, and tasks on one pool of workers next to the engines.

Ray starts all first engines of a job together or none of them, and they run as long as the job. Further
engines (`engines.replicas` with `min` and `max`) join and leave meanwhile. Each further engine has its own
placement group. The group is requested only if the nodes (with an autoscaler, the nodes that it can start)
still have room for the workers. If a further engine dies, another is requested, but not after MOST_FAILURES
failed starts. All further engines end if another job waits for its first engines; otherwise two jobs could
each hold half of what they need. A thread of the driver starts and ends further engines; workers learn of
them from `models.engine_actors`.
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
from raypipe.runs.cluster.cluster_file import LIMITS, Cluster, Engines, Pool, PoolName, Timeouts
from raypipe.runs.cluster.running import run
from raypipe.runs.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, Verb

FIRST = "raypipe-first-engines"  # name of the placement groups that jobs' first engines wait for
TURN_S = 1.0  # seconds between two looks at the cluster
MOST_FAILURES = 3  # failed starts of an engine, after which it is not started again

log = logging.getLogger("raypipe.engines")


@dataclass(slots=True)
class _Slot:
    """A place for one further engine of the job, and the state of that engine."""

    name: str
    needs: engines.Needs
    make: Make
    group: Any = None  # its placement group; None: not requested
    client: engines.Client | None = None  # client of the engine; None: not started
    loading: Any = None  # Ray reference that is ready once the engine has loaded
    lives: Any = None  # Ray reference that is ready once the engine has died; None: it takes no chats yet
    failures: int = 0  # failed starts of the engine


@dataclass(slots=True)
class Joining:
    """Further engines of a job, which join and leave while it runs."""

    slots: list[_Slot] = field(default_factory=list)

    def add(self, name: str, needs: engines.Needs, make: Make) -> None:
        self.slots.append(_Slot(name, needs, make))

    @contextmanager
    def running(self, room: Callable[[], int]) -> Iterator[None]:
        """Starts and ends further engines while the block runs. `room` returns how many fit on the nodes."""
        if not self.slots:
            yield
            return
        stop = threading.Event()
        work = (lambda: self._turn(room())), stop, TURN_S
        thread = threading.Thread(target=take_turns, args=work, name="joining engines", daemon=True)
        thread.start()
        with ExitStack() as ending:  # all engines are ended, even if one raises
            for slot in self.slots:
                ending.callback(_give_up, slot)
            ending.callback(thread.join)
            ending.callback(stop.set)  # callbacks run last to first
            yield

    def _turn(self, room: int) -> None:
        tables: Sequence[Any] = list(placement_group_table().values())
        if any(t["name"].startswith(FIRST) and t["state"] == "PENDING" for t in tables):
            # Another job waits for the place of its first engines.
            leaving = [slot for slot in self.slots if slot.group is not None]
            for slot in leaving:
                withdraw(slot.name)
            if any(slot.lives is not None for slot in leaving):
                time.sleep(2 * LOOK_S)  # until no worker sends them chats
            for slot in leaving:
                _give_up(slot)
            return
        for number, slot in enumerate(self.slots):
            if slot.group is None:
                if number < room and slot.failures < MOST_FAILURES:
                    slot.group = held(slot.needs, f"raypipe-engine-{slot.name}")
            elif slot.client is None:
                if placement_group_table(slot.group)["state"] == "CREATED":
                    bundle = slot.group, 0
                    slot.client = engines.start_actor(
                        slot.name, slot.make, slot.needs, bundle, permanent=False
                    )
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
        except RayError:  # the other engines serve; the first ones prove that the model loads
            slot.failures += 1
            _give_up(slot)
            return
        assert slot.client is not None
        slot.lives = slot.client.lives()
        announce(slot.name, uuid.uuid4().hex)


def take_turns(turn: Callable[[], None], stop: threading.Event, every_s: float) -> None:
    """Calls `turn` every `every_s` seconds until `stop` is set. Logs an error of a turn, and still calls the
    next turn; otherwise no engine would join any more. An error that repeats is logged once."""
    logged = ""
    while not stop.wait(every_s):
        try:
            turn()
            logged = ""
        except Exception as e:
            if (why := f"{type(e).__name__}: {e}") != logged:
                again = "It is tried again every %g s; running engines keep working"
                log.warning(f"new engines: the cluster cannot be read: %s. {again}", why, every_s)
            logged = why


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
    """Engines that a job may start. The job owns them and ends them."""

    engines: Engines
    device: str
    models: tuple[Model, ...]
    first_engines: Mapping[str, tuple[str, ...]]  # model identity -> names in Ray of its first engines
    # Nodes that an autoscaler may start; empty: the cluster does not grow.
    declared: tuple[Node, ...] = ()
    # Model identity -> names in Ray of its further engines.
    further_engines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, models: Sequence[Model]) -> EngineGroup | None:
        """Makes the group for the vLLM models in `models`; None if there are none. Raises as `startable`."""
        wanted = {own_identity(m): m for m in startable(cluster, models)}
        if not wanted or (some := cluster.engines) is None:
            return None
        job = uuid.uuid4().hex  # concurrent jobs have separate engines, and each ends its own
        names = {i: [engines.name_of(f"{job}/{i}", n) for n in range(some.most)] for i in wanted}
        first = {i: tuple(of[: some.count]) for i, of in names.items()}
        further = {i: tuple(of[some.count :]) for i, of in names.items() if some.most > some.count}
        declared = tuple(declared_nodes(cluster)) if cluster.grows else ()
        return cls(some, cluster.device, tuple(wanted.values()), first, declared, further)

    def preflight(self, nodes: Sequence[Node]) -> None:
        """Raises ClusterTooSmall with numbers if the engines and their workers do not fit."""
        preflight_engines(self.engines, self.models, self.declared or nodes)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the block once the first engines have loaded; more join meanwhile. Ends all engines after
        it."""
        wanted = [(model, name) for model in self.models for name in self.first_engines[own_identity(model)]]
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
            joining = Joining()  # further engines, one of each model in turn
            for number in range(self.engines.most - self.engines.count):
                for model in self.models:
                    name = self.further_engines[own_identity(model)][number]
                    joining.add(name, self.engines.needs(model), self._make(model))
            with joining.running(self._room):
                yield

    def _room(self) -> int:
        """Returns how many further engines fit on the nodes (with an autoscaler, on declared nodes)."""
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
    say_stats: Callable[[str], None] = lambda stats: None,
) -> Iterator[TaskResult | HandedBack]:
    """Runs tasks as `run_tasks` does, with the group's engines. Starts no engine if there are no tasks."""
    if tasks:
        with group.running():
            yield from run_tasks(work, tasks, group.engines.answer, limits, "answer", say_stats)


def run_tasks(
    work: TableTask,
    tasks: Sequence[Task],
    pool: Pool,
    limits: Timeouts = LIMITS,
    verb: Verb = "parse",
    say_stats: Callable[[str], None] = lambda stats: None,
) -> Iterator[TaskResult | HandedBack]:
    """Runs every task on the workers of one pool (`running.run`)."""
    pools: dict[PoolName, Pool] = {"parse": pool, "embed": pool, "answer": pool}
    return run(verb, work, tasks, lambda: pools, limits, say_stats)
