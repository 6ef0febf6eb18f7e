"""What a command names, opened: its recipe, its cluster, its store, ready to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raypipe import conf
from raypipe.cli.settings import Settings
from raypipe.conf import Conf, Where
from raypipe.models import catalog
from raypipe.pipeline import Pipeline, Runner, Sizes
from raypipe.recipe import Recipe, load
from raypipe.report.progress import Progress
from raypipe.resolve import resolvers
from raypipe.store import Store
from raypipe.work import Place


def recipe_of(args: argparse.Namespace, settings: Settings) -> Recipe:
    """The recipe that a command names."""
    return resolved(args.recipe, args.models, settings.conf)


def resolved(recipe: str, models_file: str | None, files: Conf) -> Recipe:
    """A recipe by name or path, with all that it names."""
    file = Path(models_file) if models_file else files.file("models.yaml")
    models = catalog.read(conf.read_yaml(file), file)
    return load(files.find("recipes", recipe), resolvers(files, models))


@dataclass(frozen=True, slots=True)
class Opened:
    place: Place
    sizes: Sizes
    runner: Runner


def cluster_of(args: argparse.Namespace, settings: Settings, uri: str) -> Opened:
    """The named cluster file, joined and checked: after this, what was asked for can start."""
    from raypipe import cluster  # Ray takes a second to import; `--help` and `parse` need none of it

    path = settings.conf.find("clusters", args.cluster)
    file = conf.build(cluster.Cluster, conf.read_yaml(path), Where(str(path)))
    cluster.connect(settings.ray)
    cluster.preflight(file.pools, cluster.resources())
    place = Place(uri, file.engine, file.device, max(1, int(file.pools["embed"].cpus)))
    return Opened(
        place,
        Sizes(file.sources_per_part, file.questions_per_part),
        lambda verb, fill, parts: cluster.run_parts(fill, parts, file.pools[verb]),
    )


@contextmanager
def pipeline_of(
    args: argparse.Namespace, settings: Settings, store: Store, silent: bool
) -> Iterator[Pipeline]:
    """The recipe over a store on the named cluster, with progress on stderr."""
    recipe = recipe_of(args, settings)
    where = cluster_of(args, settings, store.uri)
    with Progress(sys.stderr, silent=silent) as progress:
        yield Pipeline(store, recipe, where.place, where.sizes, where.runner, progress)
