"""Refused chats: some say something about their row, others about the model or its server.

A server may refuse every chat, for a field that it does not know or a limit that is reached. So a refusal is
its chat's own only if the model then takes another chat, of one word, with the same sampling. Knows the
contract of generators; knows no model and no HTTP.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TypeGuard

from raypipe.core.llm import Chats, Generated, Generator, Message, Replies, Sampling
from raypipe.core.records import Fault

REFUSED = "refused"  # reason of a fault: the model or its server takes no such request
READY = (Message("user", "ready"),)
OF_ALL = (
    "; a chat of one word is refused, too, so no row is to blame. Correct the model's entry or the step's "
    "fields, or name another model"
)


def proven(generate: Generator) -> Generator:
    """Wraps a generator: a refusal that no chat is to blame for becomes transient, so its row stays to do."""
    refuses: set[tuple[Sampling, str | None]] = set()  # every chat, until one is answered
    probing = asyncio.Lock()  # rows that are refused at the same time share the probe that is refused

    async def checked(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        replies, key = await generate(chats, sampling, adapter), (sampling, adapter)
        if any(isinstance(r, Generated) for r in replies):
            refuses.discard(key)
        return [
            replace(reply, detail=reply.detail + OF_ALL, transient=True)
            if _is_refusal(reply) and await refuses_all(key)
            else reply
            for reply in replies
        ]

    async def refuses_all(key: tuple[Sampling, str | None]) -> bool:
        async with probing:
            if key not in refuses:
                [probe] = await generate([READY], *key)
                if isinstance(probe, Fault) and (probe.transient or _is_refusal(probe)):
                    refuses.add(key)
            return key in refuses

    return checked


def _is_refusal(reply: Generated | Fault) -> TypeGuard[Fault]:
    return isinstance(reply, Fault) and reply.reason == REFUSED and not reply.transient
