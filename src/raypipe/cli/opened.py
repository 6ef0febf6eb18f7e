"""What a command names, opened: its recipe, its cluster, its store, ready to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.settings import Settings
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
from raypipe.core import config
from raypipe.core.config import Conf, Where
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generator
from raypipe.core.protocols import Model
from raypipe.evaluation.judge import PROMPTS, Judge
from raypipe.kg import adapter
from raypipe.metrics.crag import Rule
from raypipe.models import catalog
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit
from raypipe.models.load import EndpointAddress
from raypipe.pipeline.driver import Pipeline, Runner, TaskSizes, alone, inline, nowhere
from raypipe.pipeline.tasks import TableTask, Task, TaskResult, Verb, WorkerConfig, Workers, placed
from raypipe.recipes.recipe import Recipe, load
from raypipe.recipes.resolve import prompt_file, resolvers
from raypipe.report.progress import Progress
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.cluster.pools import EngineGroup


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
        adapter.require_location(graph)
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


def addresses(file: Cluster, models: Sequence[Model], keys: Mapping[str, str]) -> dict[str, EndpointAddress]:
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
        found[name] = EndpointAddress(
            at.url, key, at.dialect, at.concurrency, at.per_minute, at.timeout_s, at.tries
        )
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    place: WorkerConfig
    sizes: TaskSizes
    runner: Runner
    workers: Callable[[Verb], Workers] = alone
    connect: Callable[[], object] = nowhere


def cluster_of(
    args: argparse.Namespace,
    settings: Settings,
    uri: str,
    recipe: Recipe,
    answers: bool,
    judge: JudgeKit | None = None,
) -> Opened:
    """The named cluster file, checked as far as it can be without a Ray, which is connected to when the first
    thing is to be done: starting one takes seconds, and a run that finds everything done needs none. Then the
    file is checked and sized on the nodes that there are; ClusterTooSmall is raised before anything is done.
    Where the judge is one of the models, its engine is the recipe's, and stays up for it."""
    models = recipe.models() if answers else ()
    written = cluster_file(args, settings)
    wanted = startable(written, models)
    # What is too large on the machines that the file is written for is refused before Ray is joined.
    asked = asked_by(recipe) if answers else ()
    refuse(sized(written, wanted, declared_nodes(written)), recipe.embedders(), asked)

    @cache
    def connected() -> tuple[Cluster, EngineGroup | None]:
        from raypipe.cluster import pools  # Ray takes a second to import

        pools.connect(settings.ray)
        pools.carry(recipe)
        file = fitting(written, wanted, reachable(written, pools.nodes()))
        return file, pools.EngineGroup.of(file, models)

    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        connected()
    elif settings.ray == "local":  # the most that a Ray started here can have
        fitting(written, wanted, reachable(written, [this_machine()]))

    def runner(verb: Verb, fill: TableTask, parts: Sequence[Task]) -> Iterator[TaskResult]:
        if not parts:
            return iter(())
        from raypipe.cluster import pools

        file, team = connected()
        if team is None or verb != "answer":
            return pools.run_tasks(fill, parts, file.pools[verb], file.limits)
        fill = placed(fill, engines=team.names)
        if judge is None or not judge.share(team):
            return pools.run_with_engines(team, fill, parts, file.limits)
        judge.start()
        return pools.run_tasks(fill, parts, team.engines.answer, file.limits)

    opened = _opened(written, settings, uri, models)
    return replace(
        opened,
        runner=runner,
        workers=lambda verb: workers(connected()[0], verb, bool(wanted)),
        connect=connected,
    )


def _opened(file: Cluster, settings: Settings, uri: str, models: Sequence[Model]) -> Opened:
    """What a cluster file says, with everything done in this process."""
    threads = max(1, int(file.pools["embed"].cpus))
    asked = addresses(file, models, settings.keys)
    place = WorkerConfig(uri, file.engine, file.device, threads, {}, asked, question_s=file.limits.question_s)
    sizes = TaskSizes(file.sources_per_part, file.questions_per_part)
    return Opened(place, sizes, inline)


def on_named_paper(args: argparse.Namespace, settings: Settings, recipe: Recipe) -> Cluster:
    """The named cluster file, sized for the machines that it is written for."""
    file = cluster_file(args, settings)
    return sized(file, [m for m in recipe.models() if m.loader == "vllm"], declared_nodes(file))


def pipeline_here(args: argparse.Namespace, settings: Settings, store: Store) -> Pipeline:
    """The recipe over a store as the named cluster would run it, and no Ray: for a look, not for a run."""
    recipe = asking(recipe_of(args, settings))
    file = on_named_paper(args, settings, recipe)
    opened, silent = _opened(file, settings, store.uri, ()), Progress(sys.stderr, silent=True)
    engines = any(m.loader == "vllm" for m in recipe.models())
    said = partial(workers, file, engines=engines)
    return Pipeline(store, recipe, opened.place, opened.sizes, inline, silent, said)


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
        yield Pipeline(
            store, recipe, where.place, where.sizes, where.runner, progress, where.workers, where.connect
        )


class JudgeKit(LocalKit):
    """The kit of a driver that judges: an engine is started when the judge is first asked, and no sooner,
    unless the recipe that is judged asks the same model: then both share what was started first. `own`
    connects to Ray and says which engines to start where nothing is shared."""

    def __init__(
        self,
        model: Model,
        own: Callable[[], EngineGroup],
        endpoints: Mapping[str, EndpointAddress],
        ends: ExitStack,
    ) -> None:
        super().__init__(None, engines={}, endpoints=endpoints)
        self._needed = model_identity(model) if model.loader == "vllm" else None
        self._own_team, self._ends = own, ends
        self._team: EngineGroup | None = None
        self._up = False

    def share(self, team: EngineGroup) -> bool:
        """Takes the engines of a recipe's team for its own, if the judge's model is among them."""
        if self._needed not in team.names:
            return False
        self._team = team
        return True

    def start(self) -> None:
        """Starts the engines, once; they end with the block that made this kit."""
        if self._needed is not None and not self._up:
            team = self._team or self._own_team()
            self._ends.enter_context(team.at_work())
            self._engines = team.names
            self._up = True

    def generator(self, model: Model) -> Generator:
        self.start()
        return super().generator(model)


@contextmanager
def judging(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[Judge, JudgeKit] | None]:
    """The judge that a command names, ready to be asked; its engine ends with the block."""
    judge = judge_of(args, settings)
    if judge is None:
        yield None
        return
    written = cluster_file(args, settings)
    wanted = startable(written, [judge.model])

    def own() -> EngineGroup:
        from raypipe.cluster import pools

        pools.connect(settings.ray)
        nodes = reachable(written, pools.nodes())
        team = pools.EngineGroup.of(sized(written, wanted, nodes), wanted)
        assert team is not None, "only a judge of an engine is started"
        team.preflight(nodes)
        return team

    with ExitStack() as ends:
        yield judge, JudgeKit(judge.model, own, addresses(written, [judge.model], settings.keys), ends)
