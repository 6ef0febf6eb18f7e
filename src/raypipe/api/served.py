"""Models named on the command line: by their server, `--llm URL#MODEL`, `--judge URL#MODEL`, or as an entry
of the models file that a command asks on its own.

Knows how such a name is written and which environment variable has its key. The model's name is identity; the
address and the key are in no digest. An embedder or reranker behind an address is probed before work with a
few fixed texts: a later answer that differs means that another model answers under the same name, whose
numbers must not stand next to the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raypipe.api.session import Session, endpoint_addresses
from raypipe.cluster.file import Cluster, EndpointEntry
from raypipe.core.config import did_you_mean
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models import load
from raypipe.models.entry import LLM, REMOTE
from raypipe.models.kit import LocalKit
from raypipe.models.load import EndpointAddress
from raypipe.store import Store
from raypipe.store.layout import PROBES

JUDGE = "judge"  # the endpoint that `--judge URL#MODEL` gives an address
KEYS: Mapping[str, str] = {LLM: "RAYPIPE_LLM_KEY", JUDGE: "RAYPIPE_JUDGE_KEY"}
"""Endpoint -> the environment variable that has its key. Not set: no key is sent."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model behind an address."""

    url: str  # up to and with /v1
    model: str  # as the server calls it

    @classmethod
    def parse(cls, text: str, option: str) -> ServedModel:
        """Reads `URL#MODEL`. Raises ConfError for anything else, naming the option; a URL with a name or
        password in it is refused, since logs would show it."""
        url, _, model = text.partition("#")
        expected = f"{option}: expected URL#MODEL, such as http://127.0.0.1:8000/v1#Qwen/Qwen3-8B"
        host = url.partition("://")[2].partition("/")[0]
        if "@" in host:
            raise ConfError(
                f"{expected}; the address has a name or password in it. Put the key in the environment "
                f"variable {' or '.join(KEYS.values())}"
            )
        if not url.startswith(("http://", "https://")) or not host or "?" in url:
            raise ConfError(f"{expected}; found the address {url!r}")
        if not model.strip():
            raise ConfError(
                f"{expected}; found no model. `curl {url.rstrip('/')}/models` lists what is served"
            )
        return cls(url.rstrip("/"), model)


def is_served(text: str) -> bool:
    """Whether a name is an address in place of an entry's name."""
    return "://" in text


def with_endpoint(file: Cluster, name: str, url: str, keys: Mapping[str, str]) -> Cluster:
    """The cluster file with the address of an endpoint; limits stay as the file says them."""
    key = KEYS[name] if keys.get(KEYS[name]) else ""
    at = replace(file.endpoints.get(name, EndpointEntry(url)), url=url, key_env=key)
    return replace(file, endpoints={**file.endpoints, name: at})


def require_same(models: Sequence[Model], llm: str | None) -> None:
    """Raises ConfError where a release was made with another model than `--llm` names now."""
    if llm is None:
        return
    given = ServedModel.parse(llm, "--llm")
    for model in models:
        if model.path == LLM and model.repo != given.model:
            raise ConfError(
                f"--llm: the release was made with the model {model.repo!r}, found {given.model!r}. Give "
                f"{given.url}#{model.repo}, or promote a run that was made with the other"
            )


def require_answering(models: Iterable[Model], endpoints: Mapping[str, EndpointAddress]) -> None:
    """Raises Unavailable or ConfError unless each model that was named by its address is served there."""
    for model in models:
        if model.path in KEYS and model.path in endpoints:
            from raypipe.models.remote import require_served

            require_served(model.repo, endpoints[model.path], KEYS[model.path])


def generator_of(session: Session, option: str, name: str, others: str) -> Model:
    """The generator that an option names. Raises ModelMissing for no entry of the models file, with `others`
    that the option takes, and ConfError for a model of another kind."""
    models = session.catalog()
    if name not in models.entries:
        hint = did_you_mean(name, models.entries)
        raise ModelMissing(f"{option} {name}: {models.file} has no such model; {hint}. {others}")
    if (model := models.model(name)).kind != "generator":
        raise ConfError(f"{option} {name}: expected a generator, found a model of kind {model.kind}")
    return model


async def replies(
    session: Session, model: Model, chats: Sequence[Chat], sampling: Sampling
) -> list[Generated | Fault]:
    """What a generator says to each chat."""
    endpoints = endpoint_addresses(session.cluster_file(), [model], session.settings.keys)
    async with LocalKit(None, engines=None, endpoints=endpoints) as kit:
        return await kit.generator(model)(chats, sampling)


TEXTS = (
    "who wrote the first program?",
    "Ada Lovelace wrote the first program.",
    "3,14 \u20ac \u65e5\u672c\u8a9e",
)
FAR = 0.005
"""Distance from which on two answers are another model's: one less the cosine of two vectors, or between two
scores. The same model in half precision, batched otherwise, stays below .001."""


def require_unchanged(
    store: Store | None, models: Iterable[Model], endpoints: Mapping[str, EndpointAddress]
) -> None:
    """Asks each embedder and reranker behind an address about fixed texts, and keeps the first answers.

    Raises ConfError for an answer of another length or number, and for one that differs from the stored one;
    Unavailable for a server that is down. None: nothing is stored or compared."""
    for model in models:
        if model.loader not in REMOTE or model.kind == "generator":
            continue
        found = _answers(model, endpoints)
        if store is None:
            continue
        name = f"{PROBES}/{model_identity(model)}.json"
        kept = json.loads(store.files.read(name) or b"null")
        if kept is None:
            store.files.write(name, json.dumps({"model": model.name, "numbers": found.tolist()}).encode())
        elif (far := distance(np.asarray(kept["numbers"], np.float32), found)) > FAR:
            what = "vectors" if model.kind == "embedder" else "scores"
            raise ConfError(
                f"model {model.name!r} at endpoint {model.path!r} gives other {what} than those in "
                f"{store.uri} (distance {far:.3f}): another model answers there by the same name. Put the "
                f"old one back, or give its entry a `revision` of your own: then it is another model, "
                f"and what rests on it is computed again"
            )


def distance(old: np.ndarray, new: np.ndarray) -> float:
    """How far answers are apart: of vectors ((texts, dim) float32, unit rows) one less the smallest cosine,
    of scores the largest difference; infinity for another shape."""
    if old.shape != new.shape:
        return float("inf")
    if old.ndim == 2:
        return float(1 - (old * new).sum(axis=1).min())
    return float(np.abs(old - new).max())


def _answers(model: Model, endpoints: Mapping[str, EndpointAddress]) -> np.ndarray:
    opened = load.open_remote(model, endpoints)
    if model.kind == "reranker":
        return opened.score([(TEXTS[0], text) for text in TEXTS])
    return np.concatenate([opened.embed(TEXTS, "query"), opened.embed(TEXTS, "passage")])
