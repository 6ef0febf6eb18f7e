"""Where the tasks of one run go on Ray: one warm pool, a pool for each table, two pools at the same time, or
workers next to engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from raypipe.api.served import require_answering, require_unchanged
from raypipe.cluster.capacity import fitting, reachable, side_by_side, startable, this_machine, workers
from raypipe.cluster.file import Cluster
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.load import EndpointAddress
from raypipe.pipeline.tasks import HandedBack, TableTask, Task, TaskResult, Verb, Workers, with_worker
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
        self, ray: str, uri: str, recipe: Recipe | None, written: Cluster, engines: Sequence[Model],
        used: Sequence[Model], endpoints: Mapping[str, EndpointAddress], judge: JudgeKit | None,
    ) -> None:  # fmt: skip
        """`ray`: the address, or "local" for a Ray of this run; `recipe` None: only files are read;
        `written`: the cluster file;
        `engines`: the recipe's models that may get an engine; `used`: all models that tasks ask."""
        self._ray, self._uri, self._recipe, self._written = ray, uri, recipe, written
        self._engines, self._used, self._endpoints, self._judge = engines, used, endpoints, judge
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
        require_answering(self._engines, self._endpoints)
        require_unchanged(Store.open(self._uri), self._used, self._endpoints)
        if self._judge is not None:
            self._judge.require_answering()
        from raypipe.cluster import connection, pools  # Ray takes a second to import
        from raypipe.cluster.streamed_pool import StreamedPools, most_bytes

        connection.connect(self._ray)
        if self._recipe is not None:
            connection.carry(self._recipe)
        nodes = reachable(self._written, connection.nodes())
        cluster = fitting(self._written, self._wanted, nodes)
        both = side_by_side(cluster, nodes)
        streamed = StreamedPools(*both, most_bytes, cluster.limits) if both else None
        return Sized(cluster, pools.EngineGroup.of(cluster, self._engines), streamed)

    def connect(self) -> None:
        """Joins Ray, once, and sizes the cluster file on its nodes. Raises ClusterTooSmall, and ModelMissing,
        which a worker would find out only at its first row."""
        _ = self._sized

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
        from raypipe.cluster import pools
        from raypipe.cluster.warm_pool import WarmPool

        if (pool := cluster.one_pool) is None:
            named = cluster.pools["embed" if verb == "index" else verb]
            return pools.run_tasks(work, tasks, named, cluster.limits)
        if self._warm is None:
            self._warm = WarmPool(pool, cluster.limits)
        return self._warm.run(work, tasks)

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
