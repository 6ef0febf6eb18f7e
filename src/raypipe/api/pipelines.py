"""The composition root: a recipe over a store, ready to run on the cluster that the session names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from raypipe.api.probes import require_unchanged
from raypipe.api.served import require_answering
from raypipe.api.session import Session, endpoint_addresses, require_graphs
from raypipe.cluster.capacity import (
    declared_nodes,
    fitting,
    reachable,
    sized,
    startable,
    this_machine,
    workers,
)
from raypipe.cluster.file import Cluster
from raypipe.cluster.placement import asked_by, refuse
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.pipeline.driver import Pipeline, Runner, TaskSizes, alone, inline, nowhere
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
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import models_of
from raypipe.report.progress import Progress
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.api.judges import JudgeKit
    from raypipe.cluster.pools import EngineGroup
    from raypipe.cluster.warm_pool import WarmPool


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tasks of a pipeline run."""

    place: WorkerConfig
    sizes: TaskSizes
    runner: Runner
    workers: Callable[[Verb], Workers] = alone
    connect: Callable[[], object] = nowhere
    close: Callable[[], object] = nowhere  # ends what the runner keeps running between tables


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
    where = _on_cluster(session, store.uri, recipe, answers, judge)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(sys.stderr, silent=not session.progress))
        stack.callback(where.close)
        yield Pipeline(
            store, recipe, where.place, where.sizes, where.runner, progress, where.workers, where.connect
        )


@contextmanager
def in_process(session: Session, store: Store, recipe: Recipe) -> Iterator[Pipeline]:
    """The corpus half of a recipe over a store, in this process on all its cores, without Ray. Raises
    ConfError, ModelMissing."""
    for model in recipe.embedders():
        load.present(model)
    opened = _in_process(session, session.cluster_file(), store.uri, ())
    place = replace(opened.place, threads=len(os.sched_getaffinity(0)))
    with Progress(sys.stderr, silent=not session.progress) as progress:
        yield Pipeline(store, recipe, place, opened.sizes, inline, progress)


def offline_pipeline(session: Session, store: Store, recipe: Recipe) -> Pipeline:
    """The recipe over a store as the session's cluster would run it, without Ray: to plan, not to run."""
    require_graphs(recipe)
    file = as_declared(session, recipe)
    opened, silent = _in_process(session, file, store.uri, ()), Progress(sys.stderr, silent=True)
    engines = any(m.loader == "vllm" for m in recipe.models())
    said = partial(workers, file, engines=engines)
    return Pipeline(store, recipe, opened.place, opened.sizes, inline, silent, said)


def as_declared(session: Session, recipe: Recipe) -> Cluster:
    """The cluster file, sized for the machines that it declares."""
    file = session.cluster_file()
    return sized(file, [m for m in recipe.models() if m.loader == "vllm"], declared_nodes(file))


def _on_cluster(
    session: Session, uri: str, recipe: Recipe, answers: bool, judge: JudgeKit | None = None
) -> Placed:
    """The cluster file, checked as far as it can be without Ray.

    Ray is connected to when the first task is run: starting it takes seconds, and a run with nothing missing
    needs none. Then the file is checked and sized on the nodes that there are; ClusterTooSmall is raised
    before any task runs, and so is ModelMissing: a worker would find it out only at its first row. Where the
    judge is one of the models, its engine is the recipe's, and stays up.
    """
    models = recipe.models() if answers else ()
    corpus = [m for stage in recipe.corpus for m in models_of(stage.step)]
    written = session.cluster_file()
    wanted = startable(written, models)
    # What is too large on the machines that the file is written for is refused before Ray is joined.
    asked = asked_by(recipe) if answers else ()
    refuse(sized(written, wanted, declared_nodes(written)), recipe.embedders(), asked)
    ray = session.settings.ray
    used = models or (*corpus, *recipe.embedders())
    opened = _in_process(session, written, uri, used)

    @cache
    def connected() -> tuple[Cluster, EngineGroup | None]:
        for model in used:
            load.present(model)
        require_answering(models, opened.place.endpoints)
        require_unchanged(Store.open(uri), used, opened.place.endpoints)
        if judge is not None:
            judge.require_answering()
        from raypipe.cluster import connection, pools  # Ray takes a second to import

        connection.connect(ray)
        connection.carry(recipe)
        file = fitting(written, wanted, reachable(written, connection.nodes()))
        return file, pools.EngineGroup.of(file, models)

    warm: list[WarmPool] = []  # at most one

    def close() -> None:
        while warm:
            warm.pop().close()

    if judge is not None:
        judge.before_start(close)

    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        connected()
    elif ray == "local":  # the most that a Ray started here can have
        fitting(written, wanted, reachable(written, [this_machine()]))

    def runner(verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        if not tasks:
            return iter(())
        from raypipe.cluster import pools
        from raypipe.cluster.warm_pool import WarmPool

        file, group = connected()
        if group is None or verb != "answer":
            if (pool := file.one_pool) is None:
                return pools.run_tasks(work, tasks, file.pools[verb], file.limits)
            if not warm:
                warm.append(WarmPool(pool, file.limits))
            return warm[0].run(work, tasks)
        close()  # the engines and their workers take its room
        work = with_worker(work, engines=group.names)
        if judge is None or not judge.share(group):
            return pools.run_with_engines(group, work, tasks, file.limits)
        judge.start()
        return pools.run_tasks(work, tasks, group.engines.answer, file.limits)

    return replace(
        opened,
        runner=runner,
        workers=lambda verb: workers(connected()[0], verb, bool(wanted)),
        connect=connected,
        close=close,
    )


def _in_process(session: Session, file: Cluster, uri: str, models: Sequence[Model]) -> Placed:
    """What a cluster file says, with all tasks run in this process."""
    threads = max(1, int(file.pools["embed"].cpus))
    addresses = endpoint_addresses(file, models, session.settings.keys)
    place = WorkerConfig(
        uri,
        file.backend,
        file.device,
        threads,
        {},
        addresses,
        question_timeout_s=file.limits.question_timeout_s,
    )
    return Placed(place, TaskSizes(file.sources_per_task, file.questions_per_task), inline)
