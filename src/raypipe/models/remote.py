"""Checks of models behind an address before work begins: that the server answers, and serves the model.

Knows HTTP, no model library. Lists what is served where the server tells, else sends one chat of one token.
`describe` reads the fields of an entry from a server.
"""

from __future__ import annotations

from typing import Any

import httpx

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.protocols import Model
from raypipe.models.entry import DIALECTS
from raypipe.models.load import EndpointAddress

LISTING_TIMEOUT_S = 10.0


def require_served(name: str, at: EndpointAddress, key_name: str) -> dict[str, Any]:
    """What a server lists about a model; {} where it does not list it and answers a chat. Raises Unavailable
    where nothing answers at the address, ConfError for a key that is refused and for a model that is not
    served. `key_name`: the environment variable of the key, for messages."""
    with _client(at) as client:
        served = _listed(_send(client, at, "GET", "models", key_name, LISTING_TIMEOUT_S))
        if name in served:
            return served[name]
        chat = {"model": name, "messages": [{"role": "user", "content": "ready"}], "max_tokens": 1}
        tried = _send(client, at, "POST", "chat/completions", key_name, at.timeout_s, chat)
    if tried.status_code in (400, 404, 405, 422):
        hint = did_you_mean(name, served) if served else "is this the API's address, up to and with /v1?"
        raise ConfError(
            f"{at.url}: expected the model {name!r} to be served there, found status "
            f"{tried.status_code}: {at.shown(tried.text)}; {hint}"
        )
    return {}


def describe(kind: str, name: str, at: EndpointAddress, dialect: str, key_name: str) -> dict[str, Any]:
    """The fields of models.yaml for a served model, after one request to it. Raises as `require_served`, and
    ConfError for a reranker without a dialect."""
    if kind == "generator":
        said = require_served(name, at, key_name)
        found = "vllm" if said.get("owned_by") == "vllm" else "openai"
        length = said.get("max_model_len")
        return {
            "loader": "openai", "dialect": dialect or found,
            "max_model_len": length if isinstance(length, int) else 8192,
        }  # fmt: skip
    if kind == "embedder":
        with _client(at) as client:
            body = {"model": name, "input": ["ready"], "encoding_format": "float"}
            answer = _send(client, at, "POST", "embeddings", key_name, at.timeout_s, body)
        return {"loader": "embeddings", "dialect": dialect or "openai", "dim": _dim(answer, name, at)}
    if kind == "reranker":
        if not dialect:
            raise ConfError(f"--dialect: a reranker needs one of {', '.join(DIALECTS['rerank'])}")
        from raypipe.models.remote_vectors import Connection, RemoteReranker

        model = Model(name, "reranker", "rerank", name, "", "", "", dialect=dialect)
        RemoteReranker(Connection(model, at)).score([("ready", "ready"), ("ready", "not")])
        return {"loader": "rerank", "dialect": dialect}
    raise ConfError(f"--kind {kind}: a server has embedders, rerankers and generators")


def _dim(answer: httpx.Response, name: str, at: EndpointAddress) -> int:
    try:
        return len(answer.json()["data"][0]["embedding"])
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise ConfError(
            f"{at.url}: expected an embedding of {name!r}, found status {answer.status_code}: "
            f"{at.shown(answer.text)}. Is this the API's address, up to and with /v1?"
        ) from e


def _client(at: EndpointAddress) -> httpx.Client:
    return httpx.Client(headers=at.headers, follow_redirects=False)


def _send(
    client: httpx.Client,
    at: EndpointAddress,
    method: str,
    path: str,
    key_name: str,
    timeout_s: float,
    body: dict[str, Any] | None = None,
) -> httpx.Response:
    """One request. Raises Unavailable where nothing answers, ConfError for a key that is refused."""
    try:
        response = client.request(method, f"{at.url.rstrip('/')}/{path}", json=body, timeout=timeout_s)
    except httpx.HTTPError as e:
        raise Unavailable(
            f"{at.url}: nothing answers there: {type(e).__name__}. Start the server, or correct the address"
        ) from e
    if response.status_code in (401, 403):
        sent = "the key was refused" if at.key else "it wants a key, and none was sent"
        raise ConfError(
            f"{at.url}: {sent} (status {response.status_code}). Put the key in the environment variable "
            f"{key_name}"
        )
    return response


def _listed(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """What a server lists, by name; {} where it lists nothing that can be read."""
    try:
        rows = response.json()["data"] if response.status_code == 200 else []
        return {str(row["id"]): dict(row) for row in rows}
    except (ValueError, KeyError, TypeError):
        return {}
