"""Opens a model for one device: from a `step.Model` to an object that embeds or scores, synchronously.

Knows which class serves which loader under which engine. The engine is where, not what: both give the same
numbers within 1e-5 in float32. Heavy libraries are imported when the first model that needs them is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np

from raypipe.chat import Generate
from raypipe.errors import ConfError
from raypipe.models import fake, folder
from raypipe.models.catalog import WEIGHTLESS
from raypipe.models.scripted import Scripted
from raypipe.step import Model, Role, Tokenize

Engine: TypeAlias = Literal["flag", "sorted"]
"""flag: FlagEmbedding's classes. sorted: plain transformers, sorted by length, batches of a token budget."""


class Embedder(Protocol):
    cut: int  # inputs so far that were longer than max_tokens

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        """At least one text -> (texts, dim) float32, unit rows."""
        ...


class Reranker(Protocol):
    cut: int  # pairs so far that were longer than max_tokens

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """At least one pair -> (pairs,) float32, bigger is better."""
        ...


def present(model: Model) -> None:
    """Raises ModelMissing or ConfError unless the model's files are here and may be read."""
    if model.loader not in WEIGHTLESS:
        folder.require(model)


def open_embedder(model: Model, engine: Engine, device: str) -> Embedder:
    if model.loader == "hash":
        return fake.HashEmbedder(model.dim)
    _computable(model, engine, device)
    _no_bars()
    if engine == "sorted":
        from raypipe.models.encoder import SortedEmbedder

        return SortedEmbedder(model, device)
    from raypipe.models.flag import FlagEmbedder

    return FlagEmbedder(model, device)


def open_reranker(model: Model, engine: Engine, device: str) -> Reranker:
    if model.loader == "overlap":
        return fake.OverlapReranker()
    _computable(model, engine, device)
    _no_bars()
    if model.loader == "maxsim":  # FlagEmbedding has no class for it, so both engines are the same here
        from raypipe.models.maxsim import MaxSim

        return MaxSim(model, device)
    if engine == "sorted":
        from raypipe.models.encoder import SortedReranker

        return SortedReranker(model, device)
    from raypipe.models.flag import FlagScorer

    return FlagScorer(model, device)


def open_generator(model: Model) -> Generate:
    """A generator that needs no engine. Raises ConfError for one that does."""
    if model.loader != "scripted":
        raise ConfError(
            f"model {model.name!r}: expected loader scripted, found {model.loader!r}, which needs an engine "
            f"of its own; this kit computes in its own process alone"
        )
    return Scripted(adapters=[name for name, _ in model.adapters], context=model.max_tokens).generate


def open_tokenizer(model: Model) -> Tokenize:
    """A tokenizer entry, or the tokenizer of any model that has one."""
    if model.loader in ("whitespace", "scripted"):  # a scripted generator counts words
        return fake.whitespace
    if model.loader in ("hash", "overlap"):
        raise ConfError(
            f"model {model.name!r} has no tokenizer; name one of kind tokenizer, such as whitespace"
        )
    from raypipe.models.tokens import open_tokenizer

    return open_tokenizer(model)


def _computable(model: Model, engine: Engine, device: str) -> None:
    """Refuses a dtype that would silently be computed as another one, before a library is imported."""
    if device == "cpu" and model.dtype == "float16":
        raise ConfError(
            f"model {model.name!r}: float16 is not computed on a CPU, where FlagEmbedding would use float32 "
            f"under the entry's name. Use a float32 or bfloat16 entry, or a cuda device"
        )
    flag_upcasts = device == "cpu" or model.loader == "flag-reranker"
    if engine == "flag" and model.dtype == "bfloat16" and model.loader != "maxsim" and flag_upcasts:
        raise ConfError(
            f"model {model.name!r}: FlagEmbedding computes bfloat16 as float32 for a {model.kind} on "
            f"{device}. Use engine: sorted, or a float32 entry"
        )


def _no_bars() -> None:
    """No progress bars for the loading of weights: a pool of actors would fill the log with them."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def use_threads(threads: int) -> None:
    """How many threads torch computes with on a CPU, in this process."""
    import torch

    torch.set_num_threads(threads)
