"""Chats through a hosted batch API: what it answers, how it fails, and what a killed process finds again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batch_server import BatchServer, Kept, serving

from raypipe.core.call_context import about
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import Chat, Generated, Message, Sampling, TokenPrice
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.batch_api import BatchClient, watched
from raypipe.models.hosts import EndpointAddress
from raypipe.models.openai import OpenAIClient

MODEL = Model("m", "generator", "openai", "m", "", "", "openai:openai@e:m", dialect="openai")
SAMPLING = Sampling(max_tokens=9)


def chats(n: int, of: str = "q") -> list[Chat]:
    return [(Message("user", f"{of}{i}"),) for i in range(n)]


async def asked(url: str, some: list[Chat], tries: int = 3) -> list[Generated | Fault]:
    """The replies to chats that are asked each by a call of its own, as the memo does, by a new process."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    at = EndpointAddress(url, tries=tries, batch="openai")
    client = OpenAIClient(MODEL, at, sleep)
    batch = BatchClient(MODEL, client, client.generate, sleep)
    try:
        replies = await asyncio.gather(*(batch.generate([c], SAMPLING) for c in some))
        return [reply for [reply] in replies]
    finally:
        await batch.close()


def ask(url: str, some: list[Chat], **more: Any) -> list[Generated | Fault]:
    return asyncio.run(asked(url, some, **more))


def texts(replies: list[Generated | Fault]) -> list[str]:
    return [r.text for r in replies if isinstance(r, Generated)]


def test_chats_of_one_time_are_one_file_and_each_gets_its_reply():
    with serving() as server:
        replies = ask(server.url, [*chats(20), chats(1)[0]])
    assert texts(replies) == [f"answer to q{i}" for i in [*range(20), 0]]
    assert len(server.kept.batches) == 1 and set(server.kept.paid.values()) == {1} and not server.kept.alone
    assert server.kept.usd == 20 * 12 / 2, "half the price"


@pytest.mark.parametrize("end", ["failed", "expired", "cancelled", "errors", "lost"])
def test_what_a_batch_does_not_answer_is_asked_one_by_one(end):
    with serving(ends=lambda n: end) as server:
        replies = ask(server.url, chats(10))
    assert len(texts(replies)) == 10 and set(server.kept.paid.values()) == {1}
    assert len(server.kept.alone) == (10 if end == "failed" else 5)


def test_a_batch_for_which_there_is_no_room_is_sent_again():
    with serving(ends=lambda n: "full" if n < 2 else "completed") as server:
        replies = ask(server.url, chats(4))
    assert len(texts(replies)) == 4 and len(server.kept.batches) == 3 and not server.kept.alone


class Killed(Exception):
    """Stands for the end of a process."""


def killed_at(number: int, phase: str, kept: Kept, metadata: bool) -> bool:
    """Asks, and ends the process with its request of this number, which the server has done or not; whether
    there was such a request."""
    loop = asyncio.new_event_loop()
    task: Any = None

    def hears(n: int, request: str) -> str | None:
        if n == number:
            loop.call_soon_threadsafe(task.cancel)
            return phase
        return None

    with serving(kept=kept, hears=hears, metadata=metadata) as server:
        task = loop.create_task(asked(server.url, chats(6)))
        try:
            loop.run_until_complete(task)
            return False
        except asyncio.CancelledError:
            return True
        finally:
            loop.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "metadata"),
    [
        ("before", False),
        pytest.param("after", True, marks=pytest.mark.drill),
        pytest.param("before", True, marks=pytest.mark.drill),
        pytest.param("after", False, marks=pytest.mark.drill),
    ],
)
def test_a_process_that_is_killed_at_any_request_finds_its_batch_and_pays_each_chat_once(phase, metadata):
    number = 0
    while True:
        kept = Kept()
        was_killed = killed_at(number, phase, kept, metadata)
        with serving(kept=kept, metadata=metadata) as server:
            replies = ask(server.url, chats(6))
        assert texts(replies) == [f"answer to q{i}" for i in range(6)]
        assert set(kept.paid.values()) == {1} and not kept.alone, kept.requests
        if not was_killed:
            break
        number += 1
    assert number >= 6, "list, file, batch, three looks and the output"


@pytest.mark.slow
@pytest.mark.parametrize("phase", [pytest.param("before", marks=pytest.mark.drill), "after"])
def test_a_request_that_the_server_drops_is_sent_again_and_no_batch_begins_twice(phase):
    for number in range(8):
        hears = lambda n, request, number=number: phase if n == number else None  # noqa: E731
        with serving(hears=hears) as server:
            replies = ask(server.url, chats(6))
        assert len(texts(replies)) == 6 and len(server.kept.batches) == 1
        assert set(server.kept.paid.values()) == {1}


def test_a_server_that_is_killed_leaves_its_chats_to_the_next_run():
    server = BatchServer(hears=lambda n, request: "before" if n > 3 else None)
    try:
        with pytest.raises(Unavailable, match="the same command finds them"):
            ask(server.url, chats(6), tries=2)
    finally:
        server.end()
    with serving(kept=server.kept) as back:
        assert len(texts(ask(back.url, chats(6)))) == 6
    assert set(server.kept.paid.values()) == {1} and len(server.kept.batches) == 1


def test_new_chats_next_to_those_of_a_batch_that_is_there_make_a_file_of_their_own():
    with serving() as server:
        for some in (chats(3), chats(3, "r"), chats(3, "s")):
            ask(server.url, some)
        replies = ask(server.url, [*chats(3), *chats(3, "s"), *chats(2, "t")])
        assert len(texts(replies)) == 8
    assert len(server.kept.batches) == 4 and set(server.kept.paid.values()) == {1}


def test_what_is_asked_afresh_is_no_reply_of_an_earlier_run():
    with serving() as server:
        ask(server.url, chats(3))
        for _ in range(2):  # the second: the same run, killed and begun again
            with about(run="run-2"):
                ask(server.url, chats(3))
    assert set(server.kept.paid.values()) == {2}


def test_a_server_without_a_batch_api_is_said_and_no_chat_is_sent():
    with serving() as server, pytest.raises(Unavailable, match="no such route"):
        ask(f"{server.url}/else", chats(3))
    assert not server.kept.paid


def test_a_batch_is_of_one_address():
    with pytest.raises(ConfError, match="batch: expected one address"):
        EndpointAddress("http://a/v1,http://b/v1", batch="openai")


def test_progress_of_batches_is_said_whoever_waits_for_them():
    said: list[str] = []
    with serving() as server:
        at = EndpointAddress(server.url, batch="openai")
        ask(server.url, chats(2))  # ended before: no news
        count = len(server.kept.requests)
        with watched([at], said.append, every_s=0.02):
            while len(server.kept.requests) == count:  # its first look
                asyncio.run(asyncio.sleep(0.01))
            ask(server.url, chats(300, "r"))
            for _ in range(200):
                if any("completed" in line for line in said):
                    break
                asyncio.run(asyncio.sleep(0.02))
    assert said[-1] == "batch batch-1: completed, 300/300 chats" and "batch-0" not in " ".join(said)


def test_a_price_in_batches_is_half():
    assert TokenPrice(1.0, 4.0, 0.5).in_batches() == TokenPrice(0.5, 2.0, 0.25)
