"""A vLLM engine: one copy of a model's weights for any number of concurrent callers.

A plain async class. One process uses it as it is, a job in a named actor, the endpoint in a deployment, so
that every step, block and request shares one queue and nothing drains between batches.

Trouble with one chat is a fault on its row. What can never work is a ConfError before anything is sent. When
vLLM's own process dies, every call raises `EngineDied`. vLLM is imported by the process that starts one: its
import takes ten seconds and a device.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.core.llm import Alone, Chat, Chats, Generated, Replies, ReplyPieces, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models import generator_files, vllm_terms
from raypipe.models.generator_files import harmless, marks_of
from raypipe.models.hosts import EngineLimits
from raypipe.models.orphan_reaper import OrphanReaper
from raypipe.models.vllm_terms import fault, refused, reply


class LoraBatchLock:
    """`async with gate.turn(kind)`. A kind that equals no other (`object()`) is let in alone."""

    def __init__(self) -> None:
        self._kind: Hashable = None
        self._inside = 0
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self, kind: Hashable) -> AsyncIterator[None]:
        await self._enter(kind)
        try:
            yield
        finally:
            self._inside -= 1
            self._admit()

    async def _enter(self, kind: Hashable) -> None:
        if not self._waiting and (not self._inside or self._kind == kind):
            self._kind = kind
            self._inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.remove((kind, place))
            else:  # let in at the very moment it was cancelled
                self._inside -= 1
            self._admit()
            raise

    def _admit(self) -> None:
        """Admits the calls that may run now.

        When the gate is empty those are all calls of the kind that has waited longest, also those queued
        behind other kinds: these wait for that kind's round in any case."""
        if not self._waiting:
            return
        if not self._inside:
            self._kind = self._waiting[0][0]
        elif self._waiting[0][0] != self._kind:
            return
        stay: deque[tuple[Hashable, asyncio.Future[None]]] = deque()
        for kind, place in self._waiting:
            if kind == self._kind and not place.cancelled():
                self._inside += 1
                place.set_result(None)
            else:
                stay.append((kind, place))
        self._waiting = stay


CLOSE_S = 20.0  # vLLM's own 5 are short on a busy machine, and what it kills leaves shared memory behind


class EngineDied(Exception):
    """vLLM's process died, and with it everything in flight. Start another engine and send it again."""


class Engine:
    """Keeps the contract of `llm.Generator` with its method `generate`. Make it and use it on one event loop;
    making it takes 20 to 110 seconds. Raises ModelMissing or ConfError for a folder that must not be started.
    """

    def __init__(self, model: Model, limits: EngineLimits, exit_when_dead: bool = False) -> None:
        """`exit_when_dead`: where EngineDied would be raised, end this process, to be restarted."""
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
        """Returns once every adapter is loaded. Raises ConfError for one that does not fit the model."""
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
        """As `llm.Generator`. With `alone` nothing else runs meanwhile, so that a death has one suspect, and
        it is called when that begins."""
        outputs = await self.outputs(chats, sampling, adapter, alone)
        return [o if isinstance(o, Fault) else reply(o, sampling) for o in outputs]

    async def outputs(
        self, chats: Chats, sampling: Sampling, adapter: str | None = None, alone: Alone | None = None
    ) -> list[Any]:
        """vLLM's RequestOutput of each chat, with its tokens, or a Fault."""
        params = self._params(sampling, "FINAL_ONLY")
        lora = self._adapter(adapter)
        prompts = await asyncio.gather(*(self._prompt(chat, sampling) for chat in chats))
        async with self._gate.turn(object() if alone else self._kind(adapter)):
            if alone:
                alone()
            return await asyncio.gather(*(self._one(prompt, params, lora) for prompt in prompts))

    async def stream(self, chat: Chat, sampling: Sampling, adapter: str | None = None) -> ReplyPieces:
        """The reply's text piece by piece, then the whole reply or its fault. A caller that stops reading
        stops the engine's work; one that reads slowly does not slow others."""
        params, lora = self._params(sampling, "DELTA"), self._adapter(adapter)
        pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: that was all
        task = asyncio.create_task(self._pump(chat, sampling, params, lora, self._kind(adapter), pieces))
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await task
        finally:
            task.cancel()

    async def healthy(self) -> None:
        """Raises EngineDied if vLLM's process is gone."""
        try:
            await self._llm.check_health()
        except Exception as e:
            self._raise_if_dead(e)
            raise

    def unfinished(self) -> int:
        count: int = self._llm.get_num_unfinished_requests()
        return count

    def close(self) -> None:
        """Ends vLLM's processes and waits for their end, some seconds. May be called twice."""
        llm, self._llm = self._llm, None  # left to the interpreter's exit, vLLM's own cleaning up fails
        if llm is not None:
            llm.shutdown(timeout=CLOSE_S)
            del llm
            self._guard.close()

    def _kind(self, adapter: str | None) -> str:
        """GPU kernels keep adapters and base model apart within a batch; those for the CPU do not."""
        return "adapter" if adapter is not None and self.limits.device == "cpu" else "base"

    def _adapter(self, name: str | None) -> Any:
        from vllm.lora.request import LoRARequest

        if name is None:
            return None
        if name not in self._lora:
            known = ", ".join(self._lora) or "none"
            raise ConfError(f"{self.model.path}: no adapter named {name!r}; it has {known}")
        return LoRARequest(name, *self._lora[name])

    def _params(self, sampling: Sampling, kind: str) -> Any:
        """vLLM's form of the sampling, after vLLM's own check. Raises ConfError."""
        from vllm.exceptions import VLLMClientError

        try:
            params = vllm_terms.sampling_params(sampling, kind)
            config = self._llm.vllm_config
            params.verify(
                config.model_config, None, config.structured_outputs_config, self._llm.get_tokenizer()
            )
        except (VLLMClientError, ValueError) as e:
            raise ConfError(f"sampling: vLLM refuses it: {e}") from e
        return params

    async def _prompt(self, chat: Chat, sampling: Sampling) -> Any:
        """The rendered chat, tokenized; or a Fault."""
        from vllm.renderers import ChatParams
        from vllm.renderers.params import TokenizeParams

        renderer = self._llm.renderer
        messages = [{"role": m.role, "content": harmless(self._marks, m.content)} for m in chat]
        try:
            _, (prompt,) = await renderer.render_chat_async(
                [messages],
                ChatParams(chat_template_kwargs={**self._template, "add_generation_prompt": True}),
                # The template has written the first token: a second one would change every answer.
                TokenizeParams(max_total_tokens=None, add_special_tokens=False),
            )
        except Exception as e:
            return fault("unrenderable", f"the chat template refuses this chat: {e}")
        tokens, limit = len(prompt["prompt_token_ids"]), self.model.max_model_len
        if tokens + sampling.max_tokens > limit:
            return fault(
                "prompt_too_long",
                f"expected at most {limit} tokens, found {tokens} of prompt, {sampling.max_tokens} of reply: "
                f"pack less into the prompt, or raise the model's context",
            )
        return prompt

    async def _one(self, prompt: Any, params: Any, lora: Any) -> Any:
        if isinstance(prompt, Fault):
            return prompt
        try:
            async for output in self._llm.generate(
                prompt, params, f"r{next(self._numbers)}", lora_request=lora
            ):
                if output.finished:
                    return output
        except Exception as e:
            self._raise_if_dead(e)
            return refused(e)
        return fault("no_reply", "vLLM ended the request without a reply", transient=True)

    async def _pump(
        self,
        chat: Chat,
        sampling: Sampling,
        params: Any,
        lora: Any,
        kind: str,
        pieces: asyncio.Queue[str | None],
    ) -> Generated | Fault:
        """Takes a stream from the engine as fast as it comes: the gate is never held for a listener."""
        text, tokens, output = "", 0, None
        try:
            prompt = await self._prompt(chat, sampling)
            if isinstance(prompt, Fault):
                return prompt
            name = f"r{next(self._numbers)}"
            async with self._gate.turn(kind):
                async for output in self._llm.generate(prompt, params, name, lora_request=lora):
                    piece = output.outputs[0]
                    text += piece.text
                    tokens += len(piece.token_ids)
                    if piece.text:
                        pieces.put_nowait(piece.text)
            return reply(output, sampling, text, tokens)
        except Exception as e:
            self._raise_if_dead(e)
            return refused(e)

    def _raise_if_dead(self, e: BaseException) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(e, EngineDeadError):
            if self._exit:
                os._exit(1)  # a supervisor sees a crash; an orderly exit would not be restarted
            raise EngineDied(f"{self.model.path}: {e}") from e


def _start(model: Model, limits: EngineLimits) -> Any:
    # Read by vLLM when it is imported, here and in its children: no report of usage to anyone, and warnings
    # alone, on stderr. stdout belongs to the command.
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
