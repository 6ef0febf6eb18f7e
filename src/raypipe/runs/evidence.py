"""What an answer rests on, in texts: quotes of its reply, replies of steps, and the chats behind them.

Knows stored answers and an opened index; looks nothing up in the memo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from raypipe.core.index import Index
from raypipe.core.llm import Chat, Generated, Message
from raypipe.core.records import TRACE, Fault, Question, Span, chunk_id
from raypipe.report.report import urls


@dataclass(frozen=True, slots=True)
class AnswerQuote:
    """One quote of an answer's reply."""

    url: str | None  # of the page; None: no citation brought it
    source: str  # source id
    span: Span  # in the source's parsed text
    quote: str  # the text there


@dataclass(frozen=True, slots=True)
class StepReply:
    """What one step replied."""

    label: str  # answered, abstained, fault, ... or a class
    text: str
    confidence: float | None  # 0..1, where the step states one


@dataclass(frozen=True, slots=True)
class ModelChat:
    """One chat with a language model."""

    messages: tuple[Message, ...]
    reply: str | None  # as the model wrote it, or its fault; None: the memo does not hold it any more


def evidence(index: Index, answered: Question) -> tuple[AnswerQuote, ...]:
    """The quotes of the reply that the answer came from, best first."""
    reply = answered.replies.get(answered.origin)
    quotes = reply.quotes if reply else ()
    texts = asyncio.run(index.texts([chunk_id(q.source, q.span) for q in quotes])) if quotes else []
    url = urls(answered)
    return tuple(
        AnswerQuote(url.get(q.source), q.source, q.span, text) for q, text in zip(quotes, texts, strict=True)
    )


def step_replies(answered: Question) -> dict[str, StepReply]:
    """Name of each reply -> what it says, but for traces of graphs."""
    return {
        name: StepReply(r.label, r.text, r.confidence)
        for name, r in answered.replies.items()
        if r.label != TRACE
    }


def model_chats(chats: Mapping[Chat, Generated | Fault | None]) -> tuple[ModelChat, ...]:
    """What a stage said to language models, and what came back."""
    return tuple(ModelChat(tuple(chat), _text(reply)) for chat, reply in chats.items())


def _text(reply: Generated | Fault | None) -> str | None:
    if reply is None:
        return None
    return f"{reply.reason}: {reply.detail}" if isinstance(reply, Fault) else reply.text
