"""The kit of one process: the object through which steps reach models, engines and the index.

The kit loads each model once. Embedders and rerankers compute in one worker thread of the kit, which keeps
the event loop free. A second thread would not help, because two models at the same time would compete for the
same cores or device. Importing this module imports no model library.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from raypipe.core.bounded_rows import batches
from raypipe.core.digests import own_identity, stable
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Generator, ReplyPieces, Sampling
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
from raypipe.models.folder import model_error
from raypipe.models.generators import READY, proven, routed
from raypipe.models.hosts import Backend, EndpointAddress, EngineLimits
from raypipe.models.token_arrays import TokenArray

if TYPE_CHECKING:
    from raypipe.models.server import ServerClient  # imports an HTTP client

T = TypeVar("T")


CPU_TEXTS = 64
"""Texts that a CPU embeds in one call, 2 to 4 s of MiniLM; progress is counted after each call. A GPU embeds
a whole task part in seconds; a server's replies are counted one by one."""


class LocalKit:
    """A kit with embedders, rerankers, generators, tokenizers and an index for the steps in this process.

    `backend`, `device` (cpu, cuda, cuda:1) and `threads` decide where and how fast models run; results differ
    by rounding only. `threads` counts torch's threads on a CPU; with None torch chooses. A model is loaded on
    first use, but its files are checked when a step asks for it. An engine of a job checks its files itself.

    `engines` maps the identity of a model to the names of the permanent engines that a job started for it.
    `joining` does so for engines that join and leave while the job runs. If `engines` is None, the first use
    of a vLLM model starts an engine in this process, within `engine_limits`. Use such a kit on one event
    loop, and close it. In a call with one chat, this engine passes each piece of the reply to `sink`.
    `process` names the process in reports. `clock` (seconds) times calls of graphs and the loading of models.
    `spent` times the work of the kit and its copies."""

    def __init__(
        self,
        index: Index | None,
        backend: Backend = "flagembedding",
        device: str = "cpu",
        threads: int | None = None,
        *,
        engines: Mapping[str, Sequence[str]] | None = None,
        joining: Mapping[str, Sequence[str]] | None = None,
        endpoints: Mapping[str, EndpointAddress] | None = None,
        engine_limits: EngineLimits | None = None,
        sink: Callable[[str], None] | None = None,
        process: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._index, self._backend, self._device, self._threads = index, backend, device, threads
        self._engines, self._joining = engines, joining or {}
        self.endpoints = endpoints or {}
        self._engine_limits = engine_limits or EngineLimits()
        self._sink, self._clock, self.process, self.spent = sink, clock, process, SharedClock()
        self._closing_models: dict[Model, Callable[[], Awaitable[None]]] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="models")
        self._loaded: dict[Model, Any] = {}  # by `_key`; only the worker thread adds to it
        self._loading_s: list[float] = []  # seconds that each model took to load
        self._encoders = SharedEncoders()
        self._tokenizers: dict[Model, Tokenize] = {}
        self._generators: dict[Model, Generator] = {}
        self._data: dict[str, Any] = {}  # opened references, by type, value and place
        self._closing_data: list[Callable[[], Awaitable[None]]] = []  # connections
        self._own: dict[Model, OwnEngine] = {}  # engines in this process
        self._servers: dict[Model, tuple[str, ServerClient]] = {}  # names and clients of models at addresses

    def with_index(self, index: Index) -> LocalKit:
        other = copy.copy(self)
        other._index = index
        return other

    def with_sink(self, sink: Callable[[str], None]) -> LocalKit:
        """Returns this kit. Ignores `sink`, since its engine uses the sink that the kit was made with."""
        return self

    def embedder(self, model: Model) -> Embed:
        self._require(model, "embedder")

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            if not texts:
                return np.zeros((0, model.dim), np.float32)
            here = self._device == "cpu" and model.loader not in REMOTE
            vectors = []
            for batch in batches(texts, CPU_TEXTS if here else len(texts)):
                vectors.append(await self._compute(model, methodcaller("embed", batch, role)))
                if here:
                    IN_HAND.add(len(batch))
            return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

        return embed

    async def embed_tokens(self, model: Model, tokens: Sequence[TokenArray]) -> np.ndarray:
        """Embeds texts that another process tokenized. The model must accept them
        (`token_arrays.takes_tokens`). Returns the same vectors as the function from `embedder`."""
        return await self._compute(model, methodcaller("embed_tokens", tokens))

    def reranker(self, model: Model) -> Score:
        self._require(model, "reranker")

        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if not pairs:
                return np.zeros(0, np.float32)
            return await self._compute(model, methodcaller("score", pairs))

        return score

    def generator(self, model: Model) -> Generator:
        self._require(model, "generator")
        key = _key(model)
        if key not in self._generators:
            self._generators[key] = self._open_generator(model)
        return self._generators[key]

    def _require(self, model: Model, kind: ModelKind) -> None:
        if model.kind != kind:
            found = f"found {model.kind!r} of loader {model.loader}"
            raise model_error(model, f"expected kind {kind!r}, {found}")
        if kind != "generator":
            load.present(model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the kit's own engines and its connections, as the end of `async with` does."""
        while self._closing_models:
            await self._closing_models.popitem()[1]()
        while self._closing_data:
            await self._closing_data.pop()()

    async def keep(self, models: Iterable[Model]) -> None:
        """Closes all models except `models`: weights, engines, connections and tokenizers. The next use of a
        closed model loads it again."""
        kept = {_key(m) for m in models}
        opened: tuple[dict[Model, Any], ...] = self._generators, self._own, self._tokenizers, self._servers
        for held in opened:
            _forget(held, kept)
        for key in self._closing_models.keys() - kept:
            await self._closing_models.pop(key)()
        await asyncio.get_running_loop().run_in_executor(self._worker, _forget, self._loaded, kept)

    def _open_generator(self, model: Model) -> Generator:
        if is_path(model.loader):
            return proven(cast(Generator, load.from_outside(model, self._device, "__call__")))
        if model.loader == "scripted":
            return Scripted(adapters=list(dict(model.adapters)), max_model_len=model.max_model_len).generate
        if model.loader == "openai":
            from raypipe.models.openai import OpenAIClient  # imports an HTTP client

            at = hosts.address_of(model, self.endpoints)
            client = OpenAIClient(model, at)
            self._closing_models[_key(model)] = client.close
            self._servers[_key(model)] = model.name, client.server
            generate = proven(client.generate)
            if not at.batch:
                return generate
            from raypipe.models.batch_api import BatchClient  # only for batch APIs

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
        """Returns a generator over the engines that a job started for a model, routed by cached prefix.
        Raises ConfError if the job started no engine for this model."""
        identity = own_identity(model)
        if not (permanent := engines.get(identity)):
            raise model_error(model, "no engine was started for it; jobs on Ray start them")
        from raypipe.models.engine_actors import JoiningEngines, find  # imports Ray

        names = self._joining.get(identity, ())
        joining = JoiningEngines(names)
        further = [joining.generator(n) for n in range(len(names))]
        return routed([find(name).generate for name in permanent], further, joining.up)

    async def stream(
        self, model: Model, chat: Chat, sampling: Sampling, adapter: str | None = None
    ) -> ReplyPieces:
        """Yields pieces, if the engine runs in this process, then the whole reply or its fault."""
        generate = self.generator(model)
        if own := self._own.get(_key(model)):
            async for piece in own.stream(chat, sampling, adapter):
                yield piece
        else:
            for reply in await generate([chat], sampling, adapter):
                yield reply

    async def unavailable(self) -> list[str]:
        """Lists the models at addresses whose server is failing (see `ServerClient.failing`)."""
        return [name for name, server in list(self._servers.values()) if server.failing()]

    async def healthy(self) -> None:
        """Raises Unavailable if an engine that this kit started has died."""
        for own in list(self._own.values()):
            await own.healthy()

    def unfinished(self) -> int:
        """Counts the chat requests queued or running in the engines that this kit started."""
        return sum(own.unfinished() for own in list(self._own.values()))

    def tokenizer(self, model: Model) -> Tokenize:
        """Returns a model's tokenizer, and opens it on first use. `model` may also be of kind tokenizer."""
        key = _key(model)
        if key not in self._tokenizers:
            self._tokenizers[key] = load.open_tokenizer(model)
        return self._tokenizers[key]

    def index(self) -> Index:
        if self._index is None:
            raise ConfError("a step searches, but this kit has no index: build the corpus half first")
        return self._index

    def data(self, ref: Reference[T]) -> T:
        """Opens a reference: a graph or file that a step names. Raises as `Reference.require`. Raises
        Unavailable if the files cannot be read; this is no fault of one row, since every row needs them."""
        key = type(ref).__name__ + stable(ref) + ref.where
        if key not in self._data:
            try:
                self._data[key] = ref.open(Tools(self.embedder, self._clock, self._closing_data.append))
            except OSError as e:
                raise Unavailable(f"{ref.title()} at {ref.where} cannot be read: {e}") from e
        opened: T = self._data[key]
        return opened

    def loading_s(self) -> float:
        """Returns the seconds spent so far on loading models, with imports of their libraries."""
        return sum(self._loading_s)

    async def _compute(self, model: Model, call: Callable[[Any], T]) -> T:
        def work() -> T:
            key = _key(model)
            if key not in self._loaded:
                start = self._clock()
                with loading(model.name, self._device):
                    self._loaded[key] = self._load(model)
                self._loading_s.append(self._clock() - start)
            with computing(model.name, self._device):
                return call(self._loaded[key])

        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _load(self, model: Model) -> Any:
        if model.loader in REMOTE:
            remote = load.open_remote(model, self.endpoints)
            self._servers[_key(model)] = model.name, remote.server
            return remote
        if self._threads is not None and model.loader not in WEIGHTLESS and not is_path(model.loader):
            import torch  # takes three seconds, and models without weights do not need it

            torch.set_num_threads(self._threads)
        return load.open_model(model, self._backend, self._device, self._encoders)


def _forget(held: dict[Model, Any], kept: set[Model]) -> None:
    for key in held.keys() - kept:
        del held[key]


def _key(model: Model) -> Model:
    """Returns the model without name, path and other fields that do not affect its numbers. Models with equal
    keys are loaded once, even if they have different names."""
    return replace(model, name="", path="", adapter_paths=(), adopted=None)


async def compute_once(kit: Kit, model: Model) -> None:
    """Sends a small request to a model. Raises the model's errors, and Unavailable if the reply is a
    transient fault. Does not raise for a final fault, since the model has replied."""
    if model.kind == "generator":
        [reply] = await kit.generator(model)([READY], Sampling(max_tokens=1))
        if isinstance(reply, Fault) and reply.transient:
            raise Unavailable(f"{reply.reason}: {reply.detail}")
    else:
        await warm_up(kit, [model])


async def warm_up(kit: Kit, models: Iterable[Model]) -> None:
    """Loads models; returns once each has computed or its engine is ready. Raises their loading errors. A
    generator behind an address gets no request."""
    for model in models:
        if model.kind == "embedder":
            await kit.embedder(model)(["ready"], "query")
        elif model.kind == "reranker":
            await kit.reranker(model)([("ready", "ready")])
        elif model.kind == "generator":
            await kit.generator(model)((), Sampling(max_tokens=1))
        else:
            kit.tokenizer(model)
