"""The reply in a chat completion, whatever its server makes of the protocol.

Texts come whole or in parts, thoughts in parts or fields of their own, and ends by many names. A text that is
there counts, unless its end says that it was broken off or withheld. Knows the protocol and no HTTP.
"""

from __future__ import annotations

import math
from typing import Any

from raypipe.core.llm import STEP, Finish, Generated, Sampling
from raypipe.core.records import Fault
from raypipe.text.thoughts import thinking

CUT = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_length", "max_length", "token_limit", "repetition"}
)
WITHHELD = frozenset(
    {
        "content_filter", "content_filtered", "guardrail_intervened", "filtered", "safety", "recitation",
        "blocklist", "prohibited_content", "spii",
    }
)  # fmt: skip
REFUSES = frozenset({"refusal", "refused"})
BROKEN_OFF = frozenset({"error", "abort", "aborted", "cancelled", "timeout", "insufficient_system_resource"})
"""Names of ends, in lower case, of OpenAI, Anthropic, vLLM, Gemini, Bedrock, Mistral, TGI and DeepSeek. Every
other name, and none, is the end of a whole text."""


class BrokenOff(ValueError):
    """A reply that its server did not finish: the same request may get a whole one."""


def read_chat(tree: Any, sampling: Sampling) -> Generated | Fault:
    """Raises what reading a tree of another shape raises; BrokenOff."""
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
        detail = f"expected a text, found the call of a tool, and none was offered: {str(calls)[:200]}"
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
    for stop in sampling.stop:  # a server may not take them, or repeat them
        text, found, _ = text.partition(stop)
        cut = cut and not found
    if not text:
        return Fault(STEP, "empty_reply", "the model ended its reply before any text", transient=False)
    finish: Finish = "length" if cut else "stop"
    logprob = None
    if sampling.logprobs:
        logprob = math.fsum(token["logprob"] for token in choice["logprobs"]["content"])
    return Generated(
        text=text,
        finish=finish,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        generated_tokens=generated,
        logprob=logprob,
    )


def _texts(content: Any) -> tuple[str, str]:
    """The text of a message or of a part of one, and its thoughts. Parts of other types say nothing in
    words."""
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
