"""Engines as named actors: one for all callers, restarted when one dies, at the cost of what killed it."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.llm import Alone, Chat, Generated, Message, Sampling
from raypipe.core.records import Fault
from raypipe.models.engine import LoraBatchLock

if TYPE_CHECKING:
    from raypipe.models.engine_actors import Client

pytestmark = pytest.mark.ray
SAMPLING = Sampling(max_tokens=5)
PAUSE_S = 0.1  # before a restart, at most


class Echo:
    """An engine that says each chat's text backwards, keeps a diary on disk, and dies of poison."""

    def __init__(self, diary: str, missing: bool = False) -> None:
        if missing:
            raise ModelMissing("no weights here: fetch them")
        self._diary = Path(diary)
        self._note("born")
        self._gate = LoraBatchLock()

    def _note(self, what: str) -> None:
        with self._diary.open("a") as f:
            f.write(what + "\n")

    async def ready(self) -> None: ...

    async def generate(
        self, chats: Sequence[Chat], sampling: Sampling, adapter: str | None, alone: Alone | None
    ) -> list[Generated | Fault]:
        if adapter:
            raise ConfError(f"no adapter named {adapter!r}")
        async with self._gate.turn(object() if alone else "together"):
            if alone:
                alone()
            return list(await asyncio.gather(*(self._one(chat[-1].content) for chat in chats)))

    async def _one(self, text: str) -> Generated | Fault:
        self._note(f"asked {text}")
        try:
            await asyncio.sleep(60 if text == "for ever" else 1 if text.startswith("slow") else 0.05)
        except asyncio.CancelledError:
            self._note("cancelled")
            raise
        if text.startswith("poison"):
            os._exit(1)
        if text == "bad":
            return Fault("generate", "prompt_too_long", "", transient=False)
        return Generated(text[::-1], "stop", len(text), 0, len(text))

    def close(self) -> None:
        self._note("closed")


@pytest.fixture(scope="module")
def actors(local_ray: ModuleType) -> ModuleType:
    from raypipe.models import engine_actors

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    return engine_actors


def start(actors: ModuleType, name: str, diary: Path, **more: bool) -> Client:
    make = functools.partial(Echo, str(diary), **more)
    client: Client = actors.start_actor(name, make, {"CPU": 0.1}, longest_pause_s=PAUSE_S)
    client.ready()
    return client


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


@pytest.fixture
def client(actors: ModuleType, diary: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    client = start(actors, actors.name_of(request.node.name), diary)
    yield client
    client.close()


def chat(text: str) -> Chat:
    return (Message("user", text),)


def ask(client: Client, texts: list[str], adapter: str | None = None) -> list[str]:
    replies = asyncio.run(client.generate([chat(t) for t in texts], SAMPLING, adapter))
    return [r.text if isinstance(r, Generated) else r.reason for r in replies]


def lines(diary: Path, what: str) -> int:
    return diary.read_text().splitlines().count(what)


def test_replies_come_in_order_over_many_calls_and_faults_stay_on_their_rows(client):
    texts = [f"chat {i}" for i in range(100)]
    texts[40] = "bad"
    assert ask(client, texts) == [t[::-1] if t != "bad" else "prompt_too_long" for t in texts]
    assert ask(client, []) == []


def test_everyone_who_names_an_engine_gets_the_same_one(local_ray, actors, client, diary, request):
    name = actors.name_of(request.node.name)
    again = start(actors, name, diary)

    @local_ray.remote(num_cpus=0.1)
    def elsewhere(name: str) -> list[str]:
        return ask(actors.find(name), ["abc"])

    assert ask(again, ["x"]) == ["x"] and local_ray.get(elsewhere.remote(name)) == ["cba"]
    assert lines(diary, "born") == 1


def test_an_engine_that_nobody_started_is_not_found(actors):
    with pytest.raises(ConfError, match="no engine named"):
        actors.find("engine-none-0")


def test_a_model_that_cannot_be_started_is_the_callers_error(actors, diary):
    with pytest.raises(ModelMissing, match="fetch them"):
        start(actors, "engine-missing-0", diary, missing=True)


def test_what_no_row_can_get_is_the_callers_error(client):
    with pytest.raises(ConfError, match="gamma"):
        ask(client, ["a"], adapter="gamma")


def test_a_poison_chat_costs_its_row_and_three_attempts_and_all_others_are_answered(client, diary):
    texts = [f"chat {i}" for i in range(20)]
    texts[7] = "poison"
    assert ask(client, texts) == [t[::-1] if t != "poison" else "kills_engine" for t in texts]
    assert lines(diary, "asked poison") == 3
    assert ask(client, ["after"]) == ["retfa"]


@pytest.mark.drill
def test_chats_that_wait_while_another_kills_their_engine_are_asked_again_and_answered(client, diary):
    async def run() -> list[list[Generated | Fault]]:
        calls = [["poison", "a0", "b0"], ["a1", "b1", "c1"], ["a2", "b2", "poison too"]]
        return await asyncio.gather(*(client.generate([chat(t) for t in c], SAMPLING) for c in calls))

    replies: list[Any] = asyncio.run(run())
    said = [[r.text if isinstance(r, Generated) else r.reason for r in some] for some in replies]
    assert said == [["kills_engine", "0a", "0b"], ["1a", "1b", "1c"], ["2a", "2b", "kills_engine"]]


def test_an_engine_killed_from_outside_is_restarted_and_what_was_in_flight_asked_again(
    local_ray, client, diary
):
    async def run() -> list[Generated | Fault]:
        call = asyncio.create_task(client.generate([chat(f"slow {i}") for i in range(20)], SAMPLING))
        while lines(diary, "asked slow 19") == 0:
            await asyncio.sleep(0.02)
        local_ray.kill(client._handle, no_restart=False)
        return await call

    replies: list[Any] = asyncio.run(run())
    assert [r.text for r in replies] == [f"slow {i}"[::-1] for i in range(20)]
    assert lines(diary, "born") == 2


def test_an_equal_chat_in_flight_is_asked_once_whoever_asks(client, diary):
    async def run() -> list[list[Generated | Fault]]:
        calls = [client.generate([chat("same"), chat(f"own {i}"), chat("same")], SAMPLING) for i in range(4)]
        return await asyncio.gather(*calls)

    replies: list[Any] = asyncio.run(run())
    assert [[r.text for r in some] for some in replies] == [["emas", f"{i} nwo", "emas"] for i in range(4)]
    assert lines(diary, "asked same") == 1 and sum(lines(diary, f"asked own {i}") for i in range(4)) == 4


def test_a_call_that_is_cancelled_is_cancelled_in_the_engine(client, diary):
    async def run() -> None:
        call = asyncio.create_task(client.generate([chat("for ever")], SAMPLING))
        while lines(diary, "asked for ever") == 0:
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(run())
    wait_until(lambda: lines(diary, "cancelled") == 1)


def wait_until(true: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


def test_closing_an_engine_closes_what_it_holds(actors, diary):
    client = start(actors, "engine-closed-0", diary)
    client.close()
    assert lines(diary, "closed") == 1
    with pytest.raises(ConfError):
        actors.find("engine-closed-0")
