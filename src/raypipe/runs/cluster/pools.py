"""Tasks on Ray Data: the actor pools, and the engines that run next to the pool that calls them.

What a task computes and stores is in `runs.pipeline.tasks`, what an engine is in `models.engine_actors`, what
fits is checked by `capacity.py` before anything starts. One pool runs at a time, so a pool may take the whole
cluster and none waits for another. Where all pools are equal and hold no GPU, `warm_pool.py` keeps one.
"""

from __future__ import annotations

import base64
import functools
import os
import pickle
import traceback
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.util.annotations import RayDeprecationWarning

from raypipe.core.digests import model_identity
from raypipe.core.protocols import Model
from raypipe.models import engine_actors as engines
from raypipe.models import load
from raypipe.models.engine import Engine
from raypipe.models.engine_actors import reserved
from raypipe.runs.cluster import connection
from raypipe.runs.cluster.capacity import Node, declared_nodes, most_engines, preflight_engines, startable
from raypipe.runs.cluster.file import LIMITS, Cluster, Engines, Pool, Timeouts
from raypipe.runs.cluster.joining import FIRST, Joining
from raypipe.runs.cluster.worker import TRIES, Worker, row_by_row
from raypipe.runs.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, with_worker


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


class _DataWorker:
    """A worker as Ray Data wants it."""

    def __init__(self, work: TableTask, limits: Timeouts) -> None:
        self._worker = Worker(limits, work)
        self._broken = False  # True: nothing more is computed in this process

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[str]]]:
        for packed in batch["task"]:
            if self._broken:
                os._exit(1)  # Ray starts another in its place, and sends it this task again
            try:
                done = await self._worker.do(_unpacked(packed))
                self._broken = isinstance(done, HandedBack) and done.then == "replace"
                yield {"result": [_packed(done)]}
            except Exception as e:  # as a value: an exception would count as one more dead worker
                yield {"result": [_packed(e)]}


def _packed(what: Task | TaskResult | HandedBack | Exception) -> str:
    """A task, its result or an exception as text. An exception that cannot be sent becomes a message with its
    trace."""
    try:
        pickle.loads(data := pickle.dumps(what))
    except Exception:
        if not isinstance(what, Exception):
            raise
        data = pickle.dumps(RuntimeError("".join(traceback.format_exception(what))))
    return base64.b64encode(data).decode()


def _unpacked(text: str) -> Any:
    """What `_packed` made a text of: in our own workers, or here."""
    return pickle.loads(base64.b64decode(text))


def run_with_engines(
    group: EngineGroup, work: TableTask, tasks: Sequence[Task], limits: Timeouts = LIMITS
) -> Iterator[TaskResult | HandedBack]:
    """As `run_tasks`, with the group's engines up as long as it takes. Without tasks nothing is started."""
    if tasks:
        with group.running():
            yield from run_tasks(work, tasks, group.engines.answer, limits)


def run_tasks(
    work: TableTask, tasks: Sequence[Task], pool: Pool, limits: Timeouts = LIMITS
) -> Iterator[TaskResult | HandedBack]:
    """Runs every task on a pool of actors and yields the results, in any order.

    An actor that hands a task back since it is broken is replaced before its next one.

    A task whose actor dies is tried again, TRIES times in all. Then each of its rows is tried alone, once:
    one that still takes its worker with it, or more time than a row may take, has failed, and the task is
    done without it. An exception inside a task ends the run: tasks that were done before stay done. So does a
    list of tasks that the caller empties.
    """
    if not tasks:
        return
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1  # a block is a task: one whose workers died is found missing below
    rows = [{"task": _packed(t)} for t in tasks]
    work = with_worker(work, threads=max(1, int(pool.cpus)))  # torch would take cores that other actors use
    with warnings.catch_warnings():
        # There is no other way yet to bound restarts than the arguments that 2.64 will name otherwise.
        warnings.filterwarnings("ignore", category=RayDeprecationWarning)
        pooled = _pooled(work, rows, pool, limits)
    left = {t.name: t for t in tasks}
    for row in pooled.iter_rows():
        done = _unpacked(row["result"])
        if isinstance(done, Exception):
            raise done
        if left.pop(done.name, None) is not None:  # Ray may hand on a task twice whose worker died after it
            yield done
        if not tasks:
            return  # and with the iterator its actors end
    for task in left.values():
        yield row_by_row(work, task, pool, limits)


def _pooled(work: TableTask, rows: list[dict[str, str]], pool: Pool, limits: Timeouts) -> ray.data.Dataset:
    """The tasks through a pool of actors, lazily: one row for each that is done."""
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _DataWorker,
        fn_constructor_args=(work, limits),
        batch_size=1,
        compute=ActorPoolStrategy(size=min(pool.size, len(rows))),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        # Restarts without end: a pool whose actors may not restart any more never ends.
        ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": TRIES - 1},
    )
