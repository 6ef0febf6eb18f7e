"""Checks of models behind an address before work begins: that the server answers, and serves the model.

Knows HTTP, no model library. Lists what is served where the server tells, else sends one chat of one token.
"""

from __future__ import annotations

from typing import Any

import httpx

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.protocols import Model
from raypipe.models.load import EndpointAddress

LISTING_TIMEOUT_S = 10.0
SHOWN = 200  # characters of a server's answer in a message


def require_served(model: Model, at: EndpointAddress, key_name: str) -> None:
    """Raises Unavailable where nothing answers at the address, ConfError for a key that is refused and for a
    model that is not served. `key_name`: the environment variable of the key, for messages."""
    with _client(at) as client:
        listed = _send(client, at, "GET", "models", key_name, LISTING_TIMEOUT_S)
        served = _listed(listed)
        if model.repo in served:
            return
        chat = {"model": model.repo, "messages": [{"role": "user", "content": "ready"}], "max_tokens": 1}
        tried = _send(client, at, "POST", "chat/completions", key_name, at.timeout_s, chat)
    if tried.status_code in (400, 404, 405, 422):
        hint = (
            did_you_mean(model.repo, served) if served else "is this the API's address, up to and with /v1?"
        )
        raise ConfError(
            f"{at.url}: expected the model {model.repo!r} to be served there, found status "
            f"{tried.status_code}: {_shown(tried, at)}; {hint}"
        )


def _client(at: EndpointAddress) -> httpx.Client:
    headers = {"Authorization": f"Bearer {at.key}"} if at.key else {}
    return httpx.Client(headers=headers, follow_redirects=False)


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


def _listed(response: httpx.Response) -> list[str]:
    """The names that a server lists; none where it lists nothing that can be read."""
    try:
        return [str(entry["id"]) for entry in response.json()["data"]] if response.status_code == 200 else []
    except (ValueError, KeyError, TypeError):
        return []


def _shown(response: httpx.Response, at: EndpointAddress) -> str:
    """The begin of an answer; a server may quote the key that it was sent."""
    text = response.text[:SHOWN]
    return repr(text.replace(at.key, "***") if at.key else text)
