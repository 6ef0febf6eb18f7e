"""Kills an engine's processes under load and checks that every row comes back equal.

SIGKILL goes to vLLM's worker, to its core and to the actor that holds both, each with calls in flight. Every
row must come back once and equal to the undisturbed run, and no process may be left. Prints one JSON object
per kill, and fails unless all rows came back equal. Starts the engine six times: some minutes on two cores.

    python bench/drills/drill.py
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil
import ray

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))
from engine import chats, sentence

from raypipe.contrib.world import standins
from raypipe.core.llm import Generated, Generator, Sampling
from raypipe.core.protocols import Model
from raypipe.models import catalog, engine_actors
from raypipe.models.engine import Engine
from raypipe.models.hosts import EngineLimits
from raypipe.models.kit import LocalKit

ROWS = 60
ROOM = EngineLimits()
WORKER, CORE, REAPER = "VLLM::Worker", "VLLM::EngineCore", "models/orphan_reaper.py"


def started(*titles: str) -> list[psutil.Process]:
    """Processes of these titles that this drill started: those of its session, and the reapers, which have
    sessions of their own, by a mark in their environment. Other engines of the machine are not touched."""
    session, mark, found = os.getsid(0), os.environ["RAYPIPE_DRILL"], []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if not any(title in line for title in titles):
                continue
            if os.getsid(process.pid) == session or process.environ().get("RAYPIPE_DRILL") == mark:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def victim(what: str) -> psutil.Process:
    """The one process of that kind. The actor is the core's parent."""
    (found,) = started(WORKER if what == "worker" else CORE)
    if what != "actor":
        return found
    parent = found.parent()
    assert parent is not None
    return parent


async def ask(generate: Generator) -> list[str]:
    replies = await generate(chats(ROWS, ROWS), Sampling(max_tokens=200))
    return [r.text if isinstance(r, Generated) else f"FAULT {r.reason}" for r in replies]


async def disturbed(generate: Generator, what: str) -> list[str]:
    call = asyncio.create_task(ask(generate))
    await asyncio.sleep(1.0)
    assert not call.done(), "too fast to be disturbed"
    victim(what).kill()
    return await call


async def alone(model: Model, calm: list[str]) -> tuple[int, int]:
    """Kills the core of an engine without an actor, as the endpoint and `raypipe ask` have it.

    Calls in flight must end as a fault that says so, and the next call starts another engine. Returns the
    number of rows with that fault, and the number of rows that were equal when sent again."""
    kit = LocalKit(None, engine_limits=ROOM)
    generate = kit.generator(model)
    try:
        await generate(chats(1, 1), Sampling(max_tokens=1))
        lost = await disturbed(generate, "core")
        again = await ask(generate)
    finally:
        await kit.close()
    equal = sum(a == b for a, b in zip(calm, again, strict=True))
    return lost.count("FAULT engine_lost"), equal


def say(**counts: object) -> None:
    print(json.dumps(counts), flush=True)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    os.environ["RAYPIPE_DRILL"] = str(os.getpid())
    if os.getpgrp() != os.getpid():
        os.setsid()  # else a shell started it as a job: then the session is the shell's
    with tempfile.TemporaryDirectory() as temporary:
        rng = random.Random(0)
        built = standins.build(Path(temporary), [sentence(rng) for _ in range(2000)])
        entry = {"kind": "generator", "loader": "vllm", "path": str(built.chat), "max_model_len": 4096}
        model = catalog.read({"drill": entry}, Path(temporary) / "models.yaml").model("drill")
        os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        make = functools.partial(Engine, model, ROOM, True)
        client = engine_actors.start_actor("engine-drill", make, {"CPU": 0.5})
        client.ready()
        calm = asyncio.run(ask(client.generate))
        sound = len(set(calm)) == ROWS and not any(row.startswith("FAULT") for row in calm)
        for what in ("worker", "core", "actor"):
            start = time.perf_counter()
            rows = asyncio.run(disturbed(client.generate, what))
            equal = sum(a == b for a, b in zip(calm, rows, strict=True))
            sound = sound and equal == ROWS
            say(killed=what, rows=len(rows), equal=equal, seconds=round(time.perf_counter() - start, 1))
        client.close()
        ray.shutdown()
        gone()
        lost, equal = asyncio.run(alone(model, calm))
        sound = sound and lost == equal == ROWS
        say(killed="core without an actor", rows=ROWS, faults=lost, equal_when_asked_again=equal)
    left = gone()
    say(left=left)
    return 0 if sound and not left else 1


def gone() -> list[str]:
    """Waits until every engine process is gone; names those that stay."""
    end = time.monotonic() + 30
    while (left := started(WORKER, CORE, REAPER)) and time.monotonic() < end:
        time.sleep(0.5)
    return [p.name() for p in left]


if __name__ == "__main__":
    sys.exit(main())
