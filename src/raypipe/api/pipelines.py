"""Composition root: builds a pipeline from a recipe, a store and the session's cluster.

The pipeline of `open_pipeline` runs on Ray, and that of `in_process` in this process. The pipeline of
`offline_pipeline` only plans. `prices_of` collects prices. Ray is imported once there is work for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raypipe.api.served_models import JudgeKit, require_answering, require_unchanged
from raypipe.api.session import Session, Settings, endpoint_addresses, require_graphs
from raypipe.core.environment import cores
from raypipe.core.llm import JUDGE, Prices
from raypipe.core.progress import Progress
from raypipe.core.protocols import Model
from raypipe.evaluation.judge import OwnJudge
from raypipe.models import load
from raypipe.models.entry import REMOTE
from raypipe.models.hosts import EngineLimits
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import models_of
from raypipe.runs.cluster import capacity
from raypipe.runs.cluster.cluster_file import Cluster, Pool, PoolName
from raypipe.runs.cluster.placement import asked_by, placement, pools_of_stages, refuse, sharing
from raypipe.runs.pipeline.counters import MACHINES
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest_tasks import TaskReading
from raypipe.runs.pipeline.tasks import TableTask, Task, Verb, WorkerConfig, Workers, inline, with_worker
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.runs.cluster.engine_groups import EngineGroup
    from raypipe.runs.pipeline.tasks import HandedBack, TaskResult


class SizedCluster(NamedTuple):
    """A cluster file fitted to the machines that exist, and the recipe's vLLM engines on them."""

    cluster: Cluster
    group: EngineGroup | None
    streams: bool  # True: there is room to parse and to embed at the same time


@dataclass
class RayRun:
    """Runner of a recipe's tasks on Ray. A task computes missing rows of a table in a store.

    It connects to Ray for the first task, because starting Ray takes seconds and a run with nothing missing
    needs no Ray. If this process has a Ray already, it connects immediately. If the judge's model is a model
    of the recipe, the judge uses the recipe's engine, which then keeps running after the tasks.
    """

    settings: Settings
    worker: WorkerConfig  # settings that workers receive
    recipe: Recipe | None  # None: tasks only read files
    written: Cluster  # the cluster file, not yet sized
    engines: Sequence[Model]  # the recipe's models that may get an engine
    used: Sequence[Model]  # all models that tasks call
    judge: JudgeKit | None
    stats: list[str] = field(default_factory=list)  # statistics of each graph, as Ray Data prints them
    _loading: list[Any] = field(default_factory=list)  # references to processes that load models early

    def __post_init__(self) -> None:
        self._wanted = capacity.startable(self.written, self.engines)
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            self.connect()
        elif self.settings.ray == "local":  # a Ray started here has only this machine
            here = capacity.reachable(self.written, [capacity.this_machine()])
            capacity.fitting(self.written, self._wanted, here)

    @cached_property
    def _sized(self) -> SizedCluster:
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
            from raypipe.runs.cluster.engine_groups import EngineGroup

            group = EngineGroup.of(cluster, self.engines)
        streams = not cluster.pools["embed"].gpus or capacity.side_by_side(cluster, nodes) is not None
        return SizedCluster(cluster, group, streams)

    def connect(self) -> None:
        """Checks the models, also by requests to servers, then connects to Ray and fits the cluster file to
        its nodes. Does so only once. Raises ClusterTooSmall, ModelMissing, and errors of the servers."""
        _ = self._sized

    def ahead(self) -> None:
        """Starts loading embedders in CPU processes, while other work runs. Does nothing if embedders use
        GPUs, because their processes load them while pages are parsed."""
        pool = self._sized.cluster.pools["embed"]
        if self.recipe is not None and not pool.gpus and not self._loading:
            from raypipe.runs.cluster.graph import load_ahead

            self._loading = load_ahead(self.worker, self.recipe.embedders(), pool)

    def workers(self, verb: Verb) -> Workers:
        """Returns how many workers compute tasks of a kind, such as embed or answer. Connects to Ray."""
        return capacity.workers(self._sized.cluster, verb, bool(self._wanted))

    def streams(self) -> bool:
        """Returns whether parsing and embedding run at the same time. Connects to Ray."""
        return self._sized.streams

    def run(self, verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        """Runs tasks, and returns an iterator of their results in the order of completion."""
        if not tasks:
            return iter(())
        cluster, group, _ = self._sized
        writes = verb == "embed" and self.recipe is not None and self.recipe.writers()
        if group is not None and (verb == "answer" or writes):
            from raypipe.runs.cluster import engine_groups

            work = with_worker(work, engines=group.first_engines, further_engines=group.further_engines)
            if self.judge is None or not self.judge.share(group):
                run = engine_groups.run_with_engines
                return run(group, work, tasks, cluster.limits, self.stats.append)
            self.judge.start()
            run_tasks, pool = engine_groups.run_tasks, group.engines.answer
            return run_tasks(work, tasks, pool, cluster.limits, "answer", self.stats.append)
        from raypipe.runs.cluster import running

        pools = partial(self._pools, verb)
        return running.run(verb, work, tasks, pools, cluster.limits, self.stats.append)

    def _pools(self, verb: Verb) -> dict[PoolName, Pool]:
        """Returns the pools of worker processes for a kind of tasks, sized for the nodes of this moment."""
        from raypipe.runs.cluster import connection

        nodes = capacity.reachable(self.written, connection.nodes())
        cluster = capacity.sized(self.written, self._wanted, nodes)
        both = capacity.side_by_side(cluster, nodes) if verb == "index" else None
        return {**cluster.pools, **({"parse": both[0], "embed": both[1]} if both else {})}


@contextmanager
def open_pipeline(
    session: Session, store: Store, recipe: Recipe, answers: bool = True, judge: JudgeKit | None = None
) -> Iterator[Pipeline]:
    """Opens the pipeline of a recipe over a store, on the session's cluster, for a `with` block.

    With `answers` False, only the corpus steps run, and models that only question steps call may be missing.
    `judge` is the access to the judge's model; None means that no model judges. Raises ConfError for a
    cluster file or graph that does not fit, and ClusterTooSmall.
    """
    if answers:
        require_graphs(recipe)
    models = recipe.models() if answers else recipe.writers()
    asked = asked_by(recipe) if answers else recipe.writers()
    written = sharing(session.cluster_file(), asked)
    # Models that the declared machines cannot hold or compute are refused before connecting to Ray.
    declared = as_declared(written, capacity.startable(written, models))
    refuse(declared, recipe.embedders(), asked)
    used = models if answers else [m for stage in recipe.corpus for m in models_of(stage.step)]
    written = _with_batches(written, used)
    place, sizes = worker_and_sizes(session, written, store.uri, used)
    run = RayRun(session.settings, place, recipe, written, models, used, judge)
    batched, watching = [at for at in place.endpoints.values() if at.batch], ExitStack()
    with session.shown() as progress, watching:
        if batched:
            from raypipe.models.batch_api import watched

            watching.enter_context(watched(batched, progress.say))
        made = Pipeline(store, recipe, place, sizes, run.run, progress, run.workers, run.connect)
        yield replace(made, streams=run.streams, prestart=run.ahead, stats=run.stats)


def open_reading(session: Session, store: Store) -> TaskReading:
    """Returns the settings and functions for tasks that read files into a store. The session's cluster is
    used only for large files. Raises ConfError and ClusterTooSmall."""
    file = session.cluster_file()
    worker = WorkerConfig(store.uri, file.backend, file.device, 1)

    @cache
    def run() -> RayRun:
        return RayRun(session.settings, worker, None, file, (), (), None)

    return TaskReading(worker, lambda *of: run().run(*of), lambda: run().connect())


@contextmanager
def in_process(session: Session, store: Store, recipe: Recipe) -> Iterator[Pipeline]:
    """Opens a pipeline for the corpus steps of a recipe, for a `with` block. It runs in this process on all
    cores, without Ray. Raises ModelMissing for missing files of a model, and ConfError."""
    models = (*recipe.embedders(), *recipe.writers())
    for model in models:
        load.present(model)
    place, sizes = worker_and_sizes(session, session.cluster_file(), store.uri, models)
    place = replace(place, threads=cores())
    with session.shown() as progress:
        yield Pipeline(store, recipe, place, sizes, inline, progress)


def offline_pipeline(session: Session, store: Store, recipe: Recipe) -> Pipeline:
    """Builds a pipeline with the sizes that the session's cluster would use. It can plan, but not run."""
    require_graphs(recipe)
    file = as_declared(session.cluster_file(), recipe.models())
    place, sizes = worker_and_sizes(session, file, store.uri, ())
    silent, said = Progress(sys.stderr, silent=True), workers_of(file, recipe)
    return Pipeline(store, recipe, place, sizes, inline, silent, said)


def workers_of(file: Cluster, recipe: Recipe) -> Callable[[Verb], Workers]:
    """Returns a function that maps a kind of tasks to the number of workers for it in a cluster file."""
    return partial(capacity.workers, file, engines=any(m.loader == "vllm" for m in recipe.models()))


def as_declared(file: Cluster, models: Sequence[Model]) -> Cluster:
    """Sizes a cluster file for the machines that it declares, with engines for `models` that need one."""
    engined = [m for m in models if m.loader == "vllm"]
    return capacity.sized(sharing(file, models), engined, capacity.declared_nodes(file))


BATCH_QUESTIONS = 5_000
"""Least questions of a task whose chats are sent as a file: caps stop a run only between two such files."""


def _with_batches(file: Cluster, models: Sequence[Model]) -> Cluster:
    """Gives a cluster file larger tasks and one worker, if a model's endpoint takes chats in batches."""
    endpoints = [file.endpoints.get(m.path) for m in models if m.loader in REMOTE]
    if not any(at is not None and at.batch for at in endpoints):
        return file
    from raypipe.models.batch_api import WINDOW_S

    limits = replace(file.limits, open_timeout_s=file.limits.open_timeout_s + 2 * WINDOW_S)
    pools = {**file.pools, "answer": replace(file.pools["answer"], actors=1)}  # makes the largest files
    questions = max(file.questions_per_task, BATCH_QUESTIONS)
    return replace(file, limits=limits, questions_per_task=questions, pools=pools)


def worker_and_sizes(
    session: Session, file: Cluster, uri: str, models: Sequence[Model]
) -> tuple[WorkerConfig, TaskSizes]:
    """Returns the settings of a worker and the sizes of tasks, from a cluster file."""
    threads = max(1, int(file.pools["embed"].cpus))
    place = WorkerConfig(
        uri,
        file.backend,
        file.device,
        threads,
        endpoints=endpoint_addresses(file, models, session.settings.keys, batch=True),
        question_timeout_s=file.limits.question_timeout_s,
        engine_limits=file.engines.limits(file.device) if file.engines else EngineLimits(),
    )
    return place, TaskSizes(file.sources_per_task, file.questions_per_task)


def prices_of(session: Session, recipe: Recipe, judge: Model | OwnJudge | None = None) -> Prices:
    """Collects the prices of a recipe and of a judge that is a model. Raises ConfError for an invalid models
    or cluster file."""
    written, entries = session.cluster_file(), session.catalog().entries
    tokens, unpriced = {}, []
    stages = (*recipe.corpus, *recipe.question)
    asking = [(stage.name, model) for stage in stages for model in models_of(stage.step)]
    for name, model in [*asking, *([(JUDGE, judge)] if isinstance(judge, Model) else [])]:
        price = entries[model.name].usd_per_mtok if model.name in entries else None
        if price is not None:
            at = written.endpoints.get(model.path) if model.loader in REMOTE else None
            tokens[name] = price.in_batches() if at is not None and at.batch else price
        elif model.loader in REMOTE:  # a model that runs here costs only its machine
            unpriced.append(model.name)
    machines = written.usd_per_hour
    asked = asked_by(recipe)
    pools = {p.name: p for p in placement(as_declared(written, asked), recipe.embedders(), asked)}
    engines = sum(p.actors * p.gpus for p in pools.values() if p.name.startswith("engines "))
    placed = {name: pools[pool] for name, pool in pools_of_stages(recipe, list(pools)).items()}
    actors = {name: p.actors for name, p in placed.items()}
    gpus = {n: p.actors * p.gpus + (engines if "answer" in p.name else 0.0) for n, p in placed.items()}
    lacking = [*dict.fromkeys(unpriced), *([MACHINES] if machines is None else [])]
    return Prices(tokens, machines, actors, gpus, tuple(lacking))
