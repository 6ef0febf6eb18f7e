"""An engine of this process, without an actor, whose worker is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from raypipe.core.llm import Chat, Generated, Message, Sampling
from raypipe.core.protocols import Model
from raypipe.models.engine import Engine, EngineDied
from raypipe.models.folder import identity
from raypipe.models.hosts import EngineLimits

pytestmark = [pytest.mark.engine, pytest.mark.drill]
LONG = Sampling(max_tokens=2000)


def alive(process: psutil.Process) -> bool:
    """multiprocessing's own resource tracker does not count: it belongs to this process and stays with it."""
    try:
        return process.is_running() and "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:  # gone meanwhile, or dead and not yet fetched by its parent
        return False


def chat(number: int) -> Chat:
    return (Message("user", f"What of {number}?"),)


def test_a_worker_that_is_killed_ends_every_call_with_one_clear_error_and_leaves_no_process(standins: Path):
    folder = standins.with_name("chat")

    async def disturbed(engine: Engine) -> list[Any]:
        [reply] = await engine.generate([chat(0)], Sampling(max_tokens=5))
        assert isinstance(reply, Generated)
        calls = [asyncio.create_task(engine.generate([chat(n)] * 4, LONG)) for n in range(3)]
        stream = engine.stream(chat(4), LONG)
        await anext(stream)
        titles = (
            (p, " ".join(p.cmdline())) for p in psutil.Process().children(recursive=True) if p not in before
        )
        (worker,) = (p for p, title in titles if title.startswith("VLLM::Worker"))
        worker.kill()
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        try:
            while True:
                await anext(stream)
        except EngineDied as e:
            return [*results, e]

    async def start() -> Engine:
        weights = identity(folder, "generator")
        model = Model("m", "generator", "vllm", "", "", str(folder), weights, max_model_len=4096)
        engine = Engine(model, EngineLimits())
        await engine.ready()
        return engine

    before = set(psutil.Process().children(recursive=True))
    with asyncio.Runner() as loop:
        engine = loop.run(start())
        try:
            assert all(isinstance(r, EngineDied) for r in loop.run(disturbed(engine)))
            for _ in range(2):
                with pytest.raises(EngineDied):
                    loop.run(engine.healthy())
                with pytest.raises(EngineDied):
                    loop.run(engine.generate([chat(5)], LONG))
        finally:
            children = set(psutil.Process().children(recursive=True)) - before
            engine.close()
            engine.close()  # twice is fine
    assert not [p for p in children if alive(p)], "the engine left processes behind"
