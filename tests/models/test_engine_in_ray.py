"""The real engine in its actor: killed with calls in flight, no row is lost and none comes out otherwise."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator

import psutil
import pytest
from invented import sentences, text

from raypipe import engines
from raypipe.chat import Chat, Generated, Message, Sampling
from raypipe.engines import Client, Place
from raypipe.models import standins
from raypipe.models.engine import Engine
from raypipe.models.generator import Setup

pytestmark = [pytest.mark.engine, pytest.mark.ray]
CORE, GUARD = "VLLM::EngineCore", "models/guard.py"


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, local_ray: None) -> Iterator[functools.partial[Engine]]:
    built = standins.build(tmp_path_factory.mktemp("standins"), sentences(800))
    yield functools.partial(Engine, Setup(str(built.chat), 4096, "float32"), exit_when_dead=True)


def chats(count: int) -> list[Chat]:
    return [(Message("user", f"{text(1 + i % 9, i)}\nWho was number {i}?"),) for i in range(count)]


def titled(*titles: str) -> dict[int, psutil.Process]:
    """Living processes, by what their command line has: vLLM gives its own a title."""
    found = {}
    for process in psutil.process_iter():
        try:
            if any(title in " ".join(process.cmdline()) for title in titles):
                found[process.pid] = process
        except psutil.Error:
            continue
    return found


def test_an_actor_killed_with_calls_in_flight_loses_no_row_and_leaves_no_process(make):
    before = titled(CORE, GUARD).keys()
    client = engines.start("engine-killed-0", make, Place(cpus=0.5))
    ours = titled(CORE).keys() - before

    async def ask(client: Client) -> list[str]:
        replies = await client.generate(chats(40), Sampling(max_tokens=200))
        return [r.text if isinstance(r, Generated) else f"fault: {r.detail}" for r in replies]

    async def disturbed() -> list[str]:
        call = asyncio.create_task(ask(client))
        await asyncio.sleep(0.8)
        assert not call.done()
        (core,) = ours
        actor = psutil.Process(core).parent()
        assert actor is not None
        actor.kill()
        return await call

    calm = asyncio.run(ask(client))
    assert asyncio.run(disturbed()) == calm and len(set(calm)) == 40
    client.close()
    end = time.monotonic() + 30
    while titled(CORE, GUARD).keys() - before and time.monotonic() < end:
        time.sleep(0.2)
    assert not titled(CORE, GUARD).keys() - before
