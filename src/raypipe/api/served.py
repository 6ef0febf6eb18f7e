"""Models named on the command line by their server: `--llm URL#MODEL`, `--judge URL#MODEL`.

Knows how such a name is written and which environment variable has its key. The model's name is identity; the
address and the key are in no digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from raypipe.cluster.file import Cluster, EndpointEntry
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.models.entry import LLM
from raypipe.models.load import EndpointAddress

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
