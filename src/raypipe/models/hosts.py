"""Hosts of models, as a cluster file names them: backend, limits of an engine, addresses of servers.

Nothing here is part of a digest, so a change recomputes nothing. `masked` and `shown` keep API keys out of
messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, quote_plus, urlsplit

from raypipe.core.errors import ConfError
from raypipe.core.llm import JUDGE
from raypipe.core.protocols import Model
from raypipe.models.entry import LLM

Backend: TypeAlias = Literal["flagembedding", "transformers"]
"""Code that runs embedders and rerankers: the classes of FlagEmbedding, or those of `models.encoder`."""

SHOWN = 200  # characters of a server's answer that a message quotes

KEY_VARIABLES: Mapping[str, str] = {LLM: "RAYPIPE_LLM_KEY", JUDGE: "RAYPIPE_JUDGE_KEY"}
"""Endpoint -> the environment variable of its key. If the variable is not set, no key is sent."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    device: Literal["cpu", "cuda"] = "cpu"
    kv_cache_gib: float = 1.0  # cpu: memory for keys and values
    gpu_memory_utilization: float = 0.9  # cuda: share of each GPU's memory
    max_num_seqs: int = 128  # most replies written at the same time
    batch_invariant: bool = False  # True: a reply does not depend on the other chats of its batch
    engine: Mapping[str, Any] = field(default_factory=dict)  # vLLM's own arguments that change no reply


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """An endpoint of the cluster file, with its key from the environment variable that `key_env` names."""

    url: str  # up to and including /v1; several servers that share the chats are separated by commas
    key: str = field(default="", repr=False)  # "": none is sent
    concurrency: int = 16  # most requests in flight from one process to each address
    per_minute: float = math.inf  # most requests per minute from one process to each address
    tokens_per_minute: float = math.inf  # most tokens per minute of these requests, prompts and replies
    timeout_s: float = 120.0  # of one try
    tries: int = 5
    batch: Literal["", "openai"] = ""  # openai: send chats as files to its batch API, half price; "": off

    def __post_init__(self) -> None:
        for url in self.urls:
            try:
                place = urlsplit(url)
                good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
            except ValueError:
                good = False
            if not good:
                raise ConfError(f"url: expected http://... or https://..., found {url!r}")
            if "@" in place.netloc:
                raise ConfError("url: it has a name or password in it, which logs would show; use a key")
        if " " in self.key or not (self.key.isascii() and self.key.isprintable()):
            raise ConfError(f"{self.url}: the key has white space or odd characters. Set its variable again")
        if self.batch and len(self.urls) > 1:
            raise ConfError(f"{self.url}: batch: expected one address, found several")
        for name in ("concurrency", "per_minute", "tokens_per_minute", "timeout_s", "tries"):
            if not getattr(self, name) > 0:
                raise ConfError(f"{self.url}: {name}: expected a number above 0, found {getattr(self, name)}")

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(url.strip().rstrip("/") for url in self.url.split(","))

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def masked(text: str, key: str) -> str:
    """Replaces a key in a text by ***, even if JSON, Python or a URL has escaped the key. Mask a text before
    you cut it: the beginning of a key could remain at the cut."""
    forms = {key}
    for _ in range(2):  # escaped twice if a gateway quotes a server's error in its own
        for form in list(forms):
            forms |= {json.dumps(form)[1:-1], repr(form)[1:-1], quote(form, safe=""), quote_plus(form)}
    for form in sorted(forms, key=len, reverse=True) if key else ():
        text = text.replace(form, "***")
    return text


def shown(answer: str, key: str) -> str:
    """Returns the beginning of a server's answer for a message, without the key."""
    return repr(masked(answer, key)[:SHOWN])


def address_of(model: Model, endpoints: Mapping[str, EndpointAddress]) -> EndpointAddress:
    """Returns a model's address. Raises ConfError if the cluster file lacks the endpoint."""
    if (at := endpoints.get(model.path)) is None:
        option = ", or give --llm URL#MODEL" if model.path == LLM else ""
        raise ConfError(
            f"model {model.name!r}: no endpoint named {model.path!r}; the cluster file has "
            f"{', '.join(endpoints) or 'none'}. Add its url and key_env under `endpoints` there{option}"
        )
    return at


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model named by its server's address, in place of an entry of models.yaml."""

    url: str  # up to and including /v1
    model: str  # its name on the server

    @classmethod
    def parse(cls, text: str, option: str) -> ServedModel:
        """Parses `URL#MODEL`. Raises ConfError, which names the option, for any other text, and for a URL
        with a name or password, since logs would show it."""
        url, _, model = text.partition("#")
        expected = f"{option}: expected URL#MODEL, such as http://127.0.0.1:8000/v1#Qwen/Qwen3-8B"
        host = url.partition("://")[2].partition("/")[0]
        if "@" in host:
            variables = " or ".join(KEY_VARIABLES.values())
            raise ConfError(f"{expected}; found a name or password in it. Put the key in ${variables}")
        if not url.startswith(("http://", "https://")) or not host or "?" in url:
            raise ConfError(f"{expected}; found the address {url!r}")
        if not model.strip():
            raise ConfError(f"{expected}; found no model. `curl {url.rstrip('/')}/models` lists them")
        return cls(url.rstrip("/"), model)


def is_served(text: str) -> bool:
    """Returns whether a text names a model by an address (URL#MODEL), and not by an entry's name."""
    return "://" in text
