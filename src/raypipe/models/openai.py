"""A generator behind any endpoint that speaks the OpenAI chat protocol.

Keeps the contract of `llm.Generator`: every row has a reply or a fault, and no trouble of the endpoint
is ever an empty answer. Trouble that time or an operator can end (down, slow, overloaded, a wrong key or
address, an answer that is not the protocol's) is transient, so a later run sends the row again. A chat
that the endpoint refuses is final, and an account with nothing left is no row's matter. Fields that the
server refuses (`Model.unsent`, `server_check`) are not sent. Knows what is asked; `server` sends it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import STEP, Chat, Chats, Generated, JsonSchema, Replies, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.chat_replies import read_chat
from raypipe.models.constraint import structured
from raypipe.models.load import EndpointAddress
from raypipe.models.server import ServerClient, Trouble
from raypipe.models.vllm_terms import repetition

SAMPLED = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty")
NEUTRAL: Mapping[str, float] = {
    "temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_k": 0, "min_p": 0,
    "repetition_penalty": 1,
}  # fmt: skip
"""Values that change nothing."""
OMITTABLE = (*NEUTRAL, "seed", "stop")
"""Fields that a chat may lack: without them the server's own choice decides; stops are then applied here."""
CHARS_A_TOKEN = 4  # of English text, as OpenAI counts for its limits of tokens a minute
UNSUPPORTED = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (supported|permitted|allowed)", re.I
)


class OpenAIClient:
    """`generate` keeps the contract of `llm.Generator`. Use it on one event loop and `await close()` it."""

    def __init__(
        self,
        model: Model,
        at: EndpointAddress,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sleep` and `clock` (seconds) are for tests."""
        self._model, self._at = model, at
        self.server = ServerClient(at, sleep, clock)
        self._adapters = model.adapter_folders()

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        """Raises Unavailable, besides, where the account has nothing left: no further chat would be done."""
        body = self.body(sampling, adapter)
        return list(await asyncio.gather(*(self._one(chat, body, sampling) for chat in chats)))

    async def close(self) -> None:
        await self.server.close()

    def body(self, sampling: Sampling, adapter: str | None = None) -> dict[str, Any]:
        """The request without its messages. States everything that decides the reply: otherwise an endpoint's
        defaults (vLLM takes some from the model's folder) would decide it silently."""
        if adapter is not None and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise ConfError(f"{self._at.url}: no adapter named {adapter!r}; the endpoint's entry has {known}")
        body: dict[str, Any] = {
            "model": self._adapters[adapter] if adapter else self._model.repo,
            **{name: getattr(sampling, name) for name in SAMPLED},
        }
        if sampling.temperature:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.logprobs:
            body["logprobs"] = True
        if self._model.dialect == "vllm":
            body |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
            if sampling.repeats:
                body["repetition_detection"] = repetition(sampling)
        if self._model.template:
            body["chat_template_kwargs"] = json.loads(self._model.template)
        body = {name: value for name, value in body.items() if name not in self._model.unsent}
        if "max_tokens" not in body:  # a reply is never without its bound
            body["max_completion_tokens"] = sampling.max_tokens
        return body | self._constraint(sampling)

    def _constraint(self, sampling: Sampling) -> dict[str, Any]:
        constraint = sampling.constraint
        if constraint is None:
            return {}
        if self._model.dialect == "vllm":
            return {"structured_outputs": structured(constraint)}
        if isinstance(constraint, JsonSchema):
            try:
                schema = json.loads(constraint.text)
            except ValueError as e:
                raise ConfError(f"JSON schema: not valid JSON: {e}") from e
            named = {"name": "reply", "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        raise ConfError(
            f"{self._at.url}: the OpenAI protocol holds replies to JSON schemas alone, found "
            f"{type(constraint).__name__}. Set dialect: vllm in its entry of models.yaml where a vLLM server "
            f"answers, or ask for JSON"
        )

    async def _one(self, chat: Chat, body: dict[str, Any], sampling: Sampling) -> Generated | Fault:
        got = await self.attempt(chat, body, sampling)
        if not isinstance(got, Trouble):
            return got
        if got.reason == "unpaid":
            raise Unavailable(got.detail)
        return Fault(STEP, got.reason, got.detail, got.transient)

    async def attempt(
        self, chat: Chat, body: dict[str, Any], sampling: Sampling
    ) -> Generated | Fault | Trouble:
        """The reply to a chat with such a body (`body`), or why the server gives none."""
        messages = [{"role": m.role, "content": m.content} for m in chat]
        tokens = sampling.max_tokens + sum(len(m.content) for m in chat) / CHARS_A_TOKEN
        whole = body | {"messages": messages}
        read = lambda tree: read_chat(tree, sampling)  # noqa: E731
        return await self.server.send("POST", "chat/completions", read, tokens, json=whole)


def refused_fields(error: Any, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a chat's body that a server's error refuses and that a chat may lack. Of several the ones
    that change nothing: without them the others may be taken.

    >>> body = {"max_tokens": 9, "temperature": 0.0, "top_p": 1.0}
    >>> refused_fields({"message": "Unsupported parameter: 'max_tokens'", "param": "max_tokens"}, body)
    ('max_tokens',)
    >>> refused_fields("temperature and top_p cannot both be given", body)
    ('top_p',)
    >>> refused_fields("at most 8192 tokens, and max_tokens are 9000", body)
    ()
    """
    param = error.get("param") if isinstance(error, dict) else None
    said = json.dumps(error)
    named = [f for f in OMITTABLE if f in body and (f == param or re.search(rf"\b{f}\b", said))]
    if param in named:
        named = [param]
    if not named and "max_tokens" in body and re.search(r"\bmax_tokens\b", said):
        return ("max_tokens",) if UNSUPPORTED.search(said) or "max_completion_tokens" in said else ()
    return tuple([f for f in named if body[f] == NEUTRAL.get(f)] or named)
