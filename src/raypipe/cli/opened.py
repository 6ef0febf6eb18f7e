"""What a command names, opened: its recipe, its cluster, its store, ready to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe import conf
from raypipe.cli.settings import Settings
from raypipe.conf import Conf, Where
from raypipe.errors import ConfError
from raypipe.models import catalog
from raypipe.pipeline import Pipeline, Runner, Sizes, Verb, inline
from raypipe.recipe import Recipe, fitted_resolver, load
from raypipe.report.progress import Progress
from raypipe.step import Model
from raypipe.store import Store
from raypipe.text.evidence import Fitted
from raypipe.work import Place

if TYPE_CHECKING:
    from raypipe.cluster import Cluster


def recipe_of(args: argparse.Namespace, settings: Settings) -> Recipe:
    """The recipe that a command names."""
    return resolved(args.recipe, args.models, settings.conf)


def resolved(recipe: str, models_file: str | None, files: Conf) -> Recipe:
    """A recipe by name or path, its models and fitted numbers found."""
    file = Path(models_file) if models_file else files.file("models.yaml")
    models = catalog.read(conf.read_yaml(file), file)

    def model(name: Any, where: Where) -> Model:
        if not isinstance(name, str):
            raise where.error(f"expected the name of a model, found {conf.kind_of(name)}")
        try:
            return models.model(name)
        except ConfError as e:
            raise where.error(str(e)) from e

    path = files.find("recipes", recipe)
    return load(path, {Model: model, Fitted: fitted_resolver(Fitted, files)})


@dataclass(frozen=True, slots=True)
class Opened:
    place: Place
    sizes: Sizes
    runner: Runner
    workers: Mapping[Verb, int]


def cluster_of(args: argparse.Namespace, settings: Settings, uri: str) -> Opened:
    """The named cluster file, joined and checked: after this, what was asked for can start."""
    from raypipe import cluster  # Ray takes a second to import; `--help` and `parse` need none of it

    opened, file = _read_cluster(args, settings, uri)
    cluster.connect(settings.ray)
    cluster.preflight(file.pools, cluster.resources())
    runner: Runner = lambda verb, fill, parts: cluster.run_parts(fill, parts, file.pools[verb])  # noqa: E731
    return replace(opened, runner=runner)


def _read_cluster(args: argparse.Namespace, settings: Settings, uri: str) -> tuple[Opened, Cluster]:
    """What the named cluster file says, with everything done in this process."""
    from raypipe.cluster import Cluster

    path = settings.conf.find("clusters", args.cluster)
    file = conf.build(Cluster, conf.read_yaml(path), Where(str(path)))
    place = Place(uri, file.engine, file.device, max(1, int(file.pools["embed"].cpus)))
    sizes = Sizes(file.sources_per_part, file.questions_per_part)
    return Opened(place, sizes, inline, {verb: pool.actors for verb, pool in file.pools.items()}), file


def pipeline_here(args: argparse.Namespace, settings: Settings, store: Store) -> Pipeline:
    """The recipe over a store as the named cluster would run it, and no Ray: for a look, not for a run."""
    opened, _ = _read_cluster(args, settings, store.uri)
    silent = Progress(sys.stderr, silent=True)
    recipe = recipe_of(args, settings)
    return Pipeline(store, recipe, opened.place, opened.sizes, inline, silent, opened.workers)


@contextmanager
def pipeline_of(
    args: argparse.Namespace, settings: Settings, store: Store, silent: bool
) -> Iterator[Pipeline]:
    """The recipe over a store on the named cluster, with progress on stderr."""
    recipe = recipe_of(args, settings)
    where = cluster_of(args, settings, store.uri)
    with Progress(sys.stderr, silent=silent) as progress:
        yield Pipeline(store, recipe, where.place, where.sizes, where.runner, progress, where.workers)
