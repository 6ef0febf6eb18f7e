"""Where the tasks of one run go on Ray: one warm pool, a pool for each table, two pools at the same time, or
workers next to engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from raypipe.api.served import require_answering, require_unchanged
from raypipe.cluster.capacity import Node, fitting, reachable, side_by_side, startable, this_machine, workers
from raypipe.cluster.file import Cluster, Pool
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.pipeline.tasks import (
    HandedBack,
    TableTask,
    Task,
    TaskResult,
    Verb,
    WorkerConfig,
    Workers,
    with_worker,
)
from raypipe.pipeline.whole_corpus_task import WholeCorpusTask
from raypipe.recipes.recipe import Recipe
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.api.judges import JudgeKit
    from raypipe.cluster.pools import EngineGroup
    from raypipe.cluster.streamed_pool import StreamedPools
    from raypipe.cluster.warm_pool import WarmPool


class Sized(NamedTuple):
    """A cluster file on the nodes that there are, and the engines of the recipe on it."""

    cluster: Cluster
    group: EngineGroup | None
    streamed: StreamedPools | None  # where parsing and embedding run at the same time


class RayRun:
    """Runs the tasks of a recipe over a store.

    Ray is connected to when the first task is run: starting it takes seconds, and a run with nothing missing
    needs none. Where the judge is one of the models, its engine is the recipe's, and stays up.
    """

    def __init__(
        self, ray: str, worker: WorkerConfig, recipe: Recipe | None, written: Cluster,
        engines: Sequence[Model], used: Sequence[Model], judge: JudgeKit | None,
    ) -> None:  # fmt: skip
        """`ray`: the address, or "local" for a Ray of this run; `worker`: what workers are told; `recipe`
        None: only files are read; `written`: the cluster file; `engines`: the recipe's models that may get an
        engine; `used`: all models that tasks ask."""
        self._ray, self._worker, self._recipe, self._written = ray, worker, recipe, written
        self._engines, self._used, self._judge = engines, used, judge
        self._wanted = startable(written, engines)
        self._warm: WarmPool | None = None
        if judge is not None:
            judge.before_start(self.close)
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            self.connect()
        elif ray == "local":  # the most that a Ray started here can have
            fitting(written, self._wanted, reachable(written, [this_machine()]))

    @cached_property
    def _sized(self) -> Sized:
        for model in self._used:
            load.present(model)
        require_answering(self._engines, self._worker.endpoints)
        require_unchanged(Store.open(self._worker.store), self._used, self._worker.endpoints)
        if self._judge is not None:
            self._judge.require_answering()
        from raypipe.cluster import connection  # Ray takes a second to import

        connection.connect(self._ray)
        if self._recipe is not None:
            connection.carry(self._recipe)
        nodes = reachable(self._written, connection.nodes())
        cluster = fitting(self._written, self._wanted, nodes)
        return Sized(cluster, _engines_on(cluster, self._engines), _streamed_on(cluster, nodes))

    def connect(self) -> None:
        """Joins Ray, once, and sizes the cluster file on its nodes. Raises ClusterTooSmall, and ModelMissing,
        which a worker would find out only at its first row."""
        _ = self._sized

    def ahead(self) -> None:
        """Starts the workers that stay from table to table: they load what embeds while others go on."""
        cluster = self._sized.cluster
        if self._warm is None and self._recipe is not None and cluster.one_pool is not None:
            self._warm_pool(cluster, cluster.one_pool).begin(self._worker, self._recipe.embedders())

    def workers(self, verb: Verb) -> Workers:
        """How many workers do such tasks."""
        return workers(self._sized.cluster, verb, bool(self._wanted))

    @property
    def streams(self) -> Callable[[], bool] | None:
        """Says, on the joined cluster, whether parsing and embedding run at the same time; None where the
        cluster file's embedders have no GPU."""
        return (lambda: self._sized.streamed is not None) if self._written.pools["embed"].gpus else None

    def run(self, verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        """Does the tasks, in the order in which they end."""
        if not tasks:
            return iter(())
        cluster, group, streamed = self._sized
        if verb == "index" and streamed is not None:
            return streamed.run(cast(WholeCorpusTask, work), tasks)
        if verb == "answer" and group is not None:
            return self._with_engines(cluster, group, work, tasks)
        if (pool := cluster.one_pool) is not None:
            return self._warm_pool(cluster, pool).run(work, tasks)
        from raypipe.cluster import pools

        named = cluster.pools["embed" if verb == "index" else verb]
        return pools.run_tasks(work, tasks, named, cluster.limits)

    def _warm_pool(self, cluster: Cluster, pool: Pool) -> WarmPool:
        from raypipe.cluster.warm_pool import WarmPool

        if self._warm is None:
            self._warm = WarmPool(pool, cluster.limits)
        return self._warm

    def _with_engines(
        self, cluster: Cluster, group: EngineGroup, work: TableTask, tasks: Sequence[Task]
    ) -> Iterator[TaskResult | HandedBack]:
        from raypipe.cluster import pools

        self.close()  # the engines and their workers take its room
        work = with_worker(work, engines=group.names, passing_engines=group.passing)
        if self._judge is None or not self._judge.share(group):
            return pools.run_with_engines(group, work, tasks, cluster.limits)
        self._judge.start()
        return pools.run_tasks(work, tasks, group.engines.answer, cluster.limits)

    def close(self) -> None:
        """Ends the workers that stay between tables."""
        pool, self._warm = self._warm, None
        if pool is not None:
            pool.close()


def _engines_on(cluster: Cluster, models: Sequence[Model]) -> EngineGroup | None:
    """The engines of these models; None where none of them gets one: Ray Data need not be imported."""
    if not any(m.loader == "vllm" for m in models):
        return None
    from raypipe.cluster.pools import EngineGroup

    return EngineGroup.of(cluster, models)


def _streamed_on(cluster: Cluster, nodes: Sequence[Node]) -> StreamedPools | None:
    """The pools that parse and embed at the same time, where there is room for them."""
    if (both := side_by_side(cluster, nodes)) is None:
        return None
    from raypipe.cluster.streamed_pool import StreamedPools, most_bytes

    return StreamedPools(*both, most_bytes, cluster.limits)
