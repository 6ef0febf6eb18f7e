"""Refused chats: a chat is to blame where the model takes another one, and else nothing but the model is."""

from __future__ import annotations

import asyncio

from raypipe.core.llm import Chat, Generated, Message, Sampling
from raypipe.core.records import Fault
from raypipe.models.generators import READY, proven

SAMPLING = Sampling(max_tokens=20)


def chat(text: str) -> Chat:
    return (Message("user", text),)


class Server:
    """A generator that refuses long chats, and all of them of so many tokens as `refuses` has."""

    def __init__(self, refuses: set[int] | None = None) -> None:
        self.refuses = refuses or set()
        self.asked: list[Chat] = []
        self.generate = proven(self.reply)

    async def reply(
        self, chats: list[Chat], sampling: Sampling, adapter: str | None = None
    ) -> list[Generated | Fault]:
        self.asked += chats
        await asyncio.sleep(0)
        return [self.one(c, sampling) for c in chats]

    def one(self, chat: Chat, sampling: Sampling) -> Generated | Fault:
        if "long" in chat[0].content or sampling.max_tokens in self.refuses:
            return Fault("generate", "refused", "status 400: no such field", transient=False)
        return Generated("yes", "stop", 1, 0, 1)

    def ask(self, *chats: Chat, sampling: Sampling = SAMPLING) -> list[Generated | Fault]:
        async def run() -> list[list[Generated | Fault]]:
            return await asyncio.gather(*(self.generate([c], sampling) for c in chats))

        return [reply for [reply] in asyncio.run(run())]


def test_a_chat_alone_is_refused_for_good_where_the_model_takes_another() -> None:
    server = Server()
    [alone] = server.ask(chat("a long one"))
    assert isinstance(alone, Fault) and not alone.transient and server.asked[1:] == [READY]


def test_chats_of_a_model_that_refuses_every_one_stay_to_do_and_one_probe_says_so() -> None:
    server = Server(refuses={20})
    replies = server.ask(*(chat(f"question {i}") for i in range(9)))
    assert all(isinstance(r, Fault) and r.transient for r in replies) and server.asked.count(READY) == 1
    [first, *_] = replies
    assert isinstance(first, Fault) and first.detail.startswith(
        "status 400: no such field; one-word chats are refused, too"
    )


def test_a_model_that_begins_and_ends_to_refuse_is_to_blame_for_that_time_alone() -> None:
    server = Server()
    assert isinstance(server.ask(chat("early"))[0], Generated)
    server.refuses.add(20)
    assert [r.transient for r in server.ask(chat("one"), chat("two")) if isinstance(r, Fault)] == [True, True]
    server.refuses.clear()
    assert isinstance(server.ask(chat("late"))[0], Generated)
    [own] = server.ask(chat("a long one"))
    assert isinstance(own, Fault) and not own.transient


def test_a_sampling_that_is_refused_says_nothing_of_another() -> None:
    server = Server(refuses={99})
    [all_of_them] = server.ask(chat("one"), sampling=Sampling(max_tokens=99))
    [own] = server.ask(chat("a long one"))
    assert isinstance(all_of_them, Fault) and all_of_them.transient
    assert isinstance(own, Fault) and not own.transient
