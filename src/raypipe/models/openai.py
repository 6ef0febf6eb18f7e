"""A generator behind any endpoint that speaks the OpenAI chat protocol.

Keeps the contract of `llm.Generator`: every row has a reply or a fault, and no trouble of the endpoint
is ever an empty answer. Thoughts that come in a field of their own stand before the reply, with their marks
(`text.thoughts`). Trouble that time or an operator can end (down, slow, overloaded, a wrong key or
address, an answer that is not the protocol's) is transient, so a later run sends the row again. A chat
that the endpoint refuses is final. The key is in a request's header and nowhere else. Knows HTTP, no model.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from raypipe.core.errors import ConfError
from raypipe.core.llm import STEP, Chat, Chats, Finish, Generated, JsonSchema, Replies, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.core.retry import RETRY_STATUSES, Backoff, retry_after_s
from raypipe.models.constraint import structured
from raypipe.models.load import SHOWN, EndpointAddress
from raypipe.models.vllm_terms import repetition
from raypipe.text.thoughts import thinking

OPERATOR = {401: "unauthorised", 402: "unpaid", 403: "forbidden", 404: "not_found", 405: "not_found"}
"""Statuses that say nothing about the row: the operator has to correct something."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # before the second try, doubling, with jitter
SAMPLED = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty")


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
        self._sleep, self._clock = sleep, clock
        self._client = httpx.AsyncClient(timeout=at.timeout_s, follow_redirects=False)
        self._room = asyncio.Semaphore(at.concurrency)
        self._next = 0.0  # when the next request may leave, on the clock
        self._failing = 0  # rows in a row that got nothing
        self._adapters = model.adapter_folders()

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        body = self._body(sampling, adapter)
        return list(await asyncio.gather(*(self._one(chat, body, sampling) for chat in chats)))

    async def close(self) -> None:
        await self._client.aclose()

    def _body(self, sampling: Sampling, adapter: str | None) -> dict[str, Any]:
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
        messages = [{"role": m.role, "content": m.content} for m in chat]
        async with self._room:
            result: Generated | Fault
            # Once a whole round of rows got nothing, each further row is one try, until one gets through: an
            # endpoint that is down costs a run minutes, not hours.
            tries = 1 if self._failing >= self._at.concurrency else self._at.tries
            backoff = Backoff(tries, FIRST_WAIT_S, LONGEST_WAIT_S)
            while True:
                result, again = await self._try(body | {"messages": messages}, sampling)
                if not again or (wait_s := backoff.next_s()) is None:
                    break
                await self._sleep(wait_s)
            self._failing = self._failing + 1 if isinstance(result, Fault) and result.transient else 0
            return result

    async def _turn(self) -> None:
        now = self._clock()
        leave = max(now, self._next)
        self._next = leave + 60.0 / self._at.per_minute
        if leave > now:
            await self._sleep(leave - now)

    async def _try(self, body: dict[str, Any], sampling: Sampling) -> tuple[Generated | Fault, bool]:
        """Sends one request: a reply or a fault, and whether to retry."""
        await self._turn()
        url, key = f"{self._at.url.rstrip('/')}/chat/completions", self._at.key
        if " " in key or not (key.isascii() and key.isprintable()):  # an error of the header would quote it
            raise ConfError(f"{self._at.url}: the key has white space or other signs that no key has")
        try:
            async with asyncio.timeout(self._at.timeout_s):  # httpx limits each read, not their sum
                response = await self._client.post(url, json=body, headers=self._at.headers)
        except UnicodeEncodeError as e:
            return self._fault("unsendable", f"the chat is not valid text: {e.reason}", False), False
        except (httpx.TimeoutException, TimeoutError):
            return self._fault("timeout", f"no answer within {self._at.timeout_s:g} s", True), True
        except httpx.HTTPError as e:
            return self._fault("unreachable", f"{type(e).__name__}: {e}", True), True
        if response.status_code != 200:
            return self._refused(response)
        try:
            return _reply(response.json(), sampling), False
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
            kind = response.headers.get("content-type", "no content type")
            found = f"{kind} ({type(e).__name__}: {e}): {response.text[:SHOWN]!r}"
            detail = f"expected a chat completion, found {found}. Is this the API's address?"
            return self._fault("not_the_protocol", detail, True), True

    def _refused(self, response: httpx.Response) -> tuple[Fault, bool]:
        status, detail = response.status_code, f"status {response.status_code}: {response.text[:SHOWN]!r}"
        if status in RETRY_STATUSES:
            # Every row waits, not this one alone: the limit is the key's, or the server's.
            wait_s = min(retry_after_s(response.headers), LONGEST_WAIT_S)
            self._next = max(self._next, self._clock() + wait_s)
            return self._fault("overloaded" if status == 429 else "unavailable", detail, True), True
        if status in OPERATOR:
            return self._fault(OPERATOR[status], f"{detail}. Check the key, url and model", True), False
        if status < 400:
            return self._fault("redirected", f"{detail}. Put the final address in url", True), False
        return self._fault("refused", detail, status >= 500), False

    def _fault(self, reason: str, detail: str, transient: bool) -> Fault:
        """Endpoints may quote the key they were sent."""
        detail, key = f"{self._at.url}: {detail}", self._at.key
        return Fault(STEP, reason, detail.replace(key, "***") if key else detail, transient)


def _reply(tree: Any, sampling: Sampling) -> Generated | Fault:
    """Raises what reading a tree of another shape raises."""
    choice = tree["choices"][0]
    message, why = choice["message"], choice.get("finish_reason")
    text = message.get("content")
    if why == "content_filter":
        return Fault(STEP, "filtered", "the endpoint withheld the reply", transient=False)
    if why not in ("stop", "length", "repetition"):  # the last of vLLM
        raise ValueError(f"finish_reason {why!r}")
    if not isinstance(text, str | None):
        raise TypeError(f"content is {type(text).__name__}")
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    text = thinking(thoughts if isinstance(thoughts, str) else "", text or "")
    if not text:
        return Fault(STEP, "empty_reply", "the model ended its reply before any text", transient=False)
    finish: Finish = "stop" if why == "stop" else "length"
    usage = tree.get("usage") or {}
    logprob = None
    if sampling.logprobs:
        logprob = math.fsum(token["logprob"] for token in choice["logprobs"]["content"])
    return Generated(
        text=text,
        finish=finish,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        generated_tokens=int(usage.get("completion_tokens") or 0),
        logprob=logprob,
    )
