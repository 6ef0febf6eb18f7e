"""Checks of a model's server before work: one real chat, and what `raypipe models add` asks a server.

The chat has the body of a step. Fields that the server refuses are left out once it says so, until it takes
the chat; `Model.unsent` names them. Knows the protocol; knows no recipe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import Sampling
from raypipe.core.protocols import Model
from raypipe.models.entry import DIALECTS
from raypipe.models.generators import READY
from raypipe.models.hosts import EndpointAddress
from raypipe.models.openai import OpenAIClient, refused_fields
from raypipe.models.remote import RemoteModel
from raypipe.models.server import ServerClient, Trouble

T = TypeVar("T")
ChatForm: TypeAlias = tuple[Sampling, str | None]
"""Sampling and adapter of a step: with the model they decide the body of its chats."""

LISTING_TIMEOUT_S = 10.0  # of a list of names
GONE = frozenset({"unreachable", "timeout", "unpaid"})
WRONG = frozenset({"unauthorised", "forbidden", "not_found", "redirected", "not_the_protocol"})
"""Reasons that no row can be done for, now or as things are written. Others may pass, or be one chat's."""


def fields_refused(
    model: Model, at: EndpointAddress, kinds: Sequence[ChatForm], key_name: str
) -> tuple[tuple[str, ...], list[ChatForm]]:
    """Sends a chat of each kind, without the model's unsent fields; returns the further fields that its
    server refuses and takes a chat without, and the kinds that it takes.

    Raises Unavailable where nothing answers or the account has nothing left, ConfError for a key that is
    refused, a model that is not served and an address of something else. A server that is busy, or refuses a
    chat for another reason, is left to the rows. `key_name`: the variable of the key, for messages.
    """

    async def check() -> tuple[tuple[str, ...], list[ChatForm]]:
        unsent, taken = model.unsent, list[ChatForm]()
        for sampling, adapter in kinds:
            tried = unsent
            while (
                fields := await _refused(replace(model, unsent=tried), at, sampling, adapter, key_name)
            ) is not None:
                if not fields:  # another reason: that it named fields before says nothing then
                    break
                tried += fields
            else:
                unsent = tried
                taken.append((sampling, adapter))
        return unsent[len(model.unsent) :], taken

    return asyncio.run(check())


async def _refused(
    model: Model, at: EndpointAddress, sampling: Sampling, adapter: str | None, key_name: str
) -> tuple[str, ...] | None:
    """The fields that the server names where it refuses a chat; None: it takes the chat. Raises as
    `fields_refused`."""
    client = OpenAIClient(model, replace(at, tries=len(at.urls)))  # each address once
    try:
        body = client.body(sampling, adapter)
        got = await client.attempt(READY, body, sampling)
    finally:
        await client.close()
    if not isinstance(got, Trouble):
        return None
    if got.reason in GONE:
        raise Unavailable(got.detail)
    if got.reason in ("unauthorised", "forbidden"):
        sent = "the key was refused" if at.key else "it wants a key, and none was sent"
        raise ConfError(f"{got.detail}: {sent}. Put the key in the environment variable {key_name}")
    if fields := refused_fields(got.error, body):
        return fields
    names = await _listed(at) if got.reason in WRONG or got.reason == "refused" else {body["model"]: {}}
    if got.reason in WRONG or body["model"] not in names:
        raise ConfError(f"{got.detail}{_unserved(body['model'], names)}")
    return ()


def _unserved(name: str, names: Collection[str]) -> str:
    """A hint at what is served, unless the name is."""
    if name in names:
        return ""
    hint = did_you_mean(name, names) if names else "is this the API's address, up to and with /v1?"
    return f": expected the model {name!r} to be served there; {hint}"


async def _listed(at: EndpointAddress) -> dict[str, dict[str, Any]]:
    """Returns what a server lists, by name; {} where it lists nothing that can be read."""

    def read(tree: Any) -> dict[str, dict[str, Any]]:
        return {str(row["id"]): dict(row) for row in tree["data"]}

    found = await _sent(at, "GET", "models", read)
    return {} if isinstance(found, Trouble) else found


async def _sent(
    at: EndpointAddress, method: str, path: str, read: Callable[[Any], T], **content: Any
) -> T | Trouble:
    client = ServerClient(replace(at, tries=1, timeout_s=min(at.timeout_s, LISTING_TIMEOUT_S)))
    try:
        return await client.send(method, path, read, **content)
    finally:
        await client.close()


def describe(kind: str, name: str, at: EndpointAddress, dialect: str, key_name: str) -> dict[str, Any]:
    """The fields of models.yaml for a served model, after requests to it. Raises as `fields_refused`, and
    ConfError for a reranker without a dialect."""
    if kind == "generator":
        if (told := asyncio.run(_listed(at)).get(name)) is None:
            model = Model(name, "generator", "openai", name, "", "", "", dialect=dialect or "openai")
            fields_refused(model, at, [(Sampling(max_tokens=16), None)], key_name)
            told = {}
        spoken = "vllm" if told.get("owned_by") == "vllm" else "openai"
        length = told.get("max_model_len")
        return {
            "loader": "openai",
            "dialect": dialect or spoken,
            "max_model_len": length if isinstance(length, int) else 8192,
        }
    if kind == "embedder":
        body = {"model": name, "input": ["ready"], "encoding_format": "float"}
        dim = asyncio.run(
            _sent(at, "POST", "embeddings", lambda t: len(t["data"][0]["embedding"]), json=body)
        )
        if isinstance(dim, Trouble):
            raise (Unavailable if dim.reason in GONE else ConfError)(
                f"{dim.detail}: expected an embedding of {name!r}. Is this the API's address, up to and with "
                f"/v1? A key goes into the environment variable {key_name}"
            )
        return {"loader": "embeddings", "dialect": dialect or "openai", "dim": dim}
    if kind == "reranker":
        if not dialect:
            raise ConfError(f"--dialect: a reranker needs one of {', '.join(DIALECTS['rerank'])}")
        model = Model(name, "reranker", "rerank", name, "", "", "", dialect=dialect)
        RemoteModel(model, at).score([("ready", "ready"), ("ready", "not")])
        return {"loader": "rerank", "dialect": dialect}
    raise ConfError(f"--kind {kind}: a server has embedders, rerankers and generators")
