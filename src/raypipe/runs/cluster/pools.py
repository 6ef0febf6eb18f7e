"""The engines of a job, and tasks on one pool next to them.

What a task computes and stores is in `runs.pipeline`, what an engine is in `models.engine_actors`, what fits
is checked by `capacity.py` before anything starts, and how tasks run is in `running.py`.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from raypipe.core.digests import model_identity
from raypipe.core.protocols import Model
from raypipe.models import engine_actors as engines
from raypipe.models import load
from raypipe.models.engine import Engine
from raypipe.models.engine_actors import reserved
from raypipe.runs.cluster import connection
from raypipe.runs.cluster.capacity import Node, declared_nodes, most_engines, preflight_engines, startable
from raypipe.runs.cluster.file import LIMITS, Cluster, Engines, Pool, PoolName, Timeouts
from raypipe.runs.cluster.joining import FIRST, Joining
from raypipe.runs.cluster.running import run
from raypipe.runs.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, Verb


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
        wanted = {model_identity(m): m for m in startable(cluster, models)}
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
        wanted = [(model, name) for model in self.models for name in self.names[model_identity(model)]]
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
            with self._joining().running(self._room):
                yield

    def _joining(self) -> Joining:
        """The engines that come and go, one of each model after the other."""
        joining = Joining()
        for number in range(self.engines.most - self.engines.count):
            for model in self.models:
                name = self.passing[model_identity(model)][number]
                joining.add(name, self.engines.needs(model), self._make(model))
        return joining

    def _room(self) -> int:
        """How many engines may come, on the nodes that there are or will be."""
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
