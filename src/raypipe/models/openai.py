"""A generator behind an endpoint of the OpenAI chat protocol, and checks of a server before a run.

Every chat gets a reply or a fault; an error of the endpoint never becomes an empty answer. A fault is
transient if time or an operator can mend its cause: an endpoint that is down, slow or overloaded, a wrong key
or address, an answer of another protocol. A later run then sends the chat again. A chat that the endpoint
refuses gets a final fault. An account without credit raises Unavailable, since no chat is to blame. Before a
run, one chat with each step's sampling is sent, to find the fields that the server refuses. The chats of the
run are then sent without these fields (`Model.unsent`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import STEP, Chat, Chats, Generated, JsonSchema, Replies, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.constraint import structured
from raypipe.models.entry import DIALECTS
from raypipe.models.generators import READY
from raypipe.models.hosts import EndpointAddress
from raypipe.models.remote import RemoteModel
from raypipe.models.server import BrokenOff, ServerClient, Trouble
from raypipe.models.vllm_terms import repetition
from raypipe.text.thoughts import thinking

_CUT = "length max_tokens max_output_tokens model_length max_length token_limit repetition"
CUT = frozenset(_CUT.split())
_WITHHELD = """content_filter content_filtered guardrail_intervened filtered safety recitation blocklist
    prohibited_content spii"""
WITHHELD = frozenset(_WITHHELD.split())
REFUSES = frozenset({"refusal", "refused"})
BROKEN_OFF = frozenset({"error", "abort", "aborted", "cancelled", "timeout", "insufficient_system_resource"})
"""Finish reasons of cut, withheld, refused and broken-off replies, in lower case; of OpenAI, Anthropic, vLLM,
Gemini, Bedrock, Mistral, TGI and DeepSeek. Any other reason, or none, ends a complete text."""


def read_chat(tree: Any, sampling: Sampling) -> Generated | Fault:
    """Parses a chat completion, and cuts its text at stop texts. Returns a fault if the server withheld the
    reply, if the model declined, or if the reply is empty or a tool call. Raises BrokenOff for an unfinished
    reply, and KeyError, TypeError or the like for JSON of another shape."""
    choice = tree["choices"][0]
    message, end = choice["message"], str(choice.get("finish_reason") or "").lower()
    usage = tree.get("usage") or {}
    generated = int(usage.get("completion_tokens") or 0)
    text, thoughts = _texts(content := message.get("content"))
    if end in WITHHELD:
        return Fault(STEP, "filtered", "the endpoint withheld the reply", transient=False)
    if end in BROKEN_OFF:
        raise BrokenOff(f"finish_reason {end!r}")
    if calls := message.get("tool_calls") or message.get("function_call"):
        detail = f"expected a text, found a tool call, but no tool was offered: {str(calls)[:200]}"
        return Fault(STEP, "tool_call", detail, transient=False)
    for name in ("reasoning_content", "reasoning"):
        thoughts = thoughts or (message[name] if isinstance(message.get(name), str) else "")
    listed = content if isinstance(content, list) else [content]
    parts = [message, *(part for part in listed if isinstance(part, dict))]
    refusal = next((str(part["refusal"]) for part in parts if part.get("refusal")), "")
    if end in REFUSES or (refusal and not text):
        refusal = refusal or text
        return Fault(STEP, "declined", f"the model refuses to answer: {refusal[:200]!r}", transient=False)
    text = thinking(thoughts, text)
    cut = end in CUT or (not end and generated >= sampling.max_tokens)
    for stop in sampling.stop:  # a server may ignore stop texts, or include them in the reply
        text, found, _ = text.partition(stop)
        cut = cut and not found
    if not text:
        return Fault(STEP, "empty_reply", "the model ended its reply before any text", transient=False)
    details = usage.get("prompt_tokens_details") or {}  # some proxies pass on Anthropic's name instead
    chosen = choice["logprobs"]["content"] if sampling.logprobs else ()
    return Generated(
        text=text,
        finish="length" if cut else "stop",
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0),
        generated_tokens=generated,
        logprob=math.fsum(token["logprob"] for token in chosen) if sampling.logprobs else None,
    )


def _texts(content: Any) -> tuple[str, str]:
    """Returns text and thoughts in the content of a message, or in one part of the content. Both are "" for
    an image, for example. Raises TypeError for content of another shape."""
    if isinstance(content, str | None):
        return content or "", ""
    if isinstance(content, list):
        texts, thoughts = zip(*(_texts(part) for part in content), strict=True) if content else ((), ())
        return "".join(texts), "".join(thoughts)
    if not isinstance(content, dict):
        raise TypeError(f"content is {type(content).__name__}")
    kind = content.get("type", "text")
    if kind in ("text", "output_text"):
        return _texts(content["value" if "value" in content else "text"])
    if kind in ("thinking", "reasoning", "summary_text"):
        inner = next((content[name] for name in (kind, "text", "summary") if content.get(name)), "")
        return "", "".join(_texts(inner))
    return "", ""


SAMPLED = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty")
NEUTRAL: Mapping[str, float] = {
    "temperature": 1,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
}
"""Field -> the value at which it has no effect."""
OMITTABLE = (*NEUTRAL, "seed", "stop")
"""Fields that may be left out of a chat. Then the server's defaults apply; `read_chat` applies stops."""
CHARS_A_TOKEN = 4  # of English text, as OpenAI estimates for its limits of tokens per minute
UNSUPPORTED = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (supported|permitted|allowed)", re.I
)


class OpenAIClient:
    """Client of one served model; `generate` is an `llm.Generator`. Use it on one event loop; close it."""

    def __init__(
        self,
        model: Model,
        at: EndpointAddress,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._at = model, at
        self.server = ServerClient(at, sleep, clock)
        self._adapters = model.adapter_folders()

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        """Replies to chats. Raises Unavailable if the account has no credit: every chat would fail."""
        body = self.body(sampling, adapter)
        replies: Replies = []
        for got in await asyncio.gather(*(self.attempt(chat, body, sampling) for chat in chats)):
            if isinstance(got, Trouble) and got.reason == "unpaid":
                raise Unavailable(got.detail)
            if isinstance(got, Trouble):
                got = Fault(STEP, got.reason, got.detail, got.transient)
            replies.append(got)
        return replies

    async def close(self) -> None:
        await self.server.close()

    def body(self, sampling: Sampling, adapter: str | None = None) -> dict[str, Any]:
        """Builds a request without messages. It states all settings that decide the reply, except those in
        `Model.unsent`, so that the endpoint's defaults (some come from a model's folder) do not apply. Raises
        ConfError for an unknown adapter, or for a constraint that the dialect cannot express."""
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
        if "max_tokens" not in body:  # a reply always has a limit
            body["max_completion_tokens"] = sampling.max_tokens
        return body | self._constraint(sampling)

    def messages(self, chat: Chat) -> list[dict[str, Any]]:
        """Converts a chat to the protocol's messages. With `cache_control` the message before the last ends
        with a cache mark. Chats of one prompt are equal up to there; some servers cache only up to a mark."""
        turns: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in chat]
        if self._model.cache_control and len(turns) > 1:
            part = {"type": "text", "text": turns[-2]["content"], "cache_control": {"type": "ephemeral"}}
            turns[-2]["content"] = [part]
        return turns

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
        found = f"constraint: expected a JSON schema, found {type(constraint).__name__}"
        advice = "If vLLM serves the model, set dialect: vllm in its entry; else use a JSON schema"
        raise ConfError(f"{self._at.url}: {found}. {advice}")

    async def attempt(
        self, chat: Chat, body: dict[str, Any], sampling: Sampling
    ) -> Generated | Fault | Trouble:
        """Sends a chat with a body that `body` built. Returns a reply, a fault, or the server's trouble."""
        tokens = sampling.max_tokens + sum(len(m.content) for m in chat) / CHARS_A_TOKEN
        whole = body | {"messages": self.messages(chat)}
        read = partial(read_chat, sampling=sampling)
        return await self.server.send("POST", "chat/completions", read, tokens, json=whole)


def refused_fields(error: Any, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fields to leave out of a chat's body, because a server's error names them. If some of them
    have their neutral value, returns only these: the server may then accept the other fields.

    >>> body = {"max_tokens": 9, "temperature": 0.0, "top_p": 1.0}
    >>> refused_fields({"message": "Unsupported parameter: 'max_tokens'", "param": "max_tokens"}, body)
    ('max_tokens',)
    >>> refused_fields("temperature and top_p cannot both be given", body)
    ('top_p',)
    >>> refused_fields("at most 8192 tokens, and max_tokens are 9000", body)
    ()
    """
    param = error.get("param") if isinstance(error, dict) else None
    message = json.dumps(error)
    named = [f for f in OMITTABLE if f in body and (f == param or re.search(rf"\b{f}\b", message))]
    if param in named:
        named = [param]
    if not named and "max_tokens" in body and re.search(r"\bmax_tokens\b", message):
        return ("max_tokens",) if UNSUPPORTED.search(message) or "max_completion_tokens" in message else ()
    return tuple([f for f in named if body[f] == NEUTRAL.get(f)] or named)


T = TypeVar("T")
ChatForm: TypeAlias = tuple[Sampling, str | None]
"""Sampling and adapter of a step; together with the model they decide the body of its chats."""

IS_THIS_V1 = "is this the API's address, up to and with /v1?"
LISTING_TIMEOUT_S = 10.0  # limit of a request for the list of models
GONE = frozenset({"unreachable", "timeout", "unpaid"})
WRONG = frozenset({"unauthorised", "forbidden", "not_found", "redirected", "not_the_protocol"})
"""Reasons for which every chat fails, at present (GONE) or with this configuration (WRONG). Any other reason
may end by itself, or concerns one chat."""


def fields_refused(
    model: Model, at: EndpointAddress, kinds: Sequence[ChatForm], key_name: str
) -> tuple[tuple[str, ...], list[ChatForm]]:
    """Probes a server with one chat of each form (sampling and adapter), to find the fields that it refuses.

    Returns the fields to leave out in addition to `Model.unsent`, and the forms that the server accepts
    without them. Raises Unavailable if nothing answers or the account has no credit. Raises ConfError if the
    key (from the variable `key_name`) is refused, the model is not served, or the address is another
    service's. Any other refusal, or a busy server, is ignored here and becomes a fault of the rows later."""

    async def check() -> tuple[tuple[str, ...], list[ChatForm]]:
        unsent, taken = model.unsent, list[ChatForm]()
        for sampling, adapter in kinds:
            tried = unsent
            while fields := await _refused(replace(model, unsent=tried), at, sampling, adapter, key_name):
                tried += fields
            if fields is None:  # else refused for another reason, so the fields named before do not count
                unsent = tried
                taken.append((sampling, adapter))
        return unsent[len(model.unsent) :], taken

    return asyncio.run(check())


async def _refused(
    model: Model, at: EndpointAddress, sampling: Sampling, adapter: str | None, key_name: str
) -> tuple[str, ...] | None:
    """Returns the fields that the server refuses in one chat. Returns None if the server accepts the chat,
    and () if it is busy or refuses the chat for another reason. Raises as `fields_refused`."""
    client = OpenAIClient(model, replace(at, tries=len(at.urls)))  # each address once
    try:
        body = client.body(sampling, adapter)
        got = await client.attempt(READY, body, sampling)
    finally:
        await client.close()
    if not isinstance(got, Trouble):
        return None
    if got.reason in GONE:
        raise Unavailable(got.detail)
    if got.reason in ("unauthorised", "forbidden"):
        why = "the key was refused" if at.key else "the server requires a key, and none was sent"
        raise ConfError(f"{got.detail}: {why}. Put the key in the environment variable {key_name}")
    if fields := refused_fields(got.error, body):
        return fields
    names = await _list_models(at) if got.reason in WRONG or got.reason == "refused" else {body["model"]: {}}
    if got.reason in WRONG or body["model"] not in names:
        hint = did_you_mean(body["model"], names) if names else IS_THIS_V1
        expected = f": expected the model {body['model']!r} to be served there; {hint}"
        raise ConfError(f"{got.detail}{'' if body['model'] in names else expected}")
    return ()


async def _list_models(at: EndpointAddress) -> dict[str, dict[str, Any]]:
    """Returns the models that a server lists, by name; {} if the list is missing or unreadable."""
    found = await _send(at, "GET", "models", lambda t: {str(row["id"]): dict(row) for row in t["data"]})
    return {} if isinstance(found, Trouble) else found


async def _send(
    at: EndpointAddress, method: str, path: str, read: Callable[[Any], T], **content: Any
) -> T | Trouble:
    client = ServerClient(replace(at, tries=1, timeout_s=min(at.timeout_s, LISTING_TIMEOUT_S)))
    try:
        return await client.send(method, path, read, **content)
    finally:
        await client.close()


def describe(kind: str, name: str, at: EndpointAddress, dialect: str, key_name: str) -> dict[str, Any]:
    """Asks a server about one of its models, and returns the fields of an entry in models.yaml. If the server
    states no max_model_len, it is 8192. Raises as `fields_refused`, and ConfError for a reranker without a
    dialect or an unknown kind."""
    if kind == "generator":
        if (told := asyncio.run(_list_models(at)).get(name)) is None:
            model = Model(name, "generator", "openai", name, "", "", "", dialect=dialect or "openai")
            fields_refused(model, at, [(Sampling(max_tokens=16), None)], key_name)
            told = {}
        dialect = dialect or ("vllm" if told.get("owned_by") == "vllm" else "openai")
        length = told.get("max_model_len")
        length = length if isinstance(length, int) else 8192
        return {"loader": "openai", "dialect": dialect, "max_model_len": length}
    if kind == "embedder":
        body = {"model": name, "input": ["ready"], "encoding_format": "float"}
        sent = _send(at, "POST", "embeddings", lambda t: len(t["data"][0]["embedding"]), json=body)
        dim = asyncio.run(sent)
        if isinstance(dim, Trouble):
            expected = f"expected an embedding of {name!r}; {IS_THIS_V1} Its key goes into ${key_name}"
            raise (Unavailable if dim.reason in GONE else ConfError)(f"{dim.detail}: {expected}")
        return {"loader": "embeddings", "dialect": dialect or "openai", "dim": dim}
    if kind == "reranker":
        if not dialect:
            raise ConfError(f"--dialect: a reranker needs one of {', '.join(DIALECTS['rerank'])}")
        model = Model(name, "reranker", "rerank", name, "", "", "", dialect=dialect)
        RemoteModel(model, at).score([("ready", "ready"), ("ready", "not")])
        return {"loader": "rerank", "dialect": dialect}
    raise ConfError(f"--kind {kind}: a server has embedders, rerankers and generators")
