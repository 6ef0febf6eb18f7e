"""Loads a model for one device: from a `protocols.Model` to an object that embeds, scores or generates.

Chooses the class by loader and backend. The backend is no part of the identity: both give the same numbers
within 1e-5 in float32. Embedders and rerankers are synchronous. Heavy libraries are imported when the
first model that needs them is opened.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from urllib.parse import quote, quote_plus, urlsplit

from raypipe.core import plugins
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model, Tokenize
from raypipe.core.records import Span
from raypipe.models import engine_arguments, fake, folder, generator
from raypipe.models.catalog import loader_id
from raypipe.models.entry import LLM, REMOTE, WEIGHTLESS
from raypipe.models.shared_encoders import SharedEncoders

if TYPE_CHECKING:
    from raypipe.models.remote import RemoteModel

Backend: TypeAlias = Literal["flagembedding", "transformers"]
"""flagembedding: its own classes. transformers: sorted by length, in batches of a token budget."""


SHOWN = 200  # characters of a server's answer in a message
OWN_LIBRARY = folder.SENTENCE_LOADERS | {"maxsim", "last-token"}
"""Loaders that are the same with either backend."""


def present(model: Model) -> None:
    """Raises ModelMissing or ConfError unless the model's files are here and may be read."""
    if is_path(model.loader):
        if model.path and not Path(model.path).is_dir():
            raise ModelMissing(
                f"model {model.name!r}: expected its files in {model.path}, found no such folder"
            )
    elif model.loader not in WEIGHTLESS | REMOTE:
        folder.require(model)
        require_libraries(model)


def require_libraries(model: Model) -> None:
    """Raises ModelMissing, with the command that installs it, for a library that the model's loader needs."""
    needed = {"tokens": ("tokenizers",), "vllm": ("vllm",)}
    for name in needed.get(model.loader, ("torch", "transformers")):
        if importlib.util.find_spec(name) is None:
            get = f"pip install 'raypipe[{'gpu' if name == 'vllm' else 'local'}]'"
            also = "; on a machine without a GPU, in a checkout: make setup" if name == "vllm" else ""
            raise ModelMissing(
                f"model {model.name!r}: loader {model.loader!r} needs the package {name}, which is not "
                f"installed. Get it with: {get}{also}"
            )


def from_outside(model: Model, device: str, method: str) -> Any:
    """What a loader from outside makes of a model: `open_model(model, device)`. Raises ConfError for a loader
    whose source is not what the recipe was resolved with, and for an object without the method that its kind
    needs."""
    if not model.weights.endswith(loader_id(model.loader)):
        raise ConfError(
            f"model {model.name!r}: the source of {model.loader} is not what the recipe was resolved with. "
            f"Put the same file on every machine, or start again"
        )
    opened = plugins.load(model.loader, "a loader of models")[0](model, device)
    if not callable(getattr(opened, method, None)):
        raise ConfError(f"{model.loader}: expected a {model.kind} with {method}, found {opened!r:.80}")
    return opened


def open_model(model: Model, backend: Backend, device: str, encoders: SharedEncoders | None = None) -> Any:
    """An object with `embed` for an embedder: at least one text, role -> (texts, dim) float32, unit rows;
    with `score` for a reranker: at least one pair -> (pairs,) float32, bigger is better. `encoders`: the
    networks of this process, which a model of the same weights shares."""
    encoders = encoders or SharedEncoders()
    embeds = model.kind == "embedder"
    if model.loader in WEIGHTLESS:
        return fake.HashEmbedder(model.dim) if embeds else fake.OverlapReranker()
    if is_path(model.loader):
        return from_outside(model, device, "embed" if embeds else "score")
    _computable(model, backend, device)
    if model.loader in folder.SENTENCE_LOADERS:
        from raypipe.models.sentence_models import SentenceEmbedder, SentenceReranker

        return (SentenceEmbedder if embeds else SentenceReranker)(model, device)
    if model.loader == "maxsim":  # FlagEmbedding has no class for it, so both backends are the same here
        from raypipe.models.maxsim import MaxSim

        return MaxSim(model, device, encoders)
    if backend == "transformers" or model.loader == "last-token":
        from raypipe.models.transformers_backend import TransformersEmbedder, TransformersReranker

        return (
            TransformersEmbedder(model, device, encoders) if embeds else TransformersReranker(model, device)
        )
    from raypipe.models.flagembedding import FlagEmbedder, FlagScorer

    return FlagEmbedder(model, device, encoders) if embeds else FlagScorer(model, device)


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
            _check_url(url)
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

    def masked(self, text: str) -> str:
        """The text without the key, which a server may quote, in each form that JSON, Python or an address
        gives it. A whole answer is masked before it is cut: of a key at the cut the begin would stay."""
        return masked(text, self.key)

    def shown(self, answer: str) -> str:
        """The begin of an answer, without the key."""
        return shown(answer, self.key)


_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text)[1:-1], lambda text: repr(text)[1:-1], lambda text: quote(text, safe=""),
    quote_plus,
)  # fmt: skip


def masked(text: str, key: str) -> str:
    """The text without a key, see `EndpointAddress.masked`."""
    forms = {key}
    for _ in range(2):  # a gateway puts the error of a server into its own
        forms |= {escaped(form) for form in forms for escaped in _ESCAPES}
    for form in sorted(forms, key=len, reverse=True) if key else ():
        text = text.replace(form, "***")
    return text


def shown(answer: str, key: str) -> str:
    """The begin of what a server said, as a message repeats it, without a key."""
    return repr(masked(answer, key)[:SHOWN])


def _check_url(url: str) -> None:
    """Raises ConfError for what is no address of a server, or has a password in it."""
    try:
        place = urlsplit(url)
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfError(f"url: expected http://... or https://..., found {url!r}")
    if "@" in place.netloc:
        raise ConfError("url: it has a name or password in it, which logs would show; use a key")


def open_remote(model: Model, endpoints: Mapping[str, EndpointAddress]) -> RemoteModel:
    from raypipe.models.remote import RemoteModel

    return RemoteModel(model, address_of(model, endpoints))


def address_of(model: Model, endpoints: Mapping[str, EndpointAddress]) -> EndpointAddress:
    """Where a model is served. Raises ConfError for an endpoint that the cluster file does not have."""
    if (at := endpoints.get(model.path)) is None:
        raise ConfError(
            f"model {model.name!r}: no endpoint named {model.path!r}; the cluster file has "
            f"{', '.join(endpoints) or 'none'}. Put its url, and the name of its key's variable, under "
            f"`endpoints` there{', or give --llm URL#MODEL' if model.path == LLM else ''}"
        )
    return at


def require_startable(model: Model) -> None:
    """Raises ModelMissing or ConfError for a vLLM model whose engine cannot start."""
    present(model)
    generator.check(model)
    engine_arguments.require(json.loads(model.engine or "{}"), f"model {model.name!r}: engine")


def open_tokenizer(model: Model) -> Tokenize:
    """A tokenizer entry, or the tokenizer of any model that has one."""
    if is_path(model.loader):
        return cast(Tokenize, from_outside(model, "cpu", "__call__"))
    if model.loader in ("whitespace", "scripted"):  # a scripted generator counts words
        return fake.whitespace
    if model.loader in REMOTE and not model.tokenizer_path:
        raise ConfError(
            f"model {model.name!r}: its tokens are to be counted, and its entry names no tokenizer. Put "
            f"`tokenizer: NAME` there, NAME an entry that has its tokenizer.json"
        )
    if model.loader in ("hash", "overlap"):
        raise ConfError(
            f"model {model.name!r} has no tokenizer; name one of kind tokenizer, such as whitespace"
        )
    return _token_spans(model)


def _token_spans(model: Model) -> Tokenize:
    """Spans of the tokens of a text, special tokens omitted, nothing cut. A letter that takes several tokens
    gives each of them its span. Raises as `folder.require`."""
    from tokenizers import Tokenizer

    if model.tokenizer_path:  # a remote model: its weights say "openai:NAME+" and what its tokenizer's are
        weights = model.weights.rpartition("+")[2]
        repo, _, revision = weights.rpartition("@")
        model = replace(
            model, kind="tokenizer", path=model.tokenizer_path, weights=weights, repo=repo, revision=revision
        )
    tokenizer = Tokenizer.from_file(str(folder.require(model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spans(text: str) -> list[Span]:
        offsets: list[Span] = tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    return spans


def _computable(model: Model, backend: Backend, device: str) -> None:
    """Refuses a dtype that would silently be computed as another one, before a library is imported."""
    if device == "cpu" and model.dtype == "float16":
        raise ConfError(
            f"model {model.name!r}: float16 is not computed on a CPU, where FlagEmbedding would use float32 "
            f"under the entry's name. Use a float32 or bfloat16 entry, or a cuda device"
        )
    flag_upcasts = device == "cpu" or model.loader == "flagembedding-reranker"
    flag = backend == "flagembedding" and model.loader not in OWN_LIBRARY
    if flag and model.dtype == "bfloat16" and flag_upcasts:
        raise ConfError(
            f"model {model.name!r}: FlagEmbedding computes bfloat16 as float32 for a {model.kind} on "
            f"{device}. Use backend: transformers, or a float32 entry"
        )


def use_threads(model: Model, threads: int) -> None:
    """How many threads torch computes with on a CPU, in this process. A model without weights needs no torch,
    whose import takes three seconds."""
    if model.loader in WEIGHTLESS | REMOTE or is_path(model.loader):
        return
    import torch

    torch.set_num_threads(threads)
