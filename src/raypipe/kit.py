"""The kit of one process: every model that its steps name, loaded once, and the index that they search.

The only bridge from steps to heavy things. Models compute in a worker thread of the kit, so the event loop
stays free; there is one such thread, since two models at once would only fight for the same cores or device.
Importing this module imports no model library.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from raypipe.chat import Generate
from raypipe.errors import ConfError
from raypipe.models import load
from raypipe.models.load import Engine
from raypipe.step import Embed, Index, Model, ModelKind, Role, Score, Tokenize

T = TypeVar("T")


class LocalKit:
    """Embedders, rerankers, generators, tokenizers and an index in this process.

    `engine`, `device` (cpu, cuda, cuda:1) and `threads` (of torch on a CPU; None: its own choice) say where
    and how fast, never what comes out. A model is loaded when it is first used; that its files are here is
    checked when a step is opened.
    """

    def __init__(
        self, index: Index | None, engine: Engine = "flag", device: str = "cpu", threads: int | None = None
    ) -> None:
        self._index = index
        self._engine = engine
        self._device = device
        self._threads = threads
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="models")
        self._loaded: dict[Model, Any] = {}  # by what decides its numbers; filled by the worker alone
        self._names: dict[Model, str] = {}  # the name under which it was loaded
        self._tokenizers: dict[Model, Tokenize] = {}
        self._generators: dict[Model, Generate] = {}

    def with_index(self, index: Index) -> LocalKit:
        """The same models with another index."""
        other = copy.copy(self)
        other._index = index
        return other

    def embedder(self, model: Model) -> Embed:
        _expect(model, "embedder")
        load.present(model)

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            if not texts:
                return np.zeros((0, model.dim), np.float32)
            return await self._compute(model, load.open_embedder, lambda m: m.embed(texts, role))

        return embed

    def reranker(self, model: Model) -> Score:
        _expect(model, "reranker")
        load.present(model)

        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if not pairs:
                return np.zeros(0, np.float32)
            return await self._compute(model, load.open_reranker, lambda m: m.score(pairs))

        return score

    def generator(self, model: Model) -> Generate:
        _expect(model, "generator")
        key = _key(model)
        if key not in self._generators:
            self._generators[key] = load.open_generator(model)
        return self._generators[key]

    def tokenizer(self, model: Model) -> Tokenize:
        """A tokenizer entry, or another model's own."""
        key = _key(model)
        if key not in self._tokenizers:
            self._tokenizers[key] = load.open_tokenizer(model)
        return self._tokenizers[key]

    def index(self) -> Index:
        if self._index is None:
            raise ConfError(
                "a step searches, but this kit was made without an index; build the corpus half first"
            )
        return self._index

    def cut(self) -> dict[str, int]:
        """Inputs so far that were longer than their model's max_tokens, by model name."""
        return {self._names[key]: loaded.cut for key, loaded in list(self._loaded.items())}

    async def _compute(
        self, model: Model, opened: Callable[[Model, Engine, str], Any], call: Callable[[Any], T]
    ) -> T:
        def work() -> T:
            key = _key(model)
            if key not in self._loaded:
                if self._threads is not None:
                    load.use_threads(self._threads)
                self._names[key] = model.name
                self._loaded[key] = opened(model, self._engine, self._device)
            return call(self._loaded[key])

        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _key(model: Model) -> Model:
    """What decides the model's numbers: the same weights under two names or paths are loaded once."""
    return replace(model, name="", path="", adapter_paths=())


def _expect(model: Model, kind: ModelKind) -> None:
    if model.kind != kind:
        raise ConfError(
            f"model {model.name!r}: expected kind {kind!r}, found {model.kind!r} (loader {model.loader!r})"
        )
