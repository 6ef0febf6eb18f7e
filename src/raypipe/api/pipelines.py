"""The composition root: a recipe over a store, ready to run on the cluster that the session names; which
pools its operators have on Ray; and what it costs there.

Ray is imported once there is work for it: a plan and a run that lacks nothing start none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raypipe.api.served import JudgeKit, require_answering, require_unchanged
from raypipe.api.session import Session, Settings, endpoint_addresses, require_graphs
from raypipe.core.environment import cores
from raypipe.core.llm import JUDGE, Prices
from raypipe.core.progress import Progress
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.entry import REMOTE
from raypipe.models.hosts import EngineLimits
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import models_of
from raypipe.runs.cluster import capacity
from raypipe.runs.cluster.file import Cluster, Pool, PoolName
from raypipe.runs.cluster.placement import asked_by, placement, pools_of_stages, refuse, sharing
from raypipe.runs.pipeline.counters import MACHINES
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest_tasks import TaskReading
from raypipe.runs.pipeline.tasks import TableTask, Task, Verb, WorkerConfig, Workers, inline, with_worker
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.runs.cluster.pools import EngineGroup
    from raypipe.runs.pipeline.tasks import HandedBack, TaskResult


class Sized(NamedTuple):
    """A cluster file on the nodes that there are, and the engines of the recipe on it."""

    cluster: Cluster
    group: EngineGroup | None
    streams: bool  # whether there is room to parse and to embed at the same time


@dataclass
class RayRun:
    """Runs the tasks of a recipe over a store.

    Ray is connected to when the first task is run: starting it takes seconds, and a run with nothing missing
    needs none. Where the judge is one of the models, its engine is the recipe's, and stays up.
    """

    settings: Settings
    worker: WorkerConfig  # what workers are told
    recipe: Recipe | None  # None: only files are read
    written: Cluster  # the cluster file
    engines: Sequence[Model]  # the recipe's models that may get an engine
    used: Sequence[Model]  # all models that tasks ask
    judge: JudgeKit | None
    stats: list[str] = field(default_factory=list)  # of each graph, as Ray Data says it
    _loading: list[Any] = field(default_factory=list)  # references to processes that load models ahead

    def __post_init__(self) -> None:
        self._wanted = capacity.startable(self.written, self.engines)
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            self.connect()
        elif self.settings.ray == "local":  # the most that a Ray started here can have
            here = capacity.reachable(self.written, [capacity.this_machine()])
            capacity.fitting(self.written, self._wanted, here)

    @cached_property
    def _sized(self) -> Sized:
        for model in self.used:
            load.present(model)
        if self.engines and self.recipe is not None:
            require_answering(self.recipe.chats(), self.worker.endpoints, self.settings)
        require_unchanged(Store.open(self.worker.store), self.used, self.worker.endpoints)
        if self.judge is not None:
            self.judge.require_answering(self.settings)
        from raypipe.runs.cluster import connection  # Ray takes a second to import

        connection.connect(self.settings.ray)
        if self.recipe is not None:
            connection.carry(self.recipe)
        nodes = capacity.reachable(self.written, connection.nodes())
        cluster = capacity.fitting(self.written, self._wanted, nodes)
        group = None
        if any(m.loader == "vllm" for m in self.engines):  # else Ray Data need not be imported
            from raypipe.runs.cluster.pools import EngineGroup

            group = EngineGroup.of(cluster, self.engines)
        streams = not cluster.pools["embed"].gpus or capacity.side_by_side(cluster, nodes) is not None
        return Sized(cluster, group, streams)

    def connect(self) -> None:
        """Joins Ray, once, and sizes the cluster file on its nodes. Raises ClusterTooSmall, and ModelMissing,
        which a worker would find out only at its first row."""
        _ = self._sized

    def ahead(self) -> None:
        """Has the processes of CPUs load what embeds while others go on; those with GPUs load with their
        graph, while pages are parsed."""
        pool = self._sized.cluster.pools["embed"]
        if self.recipe is not None and not pool.gpus and not self._loading:
            from raypipe.runs.cluster.graph import load_ahead

            self._loading = load_ahead(self.worker, self.recipe.embedders(), pool)

    def workers(self, verb: Verb) -> Workers:
        """Returns how many workers do such tasks."""
        return capacity.workers(self._sized.cluster, verb, bool(self._wanted))

    def streams(self) -> bool:
        """Says if parsing and embedding run at the same time; connects."""
        return self._sized.streams

    def run(self, verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        """Does the tasks, in the order in which they end."""
        if not tasks:
            return iter(())
        cluster, group, _ = self._sized
        writes = verb == "embed" and self.recipe is not None and self.recipe.writers()
        if group is not None and (verb == "answer" or writes):
            from raypipe.runs.cluster import pools as engine_pools

            work = with_worker(work, engines=group.names, passing_engines=group.passing)
            if self.judge is None or not self.judge.share(group):
                run = engine_pools.run_with_engines
                return run(group, work, tasks, cluster.limits, self.stats.append)
            self.judge.start()
            run_tasks, pool = engine_pools.run_tasks, group.engines.answer
            return run_tasks(work, tasks, pool, cluster.limits, "answer", self.stats.append)
        from raypipe.runs.cluster import running

        pools = partial(self._pools, verb)
        return running.run(verb, work, tasks, pools, cluster.limits, self.stats.append)

    def _pools(self, verb: Verb) -> dict[PoolName, Pool]:
        """The pools on the nodes that there are now."""
        from raypipe.runs.cluster import connection

        nodes = capacity.reachable(self.written, connection.nodes())
        cluster = capacity.sized(self.written, self._wanted, nodes)
        both = capacity.side_by_side(cluster, nodes) if verb == "index" else None
        return {**cluster.pools, **({"parse": both[0], "embed": both[1]} if both else {})}


@contextmanager
def open_pipeline(
    session: Session, store: Store, recipe: Recipe, answers: bool = True, judge: JudgeKit | None = None
) -> Iterator[Pipeline]:
    """The recipe over a store on the session's cluster.

    Language models need not be here for work that asks none: a ranking, or (`answers` False) the corpus half.
    `judge` is the kit of the judge of the answers. Raises ConfError, ClusterTooSmall.
    """
    if answers:
        require_graphs(recipe)
    models = recipe.models() if answers else recipe.writers()
    asked = asked_by(recipe) if answers else recipe.writers()
    written = sharing(session.cluster_file(), asked)
    # What is too large on the machines that the file is written for is refused before Ray is joined.
    declared = as_declared(written, capacity.startable(written, models))
    refuse(declared, recipe.embedders(), asked)
    used = models if answers else [m for stage in recipe.corpus for m in models_of(stage.step)]
    written = _with_batches(written, used)
    place, sizes = worker_and_sizes(session, written, store.uri, used)
    run = RayRun(session.settings, place, recipe, written, models, used, judge)
    batched, watching = [at for at in place.endpoints.values() if at.batch], ExitStack()
    with session.shown() as progress, watching:
        if batched:
            from raypipe.models.batches import watched

            watching.enter_context(watched(batched, progress.say))
        made = Pipeline(store, recipe, place, sizes, run.run, progress, run.workers, run.connect)
        yield replace(made, streams=run.streams, ahead=run.ahead, stats=run.stats)


def open_reading(session: Session, store: Store) -> TaskReading:
    """Returns how files are read into a store on the session's cluster, which is connected to for large ones
    alone. Raises ConfError, ClusterTooSmall."""
    file = session.cluster_file()
    worker = WorkerConfig(store.uri, file.backend, file.device, 1)

    @cache
    def run() -> RayRun:
        return RayRun(session.settings, worker, None, file, (), (), None)

    return TaskReading(worker, lambda *of: run().run(*of), lambda: run().connect())


@contextmanager
def in_process(session: Session, store: Store, recipe: Recipe) -> Iterator[Pipeline]:
    """The corpus half of a recipe over a store, in this process on all its cores, without Ray. Raises
    ConfError, ModelMissing."""
    models = (*recipe.embedders(), *recipe.writers())
    for model in models:
        load.present(model)
    place, sizes = worker_and_sizes(session, session.cluster_file(), store.uri, models)
    place = replace(place, threads=cores())
    with session.shown() as progress:
        yield Pipeline(store, recipe, place, sizes, inline, progress)


def offline_pipeline(session: Session, store: Store, recipe: Recipe) -> Pipeline:
    """The recipe over a store as the session's cluster would run it, without Ray: to plan, not to run."""
    require_graphs(recipe)
    file = as_declared(session.cluster_file(), recipe.models())
    place, sizes = worker_and_sizes(session, file, store.uri, ())
    silent, said = Progress(sys.stderr, silent=True), workers_of(file, recipe)
    return Pipeline(store, recipe, place, sizes, inline, silent, said)


def workers_of(file: Cluster, recipe: Recipe) -> Callable[[Verb], Workers]:
    """Returns how many workers a cluster file has for each verb of a recipe."""
    return partial(capacity.workers, file, engines=any(m.loader == "vllm" for m in recipe.models()))


def as_declared(file: Cluster, models: Sequence[Model]) -> Cluster:
    """A cluster file on the machines that it is written for, with the engines of these models."""
    engined = [m for m in models if m.loader == "vllm"]
    return capacity.sized(sharing(file, models), engined, capacity.declared_nodes(file))


BATCH_QUESTIONS = 5_000
"""Questions of a task whose chats go to a batch API, at least: a cap stops between two files of them."""


def _with_batches(file: Cluster, models: Sequence[Model]) -> Cluster:
    """A cluster file whose tasks have as many questions, and as long, as batches of chats take."""
    endpoints = [file.endpoints.get(m.path) for m in models if m.loader in REMOTE]
    if not any(at is not None and at.batch for at in endpoints):
        return file
    from raypipe.models.batches import WINDOW_S

    limits = replace(file.limits, open_timeout_s=file.limits.open_timeout_s + 2 * WINDOW_S)
    pools = {**file.pools, "answer": replace(file.pools["answer"], actors=1)}  # which makes the largest files
    questions = max(file.questions_per_task, BATCH_QUESTIONS)
    return replace(file, limits=limits, questions_per_task=questions, pools=pools)


def worker_and_sizes(
    session: Session, file: Cluster, uri: str, models: Sequence[Model]
) -> tuple[WorkerConfig, TaskSizes]:
    """Settings of a worker and sizes of tasks, as a cluster file says them."""
    threads = max(1, int(file.pools["embed"].cpus))
    addresses = endpoint_addresses(file, models, session.settings.keys, batch=True)
    timeout_s = file.limits.question_timeout_s
    limits = file.engines.limits(file.device) if file.engines else EngineLimits()
    place = WorkerConfig(
        uri,
        file.backend,
        file.device,
        threads,
        {},
        addresses,
        question_timeout_s=timeout_s,
        engine_limits=limits,
    )
    return place, TaskSizes(file.sources_per_task, file.questions_per_task)


def prices_of(session: Session, recipe: Recipe, judge: Model | None = None) -> Prices:
    """Returns what files say of prices, of a model that judges, too. Raises ConfError."""
    written, entries = session.cluster_file(), session.catalog().entries
    tokens, unpriced = {}, []
    asking = [(stage.name, models_of(stage.step)) for stage in (*recipe.corpus, *recipe.question)]
    for name, models in [*asking, *([(JUDGE, [judge])] if judge else [])]:
        for model in models:
            price = entries[model.name].usd_per_mtok if model.name in entries else None
            if price is not None:
                at = written.endpoints.get(model.path) if model.loader in REMOTE else None
                tokens[name] = price.in_batches() if at is not None and at.batch else price
            elif model.loader in REMOTE:  # what runs here is paid with its machine
                unpriced.append(model.name)
    machines = written.usd_per_hour
    asked = asked_by(recipe)
    placed_on = as_declared(written, asked)
    pools = {p.name: p for p in placement(placed_on, recipe.embedders(), asked)}
    engines = sum(p.actors * p.gpus for p in pools.values() if p.name.startswith("engines "))
    actors, gpus = {}, {}
    for stage_name, pool in pools_of_stages(recipe, list(pools)).items():
        actors[stage_name] = pools[pool].actors
        held = pools[pool].actors * pools[pool].gpus
        gpus[stage_name] = held + (engines if "answer" in pool else 0.0)
    lacking = [*dict.fromkeys(unpriced), *([MACHINES] if machines is None else [])]
    return Prices(tokens, machines, actors, gpus, tuple(lacking))
