"""Cache keys of the memo: one digest per vector, score, reply, and reply of a graph's server.

Requests are equal if their keys are. Knows identities and the contracts of requests. Keys are stored, so what
a digest is made of never changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raypipe.core.digests import model_identity, stable
from raypipe.core.llm import Chat, Sampling
from raypipe.core.protocols import Model, Role
from raypipe.core.records import digest
from raypipe.core.references import domain_of


def vector_keys(identity: str, role: Role, texts: Sequence[str]) -> list[str]:
    """Returns one key per text, by the model's identity, the role and the text."""
    return [digest(identity, role, text) for text in texts]


def score_keys(identity: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns one key per (query, passage), by the model's identity."""
    return [digest(identity, query, passage) for query, passage in pairs]


def reply_keys(model: Model, chats: Sequence[Chat], sampling: Sampling, adapter: str | None) -> list[str]:
    """Returns one key per chat, by the base model's identity, the sampling, the adapter's weights and every
    turn.

    An adapter that the model lacks is the generator's to refuse; no reply of it is ever stored.
    """
    weights = dict(model.adapters).get(adapter, adapter) if adapter is not None else None
    how = digest(model_identity(replace(model, adapters=())), stable(sampling), stable(weights))
    return [digest(how, *(part for turn in chat for part in (turn.role, turn.content))) for chat in chats]


def request_key(version: str, path: str, body: Mapping[str, Any], period: float | None, now: float) -> str:
    """The key of a server's reply, by the version of a reference and the request. With a refresh period
    (seconds), it names the one in which `now` lies, and the domain, so that changes can be counted by it.

    >>> request_key("v1", "/movie/get", {}, 60.0, 130.0).partition("@")[2]
    '60.0*2*movie'
    """
    key = digest(version, path, json.dumps(dict(body), sort_keys=True), "")
    return key if period is None else f"{key}@{period!r}*{int(now // period)}*{domain_of(path)}"


def period_of(key: str) -> tuple[str, str, float, int] | None:
    """Request, domain, refresh period (seconds) and its number; None for a key without a period.

    >>> period_of("abc@60.0*2*movie"), period_of("abc")
    (('abc', 'movie', 60.0, 2), None)
    """
    request, _, rest = key.partition("@")
    if not rest:
        return None
    period, number, *domain = rest.split("*")
    return request, domain[0] if domain else "", float(period), int(number)


def expired(key: str, now: float) -> bool:
    """Returns whether the refresh period of a server's reply is over, so that no run looks for its key again.

    >>> [expired(request_key("v1", "", {}, period, 100.0), 130.0) for period in (None, 60.0, 120.0)]
    [False, True, True]
    >>> expired(request_key("v1", "", {}, 60.0, 130.0), 130.0)
    False
    """
    found = period_of(key)
    return found is not None and (found[3] + 1) * found[2] <= now
