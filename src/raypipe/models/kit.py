"""The kit of one process: loads each model that its steps use once, and gives them the index.

The only bridge from steps to heavy things. Models compute in a worker thread of the kit, so the event loop
stays free; there is one such thread, since two models at once would compete for the same cores or device.
Importing this module imports no model library.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import methodcaller
from typing import Any, Self, TypeVar, cast

import numpy as np

from raypipe.core.bounded_rows import batches
from raypipe.core.digests import own_identity, stable
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Generator, Message, ReplyPieces, Sampling
from raypipe.core.plugins import is_path
from raypipe.core.progress import IN_HAND, SharedClock
from raypipe.core.protocols import Embed, Kit, Model, ModelKind, Role, Score, Tokenize
from raypipe.core.records import Fault
from raypipe.core.references import Reference, Tools
from raypipe.models import hosts, load
from raypipe.models.device import SharedEncoders, computing, loading
from raypipe.models.engine import OwnEngine
from raypipe.models.entry import REMOTE, WEIGHTLESS
from raypipe.models.fake import Scripted
from raypipe.models.generators import proven, routed
from raypipe.models.hosts import Backend, EndpointAddress, EngineLimits
from raypipe.models.token_arrays import TokenArray

T = TypeVar("T")


CPU_TEXTS = 64
"""Texts that a CPU embeds in one call: 2 to 4 s of MiniLM, after which progress is counted. A GPU is through
with a part in seconds, and a server's replies are counted as they come."""


class LocalKit:
    """Embedders, rerankers, generators, tokenizers and an index in this process.

    `backend`, `device` (cpu, cuda, cuda:1) and `threads` (of torch on a CPU; None: torch's choice) decide
    where and how fast models run, never the results. A model is loaded on first use; that its files are here
    is checked when a step is opened.

    `engines`: those that a job started, model identity -> names; `passing`: those that come and go next to
    them. None: this process starts a vLLM engine of its own, within `engine_limits`, on first use; use such a
    kit on one event loop, and `await close()` it. Calls to an engine that dies end in transient faults, and
    the next call starts another. `sink` gets each piece of a reply while it is written, for a chat that is
    sent alone. `process` names the process for reports. `clock` (seconds) times calls of graphs and the
    loading of models; `spent` the work that is done with this kit and its copies.
    """

    def __init__(
        self,
        index: Index | None,
        backend: Backend = "flagembedding",
        device: str = "cpu",
        threads: int | None = None,
        *,
        engines: Mapping[str, Sequence[str]] | None = None,
        passing: Mapping[str, Sequence[str]] | None = None,
        endpoints: Mapping[str, EndpointAddress] | None = None,
        engine_limits: EngineLimits | None = None,
        sink: Callable[[str], None] | None = None,
        process: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._index, self._backend, self._device, self._threads = index, backend, device, threads
        self._engines, self._passing = engines, passing or {}
        self.endpoints = endpoints or {}
        self._engine_limits = engine_limits or EngineLimits()
        self._sink, self._clock, self.process, self.spent = sink, clock, process, SharedClock()
        self._closing_models: dict[Model, Callable[[], Awaitable[None]]] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="models")
        self._loaded: dict[Model, Any] = {}  # by what decides its numbers; filled by the worker alone
        self._loading_s: list[float] = []  # of each model that was loaded here
        self._encoders = SharedEncoders()
        self._tokenizers: dict[Model, Tokenize] = {}
        self._generators: dict[Model, Generator] = {}
        self._data: dict[str, Any] = {}  # what references gave, by what they are and where they lie
        self._closing_data: list[Callable[[], Awaitable[None]]] = []  # connections
        self._own: dict[Model, OwnEngine] = {}  # engines in this process

    def with_index(self, index: Index) -> LocalKit:
        other = copy.copy(self)
        other._index = index
        return other

    def with_sink(self, sink: Callable[[str], None]) -> LocalKit:
        """This kit: the engine in its process tells the one listener that the kit was made with."""
        return self

    def embedder(self, model: Model) -> Embed:
        self._require(model, "embedder")

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            if not texts:
                return np.zeros((0, model.dim), np.float32)
            here = self._device == "cpu" and model.loader not in REMOTE
            vectors = []
            for some in batches(texts, CPU_TEXTS if here else len(texts)):
                vectors.append(await self._compute(model, methodcaller("embed", some, role)))
                if here:
                    IN_HAND.add(len(some))
            return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

        return embed

    async def embed_tokens(self, model: Model, tokens: Sequence[TokenArray]) -> np.ndarray:
        """As `embedder`, of texts that another process tokenized (`token_arrays.takes_tokens`)."""
        return await self._compute(model, lambda m: m.embed_tokens(tokens))

    def reranker(self, model: Model) -> Score:
        self._require(model, "reranker")

        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if not pairs:
                return np.zeros(0, np.float32)
            return await self._compute(model, lambda m: m.score(pairs))

        return score

    def generator(self, model: Model) -> Generator:
        self._require(model, "generator")
        key = _key(model)
        if key not in self._generators:
            self._generators[key] = self._open_generator(model)
        return self._generators[key]

    def _require(self, model: Model, kind: ModelKind) -> None:
        if model.kind != kind:
            found = f"{model.kind!r} (loader {model.loader!r})"
            raise ConfError(f"model {model.name!r}: expected kind {kind!r}, found {found}")
        if kind != "generator":
            load.present(model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the engines that this kit started, and its connections, as the end of `async with` does."""
        while self._closing_models:
            await self._closing_models.popitem()[1]()
        while self._closing_data:
            await self._closing_data.pop()()

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all other models that this kit holds: weights, engines, connections, tokenizers. One that is
        asked again is loaded again."""
        kept = {_key(m) for m in models}
        opened: tuple[dict[Model, Any], ...] = (self._generators, self._own, self._tokenizers)
        for held in opened:
            _forget(held, kept)
        for key in self._closing_models.keys() - kept:
            await self._closing_models.pop(key)()

        await asyncio.get_running_loop().run_in_executor(self._worker, _forget, self._loaded, kept)

    def _open_generator(self, model: Model) -> Generator:
        if is_path(model.loader):
            return proven(cast(Generator, load.from_outside(model, self._device, "__call__")))
        if model.loader == "scripted":
            adapters = [name for name, _ in model.adapters]
            return Scripted(adapters=adapters, max_model_len=model.max_model_len).generate
        if model.loader == "openai":
            from raypipe.models.openai import OpenAIClient  # which imports an HTTP client

            at = hosts.address_of(model, self.endpoints)
            client = OpenAIClient(model, at)
            self._closing_models[_key(model)] = client.close
            generate = proven(client.generate)
            if not at.batch:
                return generate
            from raypipe.models.batches import BatchClient  # for batch APIs alone

            batch = BatchClient(model, client, generate)
            self._closing_models[_key(model)] = batch.close
            return batch.generate
        if self._engines is not None:
            return proven(self._shared(model, self._engines))
        load.require_startable(model)
        own = OwnEngine(model, self._engine_limits, self._loading_s.append, self._sink)
        self._own[_key(model)], self._closing_models[_key(model)] = own, own.close
        return own.generate

    def _shared(self, model: Model, engines: Mapping[str, Sequence[str]]) -> Generator:
        """A generator over the engines that a job started, routed by cached prefix."""
        identity = own_identity(model)
        if not (names := engines.get(identity)):
            raise ConfError(
                f"model {model.name!r}: no engine was started for it. Jobs start engines, `raypipe ask` its "
                f"own; a run in one process has none"
            )
        from raypipe.models.engine_actors import JoiningEngines, find  # which imports Ray

        joining = JoiningEngines(self._passing.get(identity, ()))
        passing = [joining.generator(n) for n in range(len(self._passing.get(identity, ())))]
        return routed([find(name).generate for name in names], passing, joining.up)

    async def stream(
        self, model: Model, chat: Chat, sampling: Sampling, adapter: str | None = None
    ) -> ReplyPieces:
        """Streams a reply: pieces, if this process has the engine, then the whole reply or its fault."""
        generate = self.generator(model)
        if own := self._own.get(_key(model)):
            async for piece in own.stream(chat, sampling, adapter):
                yield piece
        else:
            for reply in await generate([chat], sampling, adapter):
                yield reply

    async def unavailable(self) -> list[str]:
        return []

    async def healthy(self) -> None:
        """Returns while the engines that this kit started are alive. Raises Unavailable."""
        for own in list(self._own.values()):
            await own.healthy()

    def unfinished(self) -> int:
        """Chat requests queued or running in the engines that this kit started."""
        return sum(own.unfinished() for own in list(self._own.values()))

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

    def data(self, ref: Reference[T]) -> T:
        """Opens a reference the first time that it is asked for. Raises as `Reference.require`, and
        Unavailable where its files, which every row needs, cannot be read."""
        key = type(ref).__name__ + stable(ref) + ref.where
        if key not in self._data:
            try:
                self._data[key] = ref.open(Tools(self.embedder, self._clock, self._closing_data.append))
            except OSError as e:
                raise Unavailable(f"{ref.title()} at {ref.where} cannot be read: {e}") from e
        found: T = self._data[key]
        return found

    def loading_s(self) -> float:
        """Seconds that loading models took so far, with the imports of their libraries."""
        return sum(self._loading_s)

    async def _compute(self, model: Model, call: Callable[[Any], T]) -> T:
        def work() -> T:
            key = _key(model)
            if key not in self._loaded:
                start = self._clock()
                with loading(model.name, self._device):
                    if model.loader in REMOTE:
                        self._loaded[key] = load.open_remote(model, self.endpoints)
                    else:
                        # Without weights no torch is needed, whose import takes three seconds.
                        outside = model.loader in WEIGHTLESS or is_path(model.loader)
                        if self._threads is not None and not outside:
                            import torch  # seconds

                            torch.set_num_threads(self._threads)
                        self._loaded[key] = load.open_model(
                            model, self._backend, self._device, self._encoders
                        )
                self._loading_s.append(self._clock() - start)
            with computing(model.name, self._device):
                return call(self._loaded[key])

        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _forget(held: dict[Model, Any], kept: set[Model]) -> None:
    for key in held.keys() - kept:
        del held[key]


def _key(model: Model) -> Model:
    """The fields that decide a model's numbers: the same weights under two names or paths load once."""
    return replace(model, name="", path="", adapter_paths=(), adopted=None)


async def compute_once(kit: Kit, model: Model) -> None:
    """Sends a small request to a model that computes. Raises what the model raises, and Unavailable for a
    reply that did not come."""
    if model.kind == "generator":
        [reply] = await kit.generator(model)(((Message("user", "ready"),),), Sampling(max_tokens=1))
        if isinstance(reply, Fault) and reply.transient:
            raise Unavailable(f"{reply.reason}: {reply.detail}")
    else:
        await warm_up(kit, [model])


async def warm_up(kit: Kit, models: Iterable[Model]) -> None:
    """Loads models: returns once each has computed, or its engine can. Raises what loading raises."""
    for model in models:
        if model.kind == "embedder":
            await kit.embedder(model)(["ready"], "query")
        elif model.kind == "reranker":
            await kit.reranker(model)([("ready", "ready")])
        elif model.kind == "generator":
            await kit.generator(model)((), Sampling(max_tokens=1))
        else:
            kit.tokenizer(model)
