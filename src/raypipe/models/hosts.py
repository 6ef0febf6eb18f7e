"""Hosts of models, as a cluster file names them: a backend, the limits of an engine, the addresses of
servers.

Keys are kept out of messages here. In no digest. Knows no server and no model library.
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
"""flagembedding: its own classes. transformers: sorted by length, in batches of a token budget."""

SHOWN = 200  # characters of a server's answer in a message

KEY_VARIABLES: Mapping[str, str] = {LLM: "RAYPIPE_LLM_KEY", JUDGE: "RAYPIPE_JUDGE_KEY"}
"""Endpoint -> the environment variable that has its key. Not set: no key is sent."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    device: Literal["cpu", "cuda"] = "cpu"
    kv_cache_gib: float = 1.0  # cpu: memory for keys and values
    gpu_memory_utilization: float = 0.9  # cuda: share of each GPU's memory
    max_num_seqs: int = 128  # replies written at the same time, at most
    batch_invariant: bool = False  # whether a reply is the same whatever stands in its batch
    engine: Mapping[str, Any] = field(default_factory=dict)  # vLLM's own arguments, which change no reply


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """An endpoint of the cluster file, with the key that its `key_env` named. In no digest."""

    url: str  # up to and with /v1; where several servers share the chats: with commas between them
    key: str = field(default="", repr=False)  # "": none is sent
    concurrency: int = 16  # requests in flight at each address, of one process
    per_minute: float = math.inf  # requests sent to each address, of one process
    tokens_per_minute: float = math.inf  # of these requests, prompt and reply
    timeout_s: float = 120.0  # of one try
    tries: int = 5
    batch: Literal["", "openai"] = ""  # openai: chats are sent in files to its batch API, at half the price

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
            raise ConfError(
                f"{self.url}: the key has white space, a line end or other signs that no key has. Set its "
                f"environment variable again, without them"
            )
        if self.batch and len(self.urls) > 1:
            raise ConfError(f"{self.url}: batch: expected one address, which keeps its batches, found more")
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
    """The text without a key, which a server may quote, in each form that JSON, Python or an address gives
    it. A whole answer is masked before it is cut: of a key at the cut the begin would stay."""
    forms = {key}
    for _ in range(2):  # a gateway puts the error of a server into its own
        for form in list(forms):
            forms |= {json.dumps(form)[1:-1], repr(form)[1:-1], quote(form, safe=""), quote_plus(form)}
    for form in sorted(forms, key=len, reverse=True) if key else ():
        text = text.replace(form, "***")
    return text


def shown(answer: str, key: str) -> str:
    """The begin of what a server said, as a message repeats it, without a key."""
    return repr(masked(answer, key)[:SHOWN])


def address_of(model: Model, endpoints: Mapping[str, EndpointAddress]) -> EndpointAddress:
    """Returns a model's address. Raises ConfError for an endpoint that the cluster file does not have."""
    if (at := endpoints.get(model.path)) is None:
        raise ConfError(
            f"model {model.name!r}: no endpoint named {model.path!r}; the cluster file has "
            f"{', '.join(endpoints) or 'none'}. Put its url, and the name of its key's variable, under "
            f"`endpoints` there{', or give --llm URL#MODEL' if model.path == LLM else ''}"
        )
    return at


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
                f"variable {' or '.join(KEY_VARIABLES.values())}"
            )
        if not url.startswith(("http://", "https://")) or not host or "?" in url:
            raise ConfError(f"{expected}; found the address {url!r}")
        if not model.strip():
            raise ConfError(
                f"{expected}; found no model. `curl {url.rstrip('/')}/models` lists what is served"
            )
        return cls(url.rstrip("/"), model)


def is_served(text: str) -> bool:
    """Returns whether a name is an address in place of an entry's name."""
    return "://" in text
