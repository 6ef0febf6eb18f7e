"""`raypipe serve`: the endpoint on this machine, for this machine."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raypipe import conf
from raypipe.cli import options
from raypipe.cli.opened import addresses, resolved
from raypipe.cli.settings import Settings
from raypipe.cluster_file import Cluster
from raypipe.conf import Where
from raypipe.graph.known import placed
from raypipe.models import load
from raypipe.models.load import Room
from raypipe.recipe import Recipe
from raypipe.rooms import on_paper, preflight, sized
from raypipe.step import Model
from raypipe.work import Place

if TYPE_CHECKING:
    from ray.serve import Application


HOST = "127.0.0.1"  # nobody else: there are no keys yet
PORT = 8000


def add(commands: options.Commands) -> None:
    """Declares `serve`."""
    made = options.command(
        commands,
        "serve",
        "answer questions over HTTP on this machine",
        "raypipe serve local --store /data/store --port 8000",
        _serve,
    )
    options.recipe(made, optional=True)
    options.store(made)
    options.cluster(made)
    made.add_argument(
        "--port", metavar="N", type=options.at_least(1), default=PORT, help=f"on {HOST} (default: {PORT})"
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What an endpoint is made of, by name, as on the command line."""

    recipe: str = "local"  # a name under conf/recipes, or a path
    models: str | None = None  # models file in place of conf/models.yaml
    store: str | None = None  # URI
    cluster: str = "laptop"  # a name under conf/clusters, or a path: engine, device and threads of the models
    graphs: Mapping[str, str] = field(default_factory=dict)  # name -> where it lies; "": all others

    def resolved(self, settings: Settings) -> Recipe:
        """The recipe. Raises ConfError for a graph whose place nobody said."""
        recipe = resolved(self.recipe, self.models, settings.conf, self.graphs)
        for graph in recipe.graphs():
            placed(graph)
        return recipe

    def application(self, settings: Settings) -> Application:
        """The application for Ray Serve. The store need not be there yet."""
        from raypipe import deploy  # Ray takes a second to import; `--help` needs none of it

        file = self.file(settings)
        pool = file.pools["embed"]
        store = settings.store_to_use(self.store)
        recipe = self.resolved(settings)
        asked = addresses(file, recipe.models(), settings.keys)
        room = file.engines.room(file.device) if file.engines else Room()
        threads = max(1, int(pool.cpus))
        place = Place(store, file.engine, file.device, threads, endpoints=asked, room=room)
        if (engines := file.engines) is None or not (vllm := _engines(recipe)):
            return deploy.deployed(recipe, place, gpus=min(pool.gpus, 1.0) / 2)  # the two kinds share one
        held = sum(engines.needs(model)["GPU"] for model in vllm)
        return deploy.deployed(recipe, place, gpus=engines.answer.gpus / 2, engine_gpus=held)

    def check(self, settings: Settings) -> None:
        """Raises ModelMissing or ConfError unless every model's files are here and may be read, and the
        cluster file has room for engines where the recipe needs one."""
        from raypipe import cluster

        models = self.resolved(settings).models()
        for model in models:
            load.present(model)
        cluster.startable(self.file(settings), models)

    def file(self, settings: Settings) -> Cluster:
        """The cluster file."""
        path = settings.conf.find("clusters", self.cluster)
        file = conf.build(Cluster, conf.read_yaml(path), Where(str(path)))
        return sized(file, (), on_paper(file))


def _engines(recipe: Recipe) -> list[Model]:
    """The models of a recipe that are asked through an engine of this cluster."""
    return [m for m in recipe.models() if m.loader == "vllm"]


def _serve(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe import cluster, deploy

    endpoint = Endpoint(args.recipe, args.models, args.store, args.cluster, options.graphs_of(args))
    endpoint.check(settings)  # a replica that cannot start is tried again and again
    application = endpoint.application(settings)
    cluster.connect("local")  # a Serve that runs elsewhere may listen to others
    preflight({"embed": endpoint.file(settings).pools["embed"]}, cluster.nodes())
    try:
        deploy.run(application, HOST, args.port)
        print(
            f"answering on http://{HOST}:{args.port}/v1/answer; Ctrl-C ends it", file=sys.stderr, flush=True
        )
        threading.Event().wait()
    finally:
        deploy.stop()
    return 0
