"""Models on servers, and the judge of an eval.

An option (`--llm`, `--judge`) names a model by URL#MODEL of a server, an entry of the models file, or a
folder. A judge can also be code of your own. The name of a model on a server is part of its identity, but the
server's address and key are in no digest. An embedder or reranker on a server is tested with fixed texts, and
the store keeps the first results. If a later test gives other results, another model has taken the name, and
an error keeps numbers of two models apart. Ray and HTTP clients are imported once a model is called.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raypipe.api.session import Session, Settings, endpoint_addresses
from raypipe.core.digests import own_identity, stable
from raypipe.core.errors import ConfError, FieldsRefused
from raypipe.core.llm import JUDGE, Chat, Generated, Generator, Sampling
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, digest
from raypipe.evaluation.judge import PROMPTS, Judge, ModelJudge, OwnJudge, judge_sampling
from raypipe.metrics.verdict_rules import DEFAULT_RULE, Rule
from raypipe.models import hosts, load
from raypipe.models.catalog import served_name
from raypipe.models.entry import LLM, REMOTE
from raypipe.models.hosts import KEY_VARIABLES, EndpointAddress, ServedModel, is_served
from raypipe.models.kit import LocalKit
from raypipe.recipes.resolve import prompt_file
from raypipe.recipes.step_contract import ChatKind
from raypipe.runs.cluster.capacity import reachable, sized, startable
from raypipe.store import Store
from raypipe.store.files import PROBES

if TYPE_CHECKING:
    from raypipe.runs.cluster.engine_groups import EngineGroup


def require_same(models: Sequence[Model], session: Session) -> None:
    """Raises ConfError if `--llm` names another generator than that in `models`, the models of a release."""
    if session.llm is None:
        return
    catalog = session.catalog()
    given = catalog.resolved(catalog.stand_in("--llm", session.llm))
    for model in (m for m in models if m.kind == "generator"):
        served = model.path == given.path == LLM
        if model.repo != given.repo if served else model.weights != given.weights:
            expected, found = (repr(m.repo or m.name) for m in (model, given))
            what = f"expected {expected}, the model of the release, found {found}"
            raise ConfError(f"--llm: {what}. Name the expected one, or promote a run of the other")


def require_answering(
    chats: Iterable[ChatKind],
    endpoints: Mapping[str, EndpointAddress],
    settings: Settings,
    remembered: bool = False,
) -> None:
    """Sends a test chat of each kind to the generators that are behind an OpenAI-compatible address.

    A kind of chat is a model with its sampling and adapter. `remembered` skips kinds that the address
    accepted in the last day. Raises Unavailable if a server does not answer, and ConfError if it refuses the
    key or lacks the model. Raises FieldsRefused if it refuses optional fields of chats, and records these
    fields. A recipe that is read again sends chats without them. Ignores other refusals and busy servers.
    """
    kinds: dict[Model, list[tuple[Sampling, str | None]]] = {}
    for model, sampling, adapter in chats:
        if model.loader == "openai":
            kinds.setdefault(model, []).append((sampling, adapter))
    for model, of in kinds.items():
        from raypipe.models.openai import fields_refused

        at, taken = hosts.address_of(model, endpoints), settings.taken_chats()
        bodies = {digest(at.url, stable((model, model.unsent, *kind))): kind for kind in of}
        if remembered:
            bodies = {key: kind for key, kind in bodies.items() if key not in taken}
        if not bodies:
            continue
        settings.keep_taken_chats({key: when for key, when in taken.items() if key not in bodies})
        key_name = KEY_VARIABLES.get(model.path, "of its endpoint")
        refused, took = fields_refused(model, at, list(dict.fromkeys(bodies.values())), key_name)
        now = {key: time.time() for key, kind in bodies.items() if kind in took}
        settings.keep_taken_chats(settings.taken_chats() | now)
        if refused:
            name = served_name(model.loader, model.dialect, model.path, model.repo, model.revision)
            settings.keep_unsent(name, (*model.unsent, *refused))
            why = f"{at.url}: {model.repo} refuses {', '.join(refused)}; chats are now sent without"
            raise FieldsRefused(f"{why}. Run the command again. For a release, eval and promote again")


def generator_of(session: Session, option: str, name: str, endpoint: str = "") -> Model:
    """Resolves the generator that an option names, even if `--llm` is given. Raises as `Catalog.stand_in`."""
    catalog = replace(session, llm=None).catalog()
    return catalog.resolved(catalog.stand_in(option, name, endpoint))


async def replies(
    session: Session, model: Model, chats: Sequence[Chat], sampling: Sampling
) -> list[Generated | Fault]:
    """Sends chats to a generator, and returns a reply or a fault for each."""
    endpoints = endpoint_addresses(session.cluster_file(), [model], session.settings.keys)
    async with LocalKit(None, engines=None, endpoints=endpoints) as kit:
        return await kit.generator(model)(chats, sampling)


TEXTS = (
    "who wrote the first program?",
    "Ada Lovelace wrote the first program.",
    "3,14 \u20ac \u65e5\u672c\u8a9e",
)
"""Texts of the probe. If they change, stored answers differ from new ones, which looks like another model."""

FAR = 0.005
"""Distance above which two answers come from different models. It is 1 minus the cosine of two vectors, or
the difference of two scores. The same model in half precision, or in other batches, remains below .001."""


def require_unchanged(
    store: Store | None, models: Iterable[Model], endpoints: Mapping[str, EndpointAddress]
) -> None:
    """Tests with fixed texts that each embedder and reranker on a server is the model that `store` knows.

    The first results are kept in `store`; None keeps and compares nothing. Raises ConfError if results do not
    fit the model's entry, or differ from the kept ones by more than FAR. Raises Unavailable if a server is
    down.
    """
    for model in models:
        if model.loader not in REMOTE or model.kind == "generator":
            continue
        opened = load.open_remote(model, endpoints)
        try:
            if model.kind == "reranker":
                found = opened.score([(TEXTS[0], text) for text in TEXTS])
            else:
                found = np.concatenate([opened.embed(TEXTS, role) for role in ("query", "passage")])
        except ValueError as e:  # the texts are too short to be the cause
            raise ConfError(f"{e}. Correct the model's entry, or the address of its endpoint") from e
        if store is None:
            continue
        name = f"{PROBES}/{own_identity(model)}.json"
        kept = json.loads(store.files.read(name) or b"null")
        if kept is None:
            store.files.write(name, json.dumps({"model": model.name, "numbers": found.tolist()}).encode())
        elif (far := distance(np.asarray(kept["numbers"], np.float32), found)) > FAR:
            what = f"other {'vectors' if model.kind == 'embedder' else 'scores'} than those in {store.uri}"
            raise ConfError(
                f"model {model.name!r} at endpoint {model.path!r} gives {what} (distance {far:.3f}): another "
                "model answers there. Restore the old, or give its entry a `revision`, to compute all again"
            )


def distance(old: np.ndarray, new: np.ndarray) -> float:
    """Returns the distance between two results of a model: 1 minus the smallest cosine for vectors (float32,
    one row of length 1 per text), the largest difference for scores, and infinity if the shapes differ."""
    if old.shape != new.shape:
        return float("inf")
    if old.ndim == 2:
        return float(1 - (old * new).sum(axis=1).min())
    return float(np.abs(old - new).max())


class JudgeKit(LocalKit):
    """Kit (access to models) by which a driver calls the judge. The first request starts the judge's engine.

    If the judged recipe has the same model in vLLM, the judge uses the recipe's engines (`share`). Otherwise
    `own` connects to Ray and returns the engines to start.
    """

    def __init__(
        self,
        model: Model,
        own: Callable[[], EngineGroup],
        endpoints: Mapping[str, EndpointAddress],
        ends: ExitStack,
        rule: Rule = DEFAULT_RULE,
    ) -> None:
        super().__init__(None, engines={}, endpoints=endpoints)
        self._sampling = judge_sampling(model, rule)
        self._needed = own_identity(model) if model.loader == "vllm" else None
        self._group, self._ends, self._model = own, ends, model

    def share(self, group: EngineGroup) -> bool:
        """Makes the judge use the engines of `group`, if they have its model. Returns True if they do."""
        if self._needed not in group.first_engines:
            return False
        self._group = lambda: group
        return True

    def require_answering(self, settings: Settings) -> None:
        """Checks that a judge behind an address answers. Raises as `require_answering`."""
        require_answering([(self._model, self._sampling, None)], self.endpoints, settings)

    def start(self) -> None:
        """Starts the judge's vLLM engines once, if it needs some. They stop at the end of `open_judge`."""
        if self._needed is not None and not self._engines:
            group = self._group()
            self._ends.enter_context(group.running())
            self._engines = group.first_engines

    def generator(self, model: Model) -> Generator:
        self.start()
        return super().generator(model)


def read_judge(session: Session, name: str | None, rule: Rule) -> Model | OwnJudge | None:
    """Resolves a judge by name; None without a name. Raises ModelMissing for an unknown name. Raises
    ConfError if the name is not that of a judge, and for a rule by which no judge can decide."""
    if name is None:
        return None
    if rule not in PROMPTS:
        known = ", ".join(PROMPTS)
        raise ConfError(f"--judge {name}: expected a rule that a judge knows ({known}), found {rule}")
    if is_path(name):
        return OwnJudge.load(name, rule)
    return generator_of(session, "--judge", name, JUDGE)


@contextmanager
def open_judge(
    session: Session, name: str | None, rule: Rule
) -> Iterator[tuple[Judge | None, JudgeKit | None]]:
    """Opens a judge for a `with` block. Yields the judge and its kit (access to its model). Both are None
    without a name; a judge that is code of your own has no kit. The block's end stops the judge's engine.
    Raises as `read_judge`."""
    model = read_judge(session, name, rule)
    if not isinstance(model, Model):
        yield model, None
        return
    load.present(model)
    written = session.cluster_file()
    if name and is_served(name):
        url = ServedModel.parse(name, "--judge").url
        written = written.with_endpoint(JUDGE, url, session.settings.keys)
    wanted = startable(written, [model])

    def own() -> EngineGroup:
        from raypipe.runs.cluster import connection, engine_groups

        connection.connect(session.settings.ray)
        nodes = reachable(written, connection.nodes())
        group = engine_groups.EngineGroup.of(sized(written, wanted, nodes), wanted)
        assert group is not None, "only a judge of an engine is started"
        group.preflight(nodes)
        return group

    endpoints = endpoint_addresses(written, [model], session.settings.keys, batch=True)
    with ExitStack() as ends:
        kit = JudgeKit(model, own, endpoints, ends, rule)
        yield ModelJudge(model, prompt_file(session.settings.conf, PROMPTS[rule]), rule, kit), kit
