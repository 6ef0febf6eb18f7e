"""The judge of an eval, opened: a model with its engine, or code from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from raypipe.api.served import JUDGE, ServedModel, generator_of, is_served, require_answering, with_endpoint
from raypipe.api.session import Session, endpoint_addresses
from raypipe.cluster.capacity import reachable, sized, startable
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generator
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.evaluation.judge import PROMPTS, Judge, ModelJudge, OwnJudge
from raypipe.metrics.crag import Rule
from raypipe.models import load
from raypipe.models.kit import LocalKit
from raypipe.models.load import EndpointAddress
from raypipe.recipes.resolve import prompt_file

if TYPE_CHECKING:
    from raypipe.cluster.pools import EngineGroup


class JudgeKit(LocalKit):
    """The kit of a driver that judges: an engine starts when the judge is first asked, and no sooner.

    Where the recipe that is judged asks the same model, both share the engine that was started first. `own`
    connects to Ray and gives the engines to start where nothing is shared.
    """

    def __init__(
        self, model: Model, own: Callable[[], EngineGroup], endpoints: Mapping[str, EndpointAddress],
        ends: ExitStack,
    ) -> None:  # fmt: skip
        super().__init__(None, engines={}, endpoints=endpoints)
        self._needed = model_identity(model) if model.loader == "vllm" else None
        self._group, self._ends, self._model = own, ends, model
        self._makes_room: Callable[[], object] = lambda: None

    def before_start(self, makes_room: Callable[[], object]) -> None:
        """What ends the workers that hold the room of the judge's engine."""
        self._makes_room = makes_room

    def share(self, group: EngineGroup) -> bool:
        """Takes the engines of a recipe's group for its own, if the judge's model is among them."""
        if self._needed not in group.names:
            return False
        self._group = lambda: group
        return True

    def require_answering(self) -> None:
        """Raises Unavailable or ConfError unless a judge that was named by its address is served there."""
        require_answering([self._model], self.endpoints)

    def start(self) -> None:
        """Starts the engines, once; they end with the block that made this kit."""
        if self._needed is not None and not self._engines:
            self._makes_room()
            group = self._group()
            self._ends.enter_context(group.running())
            self._engines = group.names

    def generator(self, model: Model) -> Generator:
        self.start()
        return super().generator(model)


def read_judge(session: Session, name: str, rule: Rule) -> Model | OwnJudge:
    """A judge by name: a generator of the models file, URL#MODEL of a server, or the path of a judge from
    outside.

    Raises ModelMissing for neither, ConfError for what is no judge, and for a rule that leaves nothing open.
    """
    if rule not in PROMPTS:
        known = ", ".join(PROMPTS)
        raise ConfError(f"--judge {name}: expected a rule that a judge knows ({known}), found {rule}")
    if is_path(name):
        return OwnJudge.load(name, rule)
    if is_served(name):
        return session.catalog().served(JUDGE, ServedModel.parse(name, "--judge").model)
    others = "Name one of it, give a file with this model by --models, URL#MODEL of a server, or MODULE:NAME"
    return generator_of(session, "--judge", name, f"{others} of a judge of your own")


def judge_model(session: Session, name: str | None, rule: Rule) -> Model | None:
    """The model of a judge by name; None: there is no judge, or it is code from outside. Raises as
    `read_judge`."""
    found = None if name is None else read_judge(session, name, rule)
    return None if isinstance(found, OwnJudge) else found


@contextmanager
def open_judge(
    session: Session, name: str | None, rule: Rule
) -> Iterator[tuple[Judge | None, JudgeKit | None]]:
    """A judge, ready to be asked, and its kit, if it is a model; its engine ends with the block. Raises as
    `read_judge`."""
    if name is None:
        yield None, None
        return
    found = read_judge(session, name, rule)
    if isinstance(found, OwnJudge):
        yield found, None
        return
    load.present(found)
    with ExitStack() as ends:
        kit = _kit(session, name, found, ends)
        yield ModelJudge(found, prompt_file(session.settings.conf, PROMPTS[rule]), rule, kit), kit


def _kit(session: Session, name: str, model: Model, ends: ExitStack) -> JudgeKit:
    written = session.cluster_file()
    if is_served(name):
        url = ServedModel.parse(name, "--judge").url
        written = with_endpoint(written, JUDGE, url, session.settings.keys)
    wanted = startable(written, [model])

    def own() -> EngineGroup:
        from raypipe.cluster import connection, pools

        connection.connect(session.settings.ray)
        nodes = reachable(written, connection.nodes())
        group = pools.EngineGroup.of(sized(written, wanted, nodes), wanted)
        assert group is not None, "only a judge of an engine is started"
        group.preflight(nodes)
        return group

    endpoints = endpoint_addresses(written, [model], session.settings.keys)
    return JudgeKit(model, own, endpoints, ends)
