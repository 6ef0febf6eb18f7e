"""What a command names, opened: its recipe, its cluster, its store, ready to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.settings import Settings
from raypipe.cluster.capacity import fitting, on_paper, reachable, sized, this_machine
from raypipe.cluster.file import Cluster
from raypipe.cluster.placement import asked_by, refuse
from raypipe.core import config
from raypipe.core.config import Conf, Where
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generate
from raypipe.core.protocols import Model
from raypipe.evaluation.judge import PROMPTS, Judge
from raypipe.kg.adapter import placed
from raypipe.metrics.crag import Rule
from raypipe.models import catalog
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit
from raypipe.models.load import Address
from raypipe.pipeline.driver import Pipeline, Runner, Sizes, inline
from raypipe.pipeline.tasks import Fill, Part, PartDone, Place, Verb
from raypipe.recipes.recipe import Recipe, load
from raypipe.recipes.resolve import prompt_file, resolvers
from raypipe.report.progress import Progress
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.cluster.pools import Team


def catalog_of(models_file: str | None, files: Conf) -> Catalog:
    """The models file that a command names, else conf/models.yaml."""
    file = Path(models_file) if models_file else files.file("models.yaml")
    return catalog.read(config.read_yaml(file), file)


def recipe_of(args: argparse.Namespace, settings: Settings) -> Recipe:
    """The recipe that a command names. Where its graphs lie is checked by who asks them (`asking`)."""
    return resolved(args.recipe, args.models, settings.conf, options.graphs_of(args))


def asking(recipe: Recipe) -> Recipe:
    """The same recipe. Raises ConfError for a graph that nobody said the place of."""
    for graph in recipe.graphs():
        placed(graph)
    return recipe


def resolved(
    recipe: str, models_file: str | None, files: Conf, graphs: Mapping[str, str] = MappingProxyType({})
) -> Recipe:
    """A recipe by name or path, with all that it names. `graphs`: where graphs lie, as in `resolvers`."""
    return load(files.find("recipes", recipe), resolvers(files, catalog_of(models_file, files), graphs))


def judge_of(args: argparse.Namespace, settings: Settings) -> Judge | None:
    """The judge that a command names, with the prompt of the rule that it judges for."""
    if args.judge is None:
        return None
    model = catalog_of(args.models, settings.conf).model(args.judge)
    if model.kind != "generator":
        raise ConfError(f"--judge {args.judge}: expected a generator, found a model of kind {model.kind}")
    rule: Rule = args.rule
    return Judge(model, prompt_file(settings.conf, PROMPTS[rule]), rule)


def cluster_file(args: argparse.Namespace, settings: Settings) -> Cluster:
    """The cluster file that a command names."""
    path = settings.conf.find("clusters", args.cluster)
    return config.build(Cluster, config.read_yaml(path), Where(str(path)))


def addresses(file: Cluster, models: Sequence[Model], keys: Mapping[str, str]) -> dict[str, Address]:
    """The endpoints that these models are asked at, with their keys. Raises ConfError for a key that the
    environment has not."""
    wanted = {m.path for m in models if m.loader == "openai"}
    found = {}
    for name, at in file.endpoints.items():
        if name not in wanted:
            continue
        if at.key_env and not keys.get(at.key_env):
            raise ConfError(
                f"endpoint {name!r}: expected its key in the environment variable {at.key_env}, found none. "
                f"Set it, or remove key_env from the cluster file if the endpoint takes no key"
            )
        key = keys[at.key_env] if at.key_env else ""
        found[name] = Address(at.url, key, at.dialect, at.concurrency, at.per_minute, at.timeout_s, at.tries)
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    place: Place
    sizes: Sizes
    runner: Runner
    workers: Mapping[Verb, int]


def cluster_of(
    args: argparse.Namespace,
    settings: Settings,
    uri: str,
    recipe: Recipe,
    answers: bool,
    judge: JudgeKit | None = None,
) -> Opened:
    """The named cluster file, joined and checked: after this, what was asked for can start. Where the judge
    is one of the models, its engine is the recipe's, and stays up for it."""
    from raypipe.cluster import pools  # Ray takes a second to import; `--help` and `parse` need none of it

    models = recipe.models() if answers else ()
    written = cluster_file(args, settings)
    wanted = pools.startable(written, models)
    # What is too large on the machines that the file is written for is refused before Ray is joined.
    asked = asked_by(recipe) if answers else ()
    refuse(sized(written, wanted, on_paper(written)), recipe.embedders(), asked)
    if settings.ray == "local" and not pools.joined():  # said before a Ray is started, which takes seconds
        fitting(written, wanted, reachable(written, [this_machine()]))
    pools.connect(settings.ray)
    file = fitting(written, wanted, reachable(written, pools.nodes()))
    team = pools.Team.of(file, models)
    shared = judge is not None and team is not None and judge.share(team)

    def runner(verb: Verb, fill: Fill, parts: Sequence[Part]) -> Iterator[PartDone]:
        if team and verb == "answer":
            if not (shared and judge):
                return pools.run_beside(team, fill, parts, file.limits)
            if parts:
                judge.start()
            return pools.run_parts(fill, parts, team.engines.answer, file.limits)
        return pools.run_parts(fill, parts, file.pools[verb], file.limits)

    opened = _opened(file, settings, uri, models)
    place = replace(opened.place, engines=team.names if team else {})
    return replace(opened, place=place, runner=runner)


def _opened(file: Cluster, settings: Settings, uri: str, models: Sequence[Model]) -> Opened:
    """What a sized cluster file says, with everything done in this process."""
    threads = max(1, int(file.pools["embed"].cpus))
    asked = addresses(file, models, settings.keys)
    place = Place(uri, file.engine, file.device, threads, {}, asked, question_s=file.limits.question_s)
    sizes = Sizes(file.sources_per_part, file.questions_per_part)
    return Opened(place, sizes, inline, {verb: pool.size for verb, pool in file.pools.items()})


def on_named_paper(args: argparse.Namespace, settings: Settings, recipe: Recipe) -> Cluster:
    """The named cluster file, sized for the machines that it is written for."""
    file = cluster_file(args, settings)
    return sized(file, [m for m in recipe.models() if m.loader == "vllm"], on_paper(file))


def pipeline_here(args: argparse.Namespace, settings: Settings, store: Store) -> Pipeline:
    """The recipe over a store as the named cluster would run it, and no Ray: for a look, not for a run."""
    recipe = asking(recipe_of(args, settings))
    opened = _opened(on_named_paper(args, settings, recipe), settings, store.uri, ())
    silent = Progress(sys.stderr, silent=True)
    return Pipeline(store, recipe, opened.place, opened.sizes, inline, silent, opened.workers)


@contextmanager
def pipeline_of(
    args: argparse.Namespace,
    settings: Settings,
    store: Store,
    silent: bool,
    part: Callable[[Recipe], Recipe] = lambda whole: whole,
    answers: bool = True,
    judge: JudgeKit | None = None,
) -> Iterator[Pipeline]:
    """The recipe, or the part of it that is run, over a store on the named cluster, with progress on stderr.
    Language models need not be here for what asks none: a ranking, or (`answers` False) the corpus half.
    `judge` is the kit of who will judge the answers."""
    recipe = part(recipe_of(args, settings))
    if answers:
        asking(recipe)
    where = cluster_of(args, settings, store.uri, recipe, answers, judge)
    with Progress(sys.stderr, silent=silent) as progress:
        yield Pipeline(store, recipe, where.place, where.sizes, where.runner, progress, where.workers)


class JudgeKit(LocalKit):
    """The kit of a driver that judges: an engine is started when the judge is first asked, and no sooner,
    unless the recipe that is judged asks the same model: then both share what was started first."""

    def __init__(self, team: Team | None, endpoints: Mapping[str, Address], ends: ExitStack) -> None:
        super().__init__(None, engines=team.names if team else {}, endpoints=endpoints)
        self._team, self._ends = team, ends
        self._up = False

    def share(self, team: Team) -> bool:
        """Takes the engines of a recipe's team for its own, if the judge's model is among them."""
        if self._team is None or not self._team.names.keys() <= team.names.keys():
            return False
        self._team, self._engines = team, team.names
        return True

    def start(self) -> None:
        """Starts the engines, once; they end with the block that made this kit."""
        from raypipe.cluster import pools

        if self._team is not None and not self._up:
            self._team.preflight(pools.nodes())
            self._ends.enter_context(self._team.at_work())
            self._up = True

    def generator(self, model: Model) -> Generate:
        self.start()
        return super().generator(model)


@contextmanager
def judging(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[Judge, JudgeKit] | None]:
    """The judge that a command names, ready to be asked; its engine ends with the block."""
    judge = judge_of(args, settings)
    if judge is None:
        yield None
        return
    from raypipe.cluster import pools

    written = cluster_file(args, settings)
    file = sized(written, pools.startable(written, [judge.model]), on_paper(written))
    team = pools.Team.of(file, [judge.model])
    endpoints = addresses(file, [judge.model], settings.keys)
    with ExitStack() as ends:
        yield judge, JudgeKit(team, endpoints, ends)
