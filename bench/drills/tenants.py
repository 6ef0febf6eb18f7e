"""How far one tenant at 20 times its share moves the p99 of another's answers.

One gateway in a process of its own answers two tenants of equal share over an invented store, with models
that compute from words alone: what is measured is admission, not models. `loud` asks from a process of its
own, so that its requests do not wait in the client of `quiet`. `quiet` asks at an even rate. By
turns, `loud` asks at its quota (A) and at 20 times its quota (B), in an open loop: it does not wait for
replies. Prints one JSON object per turn, and the ratio of the p99 of B to that of A over all turns.

    python bench/drills/tenants.py [--turns 6] [--seconds 20] [--rate 5] [--times 20]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from raypipe import synth
from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.config import Conf
from raypipe.models.kit import LocalKit
from raypipe.pipeline.driver import Pipeline, TaskSizes
from raypipe.pipeline.ingest import ingest
from raypipe.pipeline.tasks import WorkerConfig, inline
from raypipe.report.progress import Progress
from raypipe.serving.access import ApiKeys, RequestLimits, ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import create_app
from raypipe.serving.tenants import Tenant
from raypipe.store import Store

ROOT = Path(__file__).parents[2]
RECIPE = """
corpus:
  - parse: {html: lxml, via: fast, kinds: [page, snippet]}
  - split: {child_chars: 200, child_overlap: 50, parent_chars: 700, parent_overlap: 150}
  - embed: {model: hash-embedder}
question:
  - dense: {model: hash-embedder, top: 30}
  - fuse: {weights: {dense: 1.0}, missing: min, top: 20}
  - rerank: {model: overlap-reranker, candidates: 20, top: 10}
"""
KEYS = {"quiet": "the-key-of-the-quiet-tenant", "loud": "the-key-of-the-loud-tenant"}
SLOTS = 8  # of the gateway
QUESTIONS = 20
LIMITS = httpx.Limits(max_connections=200)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=6, help="half of them at 20 times the quota (6)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn (20)")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second of each quota (5)")
    parser.add_argument("--times", type=float, default=20.0, help="the quota that loud asks in B (20)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queries = _store(Path(folder))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        gateway = multiprocessing.get_context("spawn").Process(
            target=_gateway, args=(folder, port, args.rate), daemon=True
        )
        gateway.start()
        try:
            asyncio.run(_measure("127.0.0.1", port, queries, args))
        finally:
            gateway.terminate()
            gateway.join()


def _store(folder: Path) -> list[str]:
    """A store with questions, indexed; the questions."""
    synth.write(folder / "world", QUESTIONS, pages=5, seed=7, page_chars=1500)
    store = Store.create(str(folder / "store"))
    (folder / "recipe.yaml").write_text(RECIPE)
    with Progress(io.StringIO(), silent=True) as silent:
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipe = Pipeline(store, _recipe(folder), worker, TaskSizes(50, 10), inline, silent)
        ids = ingest(store, [folder / "world"], "synth", silent).questions
        asked = arrow.question.records(store.rows("questions", "id", ids))
        pipe.index(asked)
    return [q.text for q in asked]


def _recipe(folder: Path) -> Any:
    return load_recipe(str(folder / "recipe.yaml"), None, Conf((ROOT / "conf",)))


def _gateway(folder: str, port: int, rate: float) -> None:
    tenants = tuple(
        Tenant(name, ApiKeys.of([key]), requests_per_minute=int(rate * 60) if name == "loud" else None)
        for name, key in KEYS.items()
    )
    online = Answerer(_recipe(Path(folder)), LocalKit(None, "transformers"), f"{folder}/store")
    config = ServerConfig(limits=RequestLimits(max_ongoing_requests=SLOTS), tenants=tenants)
    app = create_app(online, config)
    gc.collect()
    gc.freeze()  # as the deployed gateway does
    uvicorn.run(app, port=port, log_level="warning", timeout_keep_alive=60)  # longer than a turn


async def _measure(host: str, port: int, queries: list[str], args: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {"A": [], "B": []}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned) as louds:
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60, limits=LIMITS) as client:
            await _ready(client)
            await _asks(client, queries, args.rate, 10)  # the first requests open files and compile
            for turn in range(args.turns):
                side = "AB"[turn % 2]
                times = args.times if side == "B" else 1.0
                asked = (queries, args.rate * times, args.seconds)
                answered = asyncio.get_running_loop().run_in_executor(louds, _asks_alone, host, port, *asked)
                quiet = await _asks(client, queries, args.rate, args.seconds)
                loud = await answered
                seconds = [s for s, status in quiet if status == 200]
                found[side] += seconds
                shown = {
                    "turn": turn, "side": side, "asked": len(quiet), "answered": len(seconds),
                    "p50_ms": round(1000 * statistics.median(seconds), 1),
                    "p99_ms": round(1000 * _p99(seconds), 1), "loud_asked": len(loud),
                    "loud_refused": loud.count(429),
                }  # fmt: skip
                print(json.dumps(shown), flush=True)
    a, b = _p99(found["A"]), _p99(found["B"])
    shown = {"p99_ms_A": round(1000 * a, 1), "p99_ms_B": round(1000 * b, 1), "ratio": round(b / a, 3)}
    print(json.dumps(shown | {"requests": {k: len(v) for k, v in found.items()}}))


async def _ready(client: httpx.AsyncClient) -> None:
    for _ in range(600):
        try:
            if (await client.get("/readyz")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise SystemExit("the gateway did not start within a minute")


async def _asks(
    client: httpx.AsyncClient, queries: list[str], rate: float, seconds: float
) -> list[tuple[float, int]]:
    """`quiet`'s requests at an even rate; seconds and status of each."""

    async def one(query: str) -> tuple[float, int]:
        start = time.perf_counter()
        headers = {"authorization": f"Bearer {KEYS['quiet']}"}
        reply = await client.post("/v1/retrieve", json={"query": query}, headers=headers)
        return time.perf_counter() - start, reply.status_code

    begin, sent = time.perf_counter(), []
    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + i / rate - time.perf_counter()))
        sent.append(asyncio.ensure_future(one(queries[i % len(queries)])))
    return await asyncio.gather(*sent)


def _asks_alone(host: str, port: int, queries: list[str], rate: float, seconds: float) -> list[int]:
    """`loud`'s requests at an even rate, from this process; the status of each reply. Bytes over sockets: a
    client library takes several times the CPU of a refusal, on the cores that answer `quiet`."""
    os.nice(19)

    async def ask() -> list[int]:
        free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def one(request: bytes) -> int:
            reader, writer = free.pop() if free else await asyncio.open_connection(host, port)
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r")[0]))
            free.append((reader, writer))
            return int(head.split(b" ", 2)[1])

        requests = [_request(host, query) for query in queries]
        begin, sent = time.perf_counter(), []
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begin + i / rate - time.perf_counter()))
            sent.append(asyncio.ensure_future(one(requests[i % len(requests)])))
        statuses = await asyncio.gather(*sent)
        for _, writer in free:
            writer.close()
        return statuses

    return asyncio.run(ask())


def _request(host: str, query: str) -> bytes:
    body = json.dumps({"query": query}).encode()
    head = f"POST /v1/retrieve HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEYS['loud']}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


if __name__ == "__main__":
    main()
