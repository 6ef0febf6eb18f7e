"""A vLLM engine: one copy of a model's weights for any number of concurrent callers.

`Engine` is a plain async class: a single process uses it directly, a job in a named actor, the endpoint in a
deployment. All callers share its queue, so the GPU never idles between batches. `OwnEngine` starts an engine
in this process with its first call, and another one after the death of the first.

An error of one chat is a fault of that chat's row. A request that can never work raises ConfError before
anything is sent. When vLLM's own process dies, every call of `Engine` raises `EngineDied`. vLLM is imported
only by a process that starts an engine: the import takes ten seconds and needs a device.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any

from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import STEP, Alone, Chat, Chats, Generated, Replies, ReplyPieces, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models import generator_files, vllm_terms
from raypipe.models.device import loading
from raypipe.models.generator_files import escape_marks, marks_of
from raypipe.models.hosts import EngineLimits
from raypipe.models.orphan_reaper import OrphanReaper
from raypipe.models.vllm_terms import fault, refused, reply
from raypipe.text.thoughts import DraftText


class LoraBatchLock:
    """A lock that only calls of the same kind hold at the same time. On a CPU the kinds are calls to adapters
    and calls to the base. A call whose kind is a new `object()` runs by itself."""

    def __init__(self) -> None:
        self._kind: Hashable = None  # of the calls that run
        self._inside = 0  # number of calls that run
        self._waiting: dict[asyncio.Future[None], Hashable] = {}  # -> kind of the call, oldest first

    @asynccontextmanager
    async def turn(self, kind: Hashable) -> AsyncIterator[None]:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = kind
        self._admit()
        try:
            await place
            yield
        finally:
            if place in self._waiting:  # cancelled before it was admitted
                del self._waiting[place]
            else:
                self._inside -= 1
            self._admit()

    def _admit(self) -> None:
        """Admits all waiting calls of the oldest one's kind, if no call or only calls of that kind run. Calls
        of other kinds that were queued between them lose nothing: they wait for this round in any case."""
        first = next(iter(self._waiting.values()), None)
        if self._inside and first != self._kind:
            return
        self._kind = first
        for place in [p for p, kind in self._waiting.items() if kind == first and not p.cancelled()]:
            del self._waiting[place]
            self._inside += 1
            place.set_result(None)


CLOSE_S = 20.0  # vLLM's default of 5 s is short on a busy machine; processes that it kills leak shared memory


class EngineDied(Exception):
    """Death of vLLM's process. All chats in flight are lost: start another engine and send them again."""


class Engine:
    """A running vLLM engine; `generate` is an `llm.Generator`. Create and use it on one event loop."""

    def __init__(self, model: Model, limits: EngineLimits, exit_when_dead: bool = False) -> None:
        """Starts vLLM in 20 to 110 s. Raises ModelMissing for missing files of the model, and ConfError for
        wrong files or a setup that vLLM refuses. If `exit_when_dead` is true, a dead engine ends this
        process, so that a supervisor restarts it; otherwise calls raise EngineDied."""
        generator_files.check(model)
        self.model, self.limits = model, limits
        self._exit = exit_when_dead
        self._guard = OrphanReaper()
        try:
            self._llm = _start(model, limits)
        except BaseException:
            self._guard.close()
            raise
        self._guard.arm()
        self._gate = LoraBatchLock()
        self._numbers = itertools.count()
        self._template = json.loads(model.template or "{}")
        self._lora = {n: (i + 1, p) for i, (n, p) in enumerate(model.adapter_folders().items())}
        self._marks = marks_of(self._llm.get_tokenizer())

    async def ready(self) -> None:
        """Loads every adapter. Raises ConfError for an adapter that does not fit the model."""
        await self.healthy()
        for name in self._lora:
            try:
                await self._llm.add_lora(self._adapter(name))
            except Exception as e:
                self._raise_if_dead(e)
                raise ConfError(f"adapter {name!r}: it does not fit {self.model.path}: {e}") from e

    async def generate(
        self, chats: Chats, sampling: Sampling, adapter: str | None = None, alone: Alone | None = None
    ) -> Replies:
        """Replies to chats as `llm.Generator`. With `alone` no other call runs meanwhile, so only this call
        can kill the engine; the function `alone` is called when this call starts."""
        outputs = await self.outputs(chats, sampling, adapter, alone)
        return [o if isinstance(o, Fault) else reply(o, sampling) for o in outputs]

    async def outputs(
        self,
        chats: Chats,
        sampling: Sampling,
        adapter: str | None = None,
        alone: Alone | None = None,
        on_piece: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        """Returns vLLM's RequestOutput of each chat, with its tokens, or a Fault. With `on_piece` an output
        has only the last tokens; the function gets every piece as soon as vLLM writes it."""
        params = self._params(sampling, "DELTA" if on_piece else "FINAL_ONLY")
        lora = self._adapter(adapter)
        prompts = await asyncio.gather(*(self._prompt(chat, sampling) for chat in chats))
        # CPU kernels cannot mix calls to adapters and to the base.
        kind = "adapter" if adapter is not None and self.limits.device == "cpu" else "base"
        async with self._gate.turn(object() if alone else kind):
            if alone:
                alone()
            return await asyncio.gather(*(self._one(prompt, params, lora, on_piece) for prompt in prompts))

    async def stream(self, chat: Chat, sampling: Sampling, adapter: str | None = None) -> ReplyPieces:
        """Yields the reply's text in pieces, then the whole reply or its fault. The engine stops generating
        if the caller stops reading; a slow caller does not slow others."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end
        texts, counts = list[str](), list[int]()

        def keep(piece: Any) -> None:
            texts.append(piece.text)
            counts.append(len(piece.token_ids))
            if piece.text:
                pieces.put_nowait(piece.text)

        async def pump() -> Generated | Fault:
            """Reads the stream as fast as vLLM writes it, so that no slow caller holds the lock."""
            [output] = await self.outputs([chat], sampling, adapter, on_piece=keep)
            if isinstance(output, Fault):
                return output
            return reply(output, sampling, "".join(texts), sum(counts))

        task = asyncio.create_task(pump())
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await task
        finally:
            task.cancel()

    async def healthy(self) -> None:
        """Raises EngineDied if vLLM's process has ended."""
        try:
            await self._llm.check_health()
        except Exception as e:
            self._raise_if_dead(e)
            raise

    def unfinished(self) -> int:
        return int(self._llm.get_num_unfinished_requests())

    def close(self) -> None:
        """Ends vLLM's processes, and waits some seconds for their end. A second call does nothing."""
        llm, self._llm = self._llm, None  # at the interpreter's exit vLLM's own cleanup would fail
        if llm is not None:
            llm.shutdown(timeout=CLOSE_S)
            del llm
            self._guard.close()

    def _adapter(self, name: str | None) -> Any:
        from vllm.lora.request import LoRARequest

        if name is None:
            return None
        if name not in self._lora:
            known = ", ".join(self._lora) or "none"
            raise ConfError(f"{self.model.path}: no adapter named {name!r}; it has {known}")
        return LoRARequest(name, *self._lora[name])

    def _params(self, sampling: Sampling, kind: str) -> Any:
        """Converts the sampling to vLLM's form. Raises ConfError if vLLM refuses it."""
        from vllm.exceptions import VLLMClientError

        try:
            params, config = vllm_terms.sampling_params(sampling, kind), self._llm.vllm_config
            structured, tokenizer = config.structured_outputs_config, self._llm.get_tokenizer()
            params.verify(config.model_config, None, structured, tokenizer)
        except (VLLMClientError, ValueError) as e:
            raise ConfError(f"sampling: vLLM refuses it: {e}") from e
        return params

    async def _prompt(self, chat: Chat, sampling: Sampling) -> Any:
        """Renders and tokenizes a chat. Returns a Fault if the template refuses it or it is too long."""
        from vllm.renderers import ChatParams
        from vllm.renderers.params import TokenizeParams

        renderer = self._llm.renderer
        messages = [{"role": m.role, "content": escape_marks(self._marks, m.content)} for m in chat]
        try:
            _, (prompt,) = await renderer.render_chat_async(
                [messages],
                ChatParams(chat_template_kwargs={**self._template, "add_generation_prompt": True}),
                # The template writes the first special token; a second one would change every answer.
                TokenizeParams(max_total_tokens=None, add_special_tokens=False),
            )
        except Exception as e:
            return fault("unrenderable", f"the chat template refuses this chat: {e}")
        tokens, limit = len(prompt["prompt_token_ids"]), self.model.max_model_len
        if tokens + sampling.max_tokens > limit:
            found = f"{tokens} of prompt, {sampling.max_tokens} of reply: pack less, or raise max_model_len"
            return fault("prompt_too_long", f"expected at most {limit} tokens, found {found}")
        return prompt

    async def _one(self, prompt: Any, params: Any, lora: Any, on_piece: Callable[[Any], None] | None) -> Any:
        if isinstance(prompt, Fault):
            return prompt
        try:
            name = f"r{next(self._numbers)}"
            async for output in self._llm.generate(prompt, params, name, lora_request=lora):
                if on_piece:
                    on_piece(output.outputs[0])
                if output.finished:
                    return output
        except Exception as e:
            self._raise_if_dead(e)
            return refused(e)
        return fault("no_reply", "vLLM ended the request without a reply", transient=True)

    def _raise_if_dead(self, e: BaseException) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(e, EngineDeadError):
            if self._exit:
                os._exit(1)  # a supervisor restarts after a crash, but not after an orderly exit
            raise EngineDied(f"{self.model.path}: {e}") from e


def _start(model: Model, limits: EngineLimits) -> Any:
    # vLLM and its children read these variables at import: no usage reports, and warnings only, on stderr,
    # since stdout belongs to the command.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if limits.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**vllm_terms.arguments(model, limits)))
    except ValueError as e:
        raise ConfError(f"{model.path}: vLLM refuses this setup: {e}") from e


class OwnEngine:
    """An engine of this process, started by the first call. If it dies, the next call starts another one."""

    def __init__(
        self,
        model: Model,
        limits: EngineLimits,
        started: Callable[[float], None],
        sink: Callable[[str], None] | None,
    ) -> None:
        """Keeps the settings. `started` is called with the seconds of each start. In a call with one chat,
        `sink` gets the pieces of the reply, without thoughts."""
        self._model, self._limits, self._starting = model, limits, asyncio.Lock()
        self._report_start, self._sink = started, sink
        self._engine: Engine | None = None  # None: not running

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        """Replies to chats as `llm.Generator`. If the engine dies, every chat gets a transient fault."""
        if self._sink is not None and len(chats) == 1:
            draft = DraftText(thinking=self._model.thought_tokens > 0)
            async for piece in self.stream(chats[0], sampling, adapter):
                if text := draft.add(piece) if isinstance(piece, str) else draft.rest():
                    self._sink(text)
            assert not isinstance(piece, str)  # the last item is the whole reply
            return [piece]
        engine = await self._running()
        try:
            return await engine.generate(chats, sampling, adapter)
        except EngineDied as e:
            return [await self._on_engine_death(engine, e)] * len(chats)

    async def stream(self, chat: Chat, sampling: Sampling, adapter: str | None = None) -> ReplyPieces:
        """Yields the pieces of a reply, then the whole reply or its fault."""
        engine = await self._running()
        try:
            async for piece in engine.stream(chat, sampling, adapter):
                yield piece
        except EngineDied as e:
            yield await self._on_engine_death(engine, e)

    async def healthy(self) -> None:
        """Raises Unavailable if the engine was started and has died."""
        if (engine := self._engine) is not None:
            try:
                await engine.healthy()
            except EngineDied as e:
                raise Unavailable(f"an engine of this process: {e}") from e

    def unfinished(self) -> int:
        return 0 if self._engine is None else self._engine.unfinished()

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    async def _running(self) -> Engine:
        async with self._starting:
            if self._engine is None:
                start = time.perf_counter()
                with loading(self._model.path, self._limits.device):
                    self._engine = Engine(self._model, self._limits)
                    try:
                        await self._engine.ready()
                    except Exception:
                        await self.close()
                        raise
                self._report_start(time.perf_counter() - start)
            return self._engine

    async def _on_engine_death(self, engine: Engine, died: Exception) -> Fault:
        """Closes a dead engine, so that the next call starts another one. Returns the fault of its calls."""
        if self._engine is engine:
            await self.close()
        return Fault(STEP, "engine_lost", str(died), transient=True)
