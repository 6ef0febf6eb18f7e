"""The composition root: a recipe over a store, ready to run on the cluster that the session names, and what
it costs there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from raypipe.api.ray_run import RayRun
from raypipe.api.session import Session, endpoint_addresses, require_graphs
from raypipe.cluster.capacity import declared_nodes, sized, startable, workers
from raypipe.cluster.file import Cluster
from raypipe.cluster.placement import asked_by, placement, pools_of_stages, refuse, stage_models
from raypipe.core.prices import JUDGE, Prices
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.entry import REMOTE
from raypipe.pipeline.counters import MACHINES
from raypipe.pipeline.driver import Pipeline, TaskSizes
from raypipe.pipeline.ingest_tasks import TaskReading
from raypipe.pipeline.tasks import Verb, WorkerConfig, Workers, inline
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import models_of
from raypipe.report.progress import Progress
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.api.judges import JudgeKit


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
    place, sizes, run = _on_cluster(session, store.uri, recipe, answers, judge)
    with session.shown() as progress, closing(run):
        yield Pipeline(
            store,
            recipe,
            place,
            sizes,
            run.run,
            progress,
            run.workers,
            run.connect,
            streams=run.streams,
            ahead=run.ahead,
        )


@contextmanager
def open_reading(session: Session, store: Store) -> Iterator[TaskReading]:
    """How files are read into a store on the session's cluster, which is connected to for large ones alone.
    Raises ConfError, ClusterTooSmall."""
    file = session.cluster_file()
    with ExitStack() as stack:

        @cache
        def run() -> RayRun:
            made = RayRun(session.settings.ray, worker, None, file, (), (), None)
            stack.callback(made.close)
            return made

        worker = WorkerConfig(store.uri, file.backend, file.device, 1)
        yield TaskReading(worker, lambda *of: run().run(*of), lambda: run().connect())


@contextmanager
def in_process(session: Session, store: Store, recipe: Recipe) -> Iterator[Pipeline]:
    """The corpus half of a recipe over a store, in this process on all its cores, without Ray. Raises
    ConfError, ModelMissing."""
    for model in recipe.embedders():
        load.present(model)
    place, sizes = _placed(session, session.cluster_file(), store.uri, ())
    place = replace(place, threads=len(os.sched_getaffinity(0)))
    with session.shown() as progress:
        yield Pipeline(store, recipe, place, sizes, inline, progress)


def offline_pipeline(session: Session, store: Store, recipe: Recipe) -> Pipeline:
    """The recipe over a store as the session's cluster would run it, without Ray: to plan, not to run."""
    require_graphs(recipe)
    file = as_declared(session, recipe)
    place, sizes = _placed(session, file, store.uri, ())
    silent, said = Progress(sys.stderr, silent=True), workers_of(file, recipe)
    return Pipeline(store, recipe, place, sizes, inline, silent, said)


def workers_of(file: Cluster, recipe: Recipe) -> Callable[[Verb], Workers]:
    """How many workers a cluster file has for each verb of a recipe."""
    return partial(workers, file, engines=any(m.loader == "vllm" for m in recipe.models()))


def as_declared(session: Session, recipe: Recipe) -> Cluster:
    file = session.cluster_file()
    return sized(file, [m for m in recipe.models() if m.loader == "vllm"], declared_nodes(file))


def _on_cluster(
    session: Session, uri: str, recipe: Recipe, answers: bool, judge: JudgeKit | None
) -> tuple[WorkerConfig, TaskSizes, RayRun]:
    """The cluster file, checked as far as it can be without Ray. What is too large on the machines that it is
    written for is refused before Ray is joined."""
    models = recipe.models() if answers else ()
    corpus = [m for stage in recipe.corpus for m in models_of(stage.step)]
    written = session.cluster_file()
    asked = asked_by(recipe) if answers else ()
    refuse(sized(written, startable(written, models), declared_nodes(written)), recipe.embedders(), asked)
    used = models or (*corpus, *recipe.embedders())
    place, sizes = _placed(session, written, uri, used)
    run = RayRun(session.settings.ray, place, recipe, written, models, used, judge)
    return place, sizes, run


def _placed(
    session: Session, file: Cluster, uri: str, models: Sequence[Model]
) -> tuple[WorkerConfig, TaskSizes]:
    """What a cluster file says of a worker and of its tasks."""
    threads = max(1, int(file.pools["embed"].cpus))
    addresses = endpoint_addresses(file, models, session.settings.keys)
    timeout_s = file.limits.question_timeout_s
    place = WorkerConfig(uri, file.backend, file.device, threads, {}, addresses, question_timeout_s=timeout_s)
    return place, TaskSizes(file.sources_per_task, file.questions_per_task)


def prices_of(session: Session, recipe: Recipe, judge: Model | None = None) -> Prices:
    """What files say of prices, of a model that judges, too. Raises ConfError."""
    written, entries = session.cluster_file(), session.catalog().entries
    tokens, unpriced = {}, []
    asking = [(stage.name, stage_models(stage.step)) for stage in recipe.question]
    for name, models in [*asking, *([(JUDGE, [judge])] if judge else [])]:
        for model in models:
            price = entries[model.name].usd_per_mtok if model.name in entries else None
            if price is not None:
                tokens[name] = price
            elif model.loader in REMOTE:  # what runs here is paid with its machine
                unpriced.append(model.name)
    machines = written.usd_per_hour
    asked = asked_by(recipe)
    placed_on = sized(written, [m for m in asked if m.loader == "vllm"], declared_nodes(written))
    pools = {p.name: p for p in placement(placed_on, recipe.embedders(), asked)}
    engines = sum(p.actors * p.gpus for p in pools.values() if p.name.startswith("engines "))
    actors, gpus = {}, {}
    for stage_name, pool in pools_of_stages(recipe, list(pools)).items():
        actors[stage_name] = pools[pool].actors
        held = pools[pool].actors * pools[pool].gpus
        gpus[stage_name] = held + (engines if "answer" in pool else 0.0)
    lacking = [*dict.fromkeys(unpriced), *([MACHINES] if machines is None else [])]
    return Prices(tokens, machines, actors, gpus, tuple(lacking))
