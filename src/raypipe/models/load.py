"""Loading of models: turns a `protocols.Model` into an object that embeds, scores or tokenizes.

The model's loader (a field of models.yaml) and the backend (FlagEmbedding or transformers) select the class.
The backend is not part of a model's identity, because both backends give the same numbers within 1e-5 in
float32. A heavy library is imported when the first model that needs it is opened.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from raypipe.core import plugins
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model, Tokenize
from raypipe.core.records import Span
from raypipe.models import fake, folder, generator_files, vllm_terms
from raypipe.models.device import SharedEncoders
from raypipe.models.entry import REMOTE, WEIGHTLESS, loader_id
from raypipe.models.hosts import Backend, EndpointAddress, address_of

if TYPE_CHECKING:
    from raypipe.models.remote import RemoteModel

OWN_LIBRARY = folder.SENTENCE_LOADERS | {"maxsim", "last-token"}
"""Loaders that use the same class with either backend."""


def present(model: Model) -> None:
    """Raises ModelMissing or ConfError if a model's files are missing or must not be read, or if a library of
    its loader is not installed."""
    if is_path(model.loader):
        if model.path and not Path(model.path).is_dir():
            raise ModelMissing(f"model {model.name!r}: expected files in {model.path}, found no such folder")
    elif model.loader not in WEIGHTLESS | REMOTE:
        folder.require(model)
        needed = {"tokens": ("tokenizers",), "vllm": ("vllm",)}
        for name in needed.get(model.loader, ("torch", "transformers")):
            if importlib.util.find_spec(name) is None:
                extra, also = ("gpu", "; without a GPU: make setup") if name == "vllm" else ("local", "")
                needs = f"model {model.name!r}: loader {model.loader!r} needs the package {name}"
                get = f"pip install 'raypipe[{extra}]'{also}"
                raise ModelMissing(f"{needs}, which is not installed. Get it with: {get}")


def from_outside(model: Model, device: str, method: str) -> Any:
    """Opens a model with a user's loader (MODULE:NAME). Raises ConfError if the loader's source has changed
    since the recipe was resolved, or if the opened object lacks `method`."""
    if not model.weights.endswith(loader_id(model.loader)):
        changed = f"the source of {model.loader} is not what the recipe was resolved with"
        same = "Put the same file on every machine, or start again"
        raise folder.model_error(model, f"{changed}. {same}")
    opened = plugins.load(model.loader, "a loader of models")[0](model, device)
    if not callable(getattr(opened, method, None)):
        raise ConfError(f"{model.loader}: expected a {model.kind} with {method}, found {opened!r:.80}")
    return opened


def open_model(model: Model, backend: Backend, device: str, encoders: SharedEncoders | None = None) -> Any:
    """Opens an embedder or reranker on a device.

    An embedder has the method `embed`, which takes at least one text and a role, and returns (texts, dim)
    float32, unit rows. A reranker has the method `score`, which takes at least one pair and returns (pairs,)
    float32; a bigger score is better. `encoders` holds the networks loaded in this process, so that models of
    the same weights share a network. If `encoders` is None, the network is not shared."""
    encoders = encoders or SharedEncoders()
    embeds = model.kind == "embedder"
    if model.loader in WEIGHTLESS:
        return fake.HashEmbedder(model.dim) if embeds else fake.OverlapReranker()
    if is_path(model.loader):
        return from_outside(model, device, "embed" if embeds else "score")
    require_computable(model, backend, device)
    from raypipe.models import encoder_models  # imports torch

    if model.loader in folder.SENTENCE_LOADERS:
        opens = encoder_models.SentenceEmbedder if embeds else encoder_models.SentenceReranker
        return opens(model, device)
    if model.loader == "maxsim":  # FlagEmbedding has no class for it, so the backend is ignored
        return encoder_models.MaxSim(model, device, encoders)
    flag = backend == "flagembedding" and model.loader != "last-token"
    if embeds:
        shares = encoder_models.FlagEmbedder if flag else encoder_models.TransformersEmbedder
        return shares(model, device, encoders)
    return (encoder_models.FlagScorer if flag else encoder_models.TransformersReranker)(model, device)


def open_remote(model: Model, endpoints: Mapping[str, EndpointAddress]) -> RemoteModel:
    from raypipe.models.remote import RemoteModel  # imports an HTTP client

    return RemoteModel(model, address_of(model, endpoints))


def require_startable(model: Model) -> None:
    """Raises ModelMissing or ConfError if the engine of a vLLM model cannot start."""
    present(model)
    generator_files.check(model)
    vllm_terms.require_arguments(json.loads(model.engine or "{}"), f"model {model.name!r}: engine")


def open_tokenizer(model: Model) -> Tokenize:
    """Opens a model's tokenizer: a function from a text to the spans of its tokens, without special tokens.
    If several tokens make one letter, each has the letter's span. Raises ConfError for a model without a
    tokenizer, and as `folder.require` does for missing or changed files."""
    if is_path(model.loader):
        return cast(Tokenize, from_outside(model, "cpu", "__call__"))
    if model.loader in ("whitespace", "scripted"):  # a scripted generator counts words
        return fake.whitespace
    if model.loader in REMOTE and not model.tokenizer_path:
        add = "Add `tokenizer: NAME` of an entry that has its tokenizer.json"
        raise folder.model_error(model, f"its entry names no tokenizer to count tokens. {add}")
    if model.loader in ("hash", "overlap"):
        raise ConfError(f"model {model.name!r} has no tokenizer; name a tokenizer, such as whitespace")
    from tokenizers import Tokenizer

    if model.tokenizer_path:  # a remote model: `weights` is "openai:NAME+" and its tokenizer's weights
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


def require_computable(model: Model, backend: Backend, device: str) -> None:
    """Raises ConfError if an embedder's or reranker's dtype would silently be computed as another dtype."""
    if model.kind not in ("embedder", "reranker") or is_path(model.loader) or model.loader in REMOTE:
        return
    if device == "cpu" and model.dtype == "float16":
        raise folder.model_error(model, "float16 is not computed on a CPU. Use another dtype, or cuda")
    flag_upcasts = device == "cpu" or model.loader == "flagembedding-reranker"
    flag = backend == "flagembedding" and model.loader not in OWN_LIBRARY
    if flag and model.dtype == "bfloat16" and flag_upcasts:
        upcast = f"FlagEmbedding computes a bfloat16 {model.kind} on {device} as float32"
        raise folder.model_error(model, f"{upcast}. Use backend: transformers, or a float32 entry")
